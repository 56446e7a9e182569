"""An adopter cancels idle allocations of the killed controller."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support import worker_state

from snakemake_kochi.allocation.tracker import OrphanedAllocations
from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import allocate_ids
from snakemake_kochi.schedulers.interface import Allocation


class Scheduler:
    """Has allocations until they are gone, and notes what is cancelled."""

    def __init__(self, *ids: str) -> None:
        self.found = {id: Allocation(id, "running") for id in ids}
        self.cancelled: list[str] = []

    def find(self) -> dict[str, Allocation]:
        return self.found

    def cancel(self, ids: Iterable[str] = ()) -> None:
        self.cancelled += ids


@pytest.fixture
def machine(isolated_environment: Path) -> MachinePaths:
    return Root(isolated_environment).machine("local")


def note(machine: MachinePaths, number: int, allocation: str, **running: Any) -> None:
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    where: Any = {"process": process, "node": this_node(), "allocation": allocation}
    state = worker_state(number, controller="dead", **where, **running)
    path = machine.worker(number).state
    make_directory(path.parent)
    write_atomically(path, to_json(state.to_dict()))


def test_idle_orphaned_allocations_are_cancelled_at_once_and_busy_ones_when_they_become_idle(
    machine: MachinePaths,
) -> None:
    idle, busy = allocate_ids(machine, "worker", 2)
    note(machine, idle, "1")
    note(machine, busy, "2", running={7: "2026-01-01T00:00:00+00:00"})
    scheduler = Scheduler("1", "2", "3")
    orphaned = OrphanedAllocations(machine, lambda controller: scheduler)
    orphaned.adopt(["dead"])
    assert orphaned.cancel_idle() == ["1", "3"]
    assert not orphaned.have_room
    note(machine, busy, "2")
    assert orphaned.have_room
    # The others are still ending: the user is told once.
    assert orphaned.cancel_idle() == ["2"]
    assert scheduler.cancelled[-3:] == ["1", "2", "3"]
    assert not orphaned.have_room
    assert orphaned
    scheduler.found.clear()
    assert orphaned.cancel_idle() == []
    assert not orphaned
