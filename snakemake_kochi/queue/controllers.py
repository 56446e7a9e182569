"""Controllers that died, who takes over from them, and the tickets they left in the queues."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_name, read_json, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import controller_names, queue_names
from snakemake_kochi.queue.inbox import VERSION
from snakemake_kochi.queue.jobs import JobView
from snakemake_kochi.queue.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue.queue import Queue


@dataclass(frozen=True)
class ControllerState:
    """controller.json: who a controller is, and in which directory it works (None when that is
    not known). `queues` are those into which it may have handed over tickets (None: any); it has
    `left` when it ended before all its jobs did."""

    identity: str
    node: Node
    process: ProcessIdentity
    directory: str | None
    queues: tuple[str, ...] | None = None
    left: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether it certainly does nothing more. Of one that could not say so this is known only
        on its host."""
        if self.left:
            return True
        here = this_node()
        if here.can_see(self.node):
            return not self.process.is_alive()
        return here.has_rebooted_since(self.node)


def private_queue(controller: str) -> str:
    """The queue for the jobs of a run that name none. Others of its own begin with this name and a
    dash."""
    return f"run-{controller}"


def remove_private_queues(machine: MachinePaths, controller: str) -> None:
    """Remove a run's own queues, but for those in which a ticket is left."""
    first = private_queue(controller)
    for name in queue_names(machine):
        if name == first or name.startswith(f"{first}-"):
            Queue(machine, name).remove()


def read_controller(machine: MachinePaths, identity: str) -> ControllerState:
    """Raises FileNotFoundError, or DamagedFileError."""
    path = machine.controller(identity).state
    data = read_json(path, VERSION)
    try:
        directory, queues = data.get("directory"), data.get("queues")
        if queues is not None:
            queues = tuple(map(str, queues))
            if not all(map(is_name, queues)):
                raise ValueError(f"key 'queues': {queues!r}")
        return ControllerState(
            identity=identity,
            node=Node.from_dict(data["node"]),
            process=ProcessIdentity.from_dict(data["process"]),
            directory=None if directory is None else str(directory),
            queues=queues,
            left=data.get("left") is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path}: not a controller's state ({error!r})") from error


def dead_controllers(machine: MachinePaths) -> list[ControllerState]:
    """The controllers that certainly are no more and left their inbox.

    Of those on other nodes that were killed nothing is known. One whose file cannot be
    read may be just being made.
    """
    found = []
    for identity in controller_names(machine):
        try:
            state = read_controller(machine, identity)
        except (FileNotFoundError, DamagedFileError):
            continue
        if state.is_dead:
            found.append(state)
    return found


def inherit(machine: MachinePaths, dead: str, heir: str) -> bool:
    """Become the one controller that takes over from a dead one; False when another one did.

    Who took over and died or ended since is followed by the next. Two controllers that both wait
    for the same job would both report it.
    """
    paths = machine.controller(dead)
    for number in itertools.count(1):
        path = paths.heir(number)
        try:
            current = str(read_json(path, VERSION).get("heir"))
        except FileNotFoundError:
            content = to_json({"version": VERSION, "heir": heir})
            if write_exclusively(path, content):
                return True
            current = str(read_json(path, VERSION).get("heir"))
        if current == heir:
            return True
        if not _is_gone(machine, current):
            return False
    raise AssertionError("unreachable")


def _is_gone(machine: MachinePaths, identity: str) -> bool:
    """Of a controller that was there once."""
    try:
        return read_controller(machine, identity).is_dead
    except FileNotFoundError:
        return True  # it ended in good order
    except DamagedFileError:
        return False


def queues_of(states: Iterable[ControllerState]) -> set[str] | None:
    """The queues that may hold tickets of these controllers; None for all."""
    found: set[str] = set()
    for state in states:
        if state.queues is None:
            return None
        found.update(state.queues)
    return found


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
    """Remove all that there is of a controller that is dead, and its private queues, but for those
    in which a ticket is left."""
    shutil.rmtree(machine.controller(identity).inbox.parent, ignore_errors=True)
    remove_private_queues(machine, identity)
