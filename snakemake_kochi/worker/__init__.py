"""A worker: a process that claims tickets and executes them on its node.

settings     a file that says how a worker is started
supervisor   the process that is started: it forks the jobs, reaps them, and leaves none behind
loop         which tickets are claimed; drain
job          the thread of one job: log, process, leftovers, end
runners      the cheapest way to execute a ticket, and what the worker asks of its supervisor
servers      the processes that fork some jobs: which to start, and when to give them up
job_process  the process of a job before it becomes the job's command
health       whether this node can execute, write and enter
logins       the ssh server that lets its user in when a person asks
walltime     how long it may live
terminal     `kochi work`: a worker in this terminal, and the output of its jobs there
node         capacity, memory, CPUs and GPUs of the node

A server is a process that forks itself for each job (`server`, with `copies`), after it has
imported the phases (`phase`), parsed a workflow (`zygote`, by `snakemake_internals`, with
`parse_state`), or imported what a `benchmark:` needs (`benchmark`).
"""

import os
import sys


def start_command(settings: str | os.PathLike[str]) -> list[str]:
    """The command that starts a worker with a file of settings (see `worker.settings`).

    Options of `__main__` may follow: values that are known only inside an allocation.
    """
    # Without packages: the supervisor forks faster the smaller it is.
    program = os.path.join(os.path.dirname(__file__), "supervisor.py")
    return [sys.executable, "-I", "-S", program, os.fspath(settings)]


def work_command(settings: str | os.PathLike[str]) -> list[str]:
    """As `start_command`, for a worker whose jobs' output is shown; see `terminal`."""
    return [sys.executable, "-P", "-m", "snakemake_kochi.worker.terminal", os.fspath(settings)]
