"""Artifacts of rules that a user wrote: from an output in a Snakefile to the artifact branch.

Import from the modules, not from here: every process that reads a Snakefile with `artifact()`
imports `flag`, and only the main process of a run the rest.
"""
