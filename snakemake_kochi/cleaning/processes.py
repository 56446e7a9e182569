"""Files of processes that have ended: controllers and workers, and the records of runs.

See `records` for how that is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path

from snakemake_kochi.cleaning.records import SILENCE, clean_allocations
from snakemake_kochi.cleaning.removal import LEFTOVER_AGE, Removal, measure
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there, list_names, read_json
from snakemake_kochi.paths import ControllerPaths, MachinePaths, WorkerPaths
from snakemake_kochi.processes import Node, this_node
from snakemake_kochi.project.clean_rules import Rules
from snakemake_kochi.queue import jobs_of, remove_private_queues
from snakemake_kochi.queue.controllers import read_controller
from snakemake_kochi.queue.entries import (
    Entry,
    controller_names,
    queue_names,
    running_entries,
    worker_numbers,
)
from snakemake_kochi.queue.heartbeat import read_presumed_dead
from snakemake_kochi.queue.queue import private_queue
from snakemake_kochi.queue.runs import read_run
from snakemake_kochi.queue.wakeup import unsubscribe
from snakemake_kochi.queue.workers import WorkerState, read_worker


def clean_processes(machine: MachinePaths, rules: Rules, removal: Removal) -> None:
    """Delete what ended controllers, launches and workers have left, but none of their jobs."""
    for directory in (machine.jobs, machine.controllers, machine.workers, machine.runs):
        removal.sweep(directory)
    for identity in controller_names(machine):
        with removal.tolerating(f"controller {identity}"):
            _clean_controller(machine, identity, rules, removal)
    with removal.tolerating(f"queues in {machine.queues}"):
        _clean_queues(machine, removal)
    for number in worker_numbers(machine):
        with removal.tolerating(f"worker {number}"):
            _clean_worker(machine, number, rules, removal)
    with removal.tolerating(f"records of runs in {machine.runs}"):
        _clean_records(machine, rules, removal)


def hosts_of_live_processes(machine: MachinePaths) -> Iterator[Node]:
    """The nodes of the workers and controllers that may be alive."""
    for number in worker_numbers(machine):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            if not (state := read_worker(machine, number)).is_gone:
                yield state.node
    for identity in controller_names(machine):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            if not (controller := read_controller(machine, identity)).is_dead:
                yield controller.node


# ---- controllers


def _clean_controller(machine: MachinePaths, identity: str, rules: Rules, removal: Removal) -> None:
    """Delete a controller that was killed and that no run of its directory has followed.

    Its jobs are then adopted by none. It stays while one of them waits or runs.
    """
    paths = machine.controller(identity)
    queues = None
    try:
        state = read_controller(machine, identity)
    except FileNotFoundError:
        # It was killed while it began or ended.
        if not removal.is_older(paths.directory, max(rules.runs, SILENCE)):
            return
        names: tuple[str, ...] = (identity,)
    else:
        if not state.is_dead and this_node().can_see(state.node):
            return
        age = rules.runs if state.is_dead else max(rules.runs, SILENCE)
        if not removal.is_older(paths.state, age):
            return
        names, queues = (identity, state.directory or ""), state.queues
    if rules.keeps("runs", names) or jobs_of(machine, [identity], queues):
        return
    if removal.remove("runs", paths.directory, lambda aside: _is_adopted(machine, aside)):
        _remove_queues(machine, identity, removal)


def _is_adopted(machine: MachinePaths, aside: Path) -> bool:
    """Whether a controller that exists has adopted the jobs of one that is being deleted."""
    number, adopter = 1, ""
    with contextlib.suppress(FileNotFoundError):
        while data := read_json(ControllerPaths(aside).adopter(number)):
            number, adopter = number + 1, str(data.get("adopter"))
    return bool(adopter) and is_there(machine.controller(adopter).directory)


def _clean_queues(machine: MachinePaths, removal: Removal) -> None:
    """Delete queues of runs that have ended, and what is left of queues that were removed."""
    found = queue_names(machine)
    # After the queues: a controller has a directory before it has a queue.
    known = {private_queue(identity) for identity in controller_names(machine)}
    gone = (name for name in found if name.startswith(private_queue("")))
    for name in gone:
        if not any(name == own or name.startswith(f"{own}-") for own in known):
            _remove_queue(machine, name, removal)
    for name in list_names(machine.queues):
        path = machine.queues / name
        if name.startswith(".") and removal.is_older(path, LEFTOVER_AGE):
            removal.remove("leftovers", path)


def _remove_queues(machine: MachinePaths, controller: str, removal: Removal) -> None:
    if not removal.is_dry:
        remove_private_queues(machine, controller)


def _remove_queue(machine: MachinePaths, name: str, removal: Removal) -> None:
    from snakemake_kochi.queue import Queue

    queue = Queue(machine, name)
    freed = measure(queue.paths.directory)
    if removal.is_dry:
        if not queue.is_empty():
            return
    elif not queue.remove():
        return
    freed.count = 0
    removal.count("runs", freed)


# ---- workers


def _clean_worker(machine: MachinePaths, number: int, rules: Rules, removal: Removal) -> None:
    paths = machine.worker(number)
    try:
        state = read_worker(machine, number)
    except FileNotFoundError:
        # It has a number and has not started. A person may have requested it, and its allocation
        # may wait for long.
        age = max(rules.runs, SILENCE)
        is_asked = is_there(paths.requested) and not is_there(paths.release)
        if not is_asked and removal.is_older(paths.directory, age):
            removal.remove("workers", paths.directory, _has_begun)
        return
    if rules.keeps("workers", (str(number), *state.queues)):
        return
    if not _is_over(machine, state, rules, removal):
        return
    # Recovery needs its state as long as it has a ticket.
    if any(entry.worker == number for entry in _claims(machine)):
        return
    if removal.remove("workers", paths.directory) and not removal.is_dry:
        for queue in queue_names(machine):
            with contextlib.suppress(OSError):
                unsubscribe(machine.queue(queue), number)


def _has_begun(aside: Path) -> bool:
    return is_there(WorkerPaths(aside).state)


def _is_over(machine: MachinePaths, state: WorkerState, rules: Rules, removal: Removal) -> bool:
    file = machine.worker(state.worker).state
    if state.state == "left" or state.has_died:
        return removal.is_older(file, rules.runs)
    if state.is_on_this_node:
        return False
    # Its node may wake up: it must then find the file that says that it was presumed dead.
    with contextlib.suppress(FileNotFoundError):
        read_presumed_dead(machine, state.worker)
        presumed = machine.worker(state.worker).presumed_dead
        if not removal.is_older(presumed, max(rules.runs, SILENCE)):
            return False
    return removal.is_older(file, max(rules.runs, SILENCE))


def _claims(machine: MachinePaths) -> Iterator[Entry]:
    for name in queue_names(machine):
        yield from running_entries(machine.queue(name))


# ---- records


def _clean_records(machine: MachinePaths, rules: Rules, removal: Removal) -> None:
    """Delete the records of runs, the notes and outputs of their allocations, and the settings of
    workers that were started without a number."""
    controllers = {
        name
        for name in controller_names(machine)
        if machine.controller(name).directory not in removal.gone
    }
    for name in list_names(machine.runs):
        path = machine.runs / name
        if path.stem in controllers or name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError):
            if removal.is_older(path, rules.runs):
                directory = ""
                with contextlib.suppress(DamagedFileError):
                    directory = read_run(machine, path.stem).directory
                if not rules.keeps("runs", (path.stem, directory)):
                    removal.remove("runs", path)
    clean_allocations(
        machine,
        rules,
        removal,
        controllers | _controllers_of_workers(machine),
        _first_start(machine, controllers),
    )


def _controllers_of_workers(machine: MachinePaths) -> set[str]:
    found = set()
    for number in worker_numbers(machine):
        with contextlib.suppress(FileNotFoundError, DamagedFileError):
            state = read_worker(machine, number)
            if state.controller is not None and not state.is_gone:
                found.add(state.controller)
    return found


def _first_start(machine: MachinePaths, controllers: Collection[str]) -> float:
    """When the first of the present controllers began, in seconds since the epoch."""
    first = float("inf")
    for identity in controllers:
        try:
            started = read_controller(machine, identity).started
            first = min(first, datetime.fromisoformat(started).timestamp())
        except (FileNotFoundError, DamagedFileError, ValueError):
            return 0.0
    return first
