"""The one way to run a program on the node of a worker.

On this node it is the program itself; in an allocation the scheduler starts it there; elsewhere it
goes through an ssh server that the worker starts for its user (`login.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location
from snakemake_kochi.schedulers.native import BatchSystem, system
from snakemake_kochi.terminal.login import words_by_ssh

if TYPE_CHECKING:
    from snakemake_kochi.queue.views import WorkerView


def program_on_node(
    location: Location,
    worker: WorkerView,
    words: Sequence[str],
    pty: bool = False,
    by_ssh: bool = False,
) -> list[str]:
    """A command of this host that runs a program on the worker's node, as this user.

    Its standard streams are those of the program, and its exit status, too. With `pty` the program
    gets a terminal of its own, joined to that of the command, unless it is on this node and has the
    same one. `by_ssh`: not through the scheduler. The call may wait until an ssh server is there.
    Raises KochiError.
    """
    require_present(worker)
    if worker.is_on_this_node:
        return list(words)
    scheduler = None if by_ssh else _scheduler_of(location)
    if scheduler is not None and worker.allocation is not None and scheduler.can_enter():
        return scheduler.words_inside(worker.allocation, words, pty)
    return words_by_ssh(location.machine_paths, worker, words, pty)


def require_present(worker: WorkerView) -> None:
    """Raises KochiError when the worker is gone, and its node is perhaps no longer ours."""
    if not worker.is_gone:
        return
    how = "has left" if worker.state == "left" else "is lost"
    raise KochiError(
        f"worker {worker.worker} {how}: nothing of it is on {worker.node.host} any more",
        "To list the workers that are there, type: kochi show workers",
    )


def _scheduler_of(location: Location) -> BatchSystem | None:
    name = location.machine.scheduler
    return None if name is None else system(name)
