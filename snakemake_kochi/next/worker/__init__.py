"""A worker: a process that claims tickets and executes them on its node.

supervisor  the process that is started: it forks the jobs, reaps them, and leaves none behind
forks       what the worker asks of its supervisor
job         the thread of one job: log, process, leftovers, end
loop        which tickets are claimed; drain
"""

import sys
from pathlib import Path


def start_command(settings: Path) -> list[str]:
    """The command that starts a worker with a file of settings (see `worker.settings`)."""
    # Without packages: the supervisor forks faster the smaller it is.
    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).with_name("supervisor.py")),
        str(settings),
    ]
