"""Jobs by hand: commands and single runs of experiments, from the command line and from Python.

request           from what a person asks for to a ticket
experiment_files  the files of experiments that a person names
job               `snakemake_kochi.submit`, and what becomes of such a job
own_worker        a worker for the jobs that one Python process submits
"""
