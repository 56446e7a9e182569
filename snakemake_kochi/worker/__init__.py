"""A worker: a process that claims tickets and executes them on its node.

supervisor  the process that is started: it forks the jobs, reaps them, and leaves none behind
forks       what the worker asks of its supervisor
job         the thread of one job: log, process, leftovers, end
loop        which tickets are claimed; drain
runners     the cheapest way to execute a ticket, and the servers that some need
logins      the ssh server that lets its user in when a person asks
walltime    how long it may live

A server is a process that forks itself for each job (`server`), after it has imported the phases
(`phase`), parsed a workflow (`zygote`) or imported what a `benchmark:` needs (`benchmark`).
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
