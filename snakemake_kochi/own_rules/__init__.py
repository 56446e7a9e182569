"""Artifacts of rules that a user wrote: from an output in a Snakefile to the artifact branch.

`artifact()` marks outputs. The main process of a run notes its jobs with such outputs
(watch); at its end, what Snakemake's metadata says about each becomes a record (record), which is
journaled with the outputs and committed. The next run does so for a process that was killed.
"""
