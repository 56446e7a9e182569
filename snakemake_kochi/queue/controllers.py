"""Controllers that died, and the tickets they left in the queues."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import read_json
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import queue_names
from snakemake_kochi.queue.inbox import VERSION
from snakemake_kochi.queue.jobs import JobView
from snakemake_kochi.queue.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue.queue import Queue


def dead_controllers(machine: MachinePaths) -> list[str]:
    """The controllers that certainly are no more and could not close their inbox.

    Decided only for this host, as for workers.
    """
    return [identity for identity in _identities(machine) if _is_dead(machine, identity)]


def _identities(machine: MachinePaths) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path.name for path in machine.controllers.iterdir())
    return []


def _is_dead(machine: MachinePaths, identity: str) -> bool:
    try:
        state = read_json(machine.controller(identity).state, VERSION)
        node = Node.from_dict(state["node"])
        process = ProcessIdentity.from_dict(state["process"])
    except (FileNotFoundError, DamagedFileError, KeyError, TypeError, ValueError):
        # It may be just being made.
        return False
    here = this_node()
    if here.can_see(node):
        return not process.is_alive()
    return here.has_rebooted_since(node)


def jobs_of(
    machine: MachinePaths, controllers: Collection[str], queues: Collection[str] | None = None
) -> list[JobView]:
    """The waiting and running jobs that some controllers handed over, in all queues or in some.
    Reads every ticket of them."""
    names = queue_names(machine) if queues is None else sorted(queues)
    return [
        view
        for name in (names if controllers else ())
        for queue in (Queue(machine, name),)
        for view in (*queue.waiting(), *queue.running())
        if view.ticket is not None and view.ticket.controller in controllers
    ]


def forget_controller(machine: MachinePaths, identity: str) -> None:
    """Remove the inbox of a controller that is dead."""
    shutil.rmtree(machine.controller(identity).inbox.parent, ignore_errors=True)
