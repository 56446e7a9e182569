"""The executor on tickets: Snakemake's jobs become tickets, and their ends are reported.

executor  the class that Snakemake instantiates: one run
ends      what is said of the end of a job, and of all of them
adopted   earlier runs, and their jobs that this run takes over
workers   the run's own workers, on this computer
telling   what is said of queues: no worker, a pause, a full disk
summary   what is said at the end: runners, requests and usage
"""
