"""The executor on tickets: Snakemake's jobs become tickets, and their ends are reported.

plugin         what Snakemake's plugin discovery loads: the options
executor       the class that Snakemake instantiates: one run
admission      what a job gets, and which jobs can never run
job_queues     which queue a job goes to; what is known of jobs that are not ready
tickets        the ticket of a job: inner command, runner, identity
plain          the command of a plain shell job
internals      uses of Snakemake beyond its interface
adopted        earlier runs, and their jobs that this run takes over
workers        the run's own workers, on this computer
allocated      the same, in allocations: as many as its jobs need
allocations    how these are requested, awaited and cancelled
ends           what is said of the end of a job
telling        what is said of queues: no worker, a pause, a full disk
summary        what is said at the end: what jobs requested and used
"""
