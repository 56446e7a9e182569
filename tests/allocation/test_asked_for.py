"""What has become of the allocations that were asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from snakemake_kochi.allocation.asked_for import AskedFor
from snakemake_kochi.allocation.losses import Losses
from snakemake_kochi.allocation.sizing import Supply
from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import Capacity, WorkerState
from snakemake_kochi.queue.processes import Node, ProcessIdentity
from snakemake_kochi.schedulers.interface import Allocation

ONE = Supply(Capacity(1, 0))


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def asked(clock: Clock) -> AskedFor:
    asked = AskedFor(clock)
    asked.add(["7"], "q", ONE, lasting=False)
    return asked


def worker(allocation: str = "7") -> WorkerState:
    return WorkerState(
        worker=1,
        state="running",
        process=ProcessIdentity(1, 1),
        node=Node("elsewhere", "machine", "boot", "pid:[1]"),
        queues=("q",),
        capacity=Capacity(1, 0),
        started="2026-01-01T00:00:00+00:00",
        updated="2026-01-01T00:00:00+00:00",
        controller="me",
        allocation=allocation,
    )


def ids(asked: AskedFor) -> list[str]:
    return [each.id for each in asked.coming()]


def test_a_worker_comes_and_goes_and_its_allocation_ends(asked: AskedFor) -> None:
    assert ids(asked) == ["7"]
    assert asked.note_workers([worker()]) == (True, False)
    assert ids(asked) == []
    assert asked.note_workers([worker()]) == (False, False)
    assert asked.note_workers([]) == (False, True)
    assert not asked.is_settled
    [ended] = asked.note_answer({})
    assert ended.had_worker
    assert asked.is_settled
    assert not asked


def test_an_allocation_that_was_requeued_is_to_come_again(asked: AskedFor) -> None:
    asked.note_workers([worker()])
    asked.note_workers([])
    assert asked.note_answer({"7": Allocation("7", "pending")}) == []
    assert asked.is_settled
    assert ids(asked) == ["7"]
    asked.note_workers([worker()])
    assert ids(asked) == []


def test_one_that_takes_long_to_end_is_not_waited_for_for_ever(
    asked: AskedFor, clock: Clock
) -> None:
    asked.note_workers([worker()])
    asked.note_workers([])
    asked.note_answer({"7": Allocation("7", "running")})
    assert not asked.is_settled
    clock.time += 60
    assert asked.is_settled
    assert ids(asked) == []


def test_where_nobody_can_be_asked_a_worker_that_left_has_left_for_good(asked: AskedFor) -> None:
    unknown = {"7": Allocation("7", "pending", is_certain=False)}
    assert asked.note_answer(unknown) == []
    assert ids(asked) == ["7"]
    asked.note_workers([worker()])
    assert asked.note_answer(unknown) == []
    asked.note_workers([])
    assert [each.id for each in asked.note_answer(unknown)] == ["7"]


def test_one_that_runs_for_minutes_without_a_worker_is_late(asked: AskedFor, clock: Clock) -> None:
    assert asked.late({"7"}) == []
    clock.time += 300
    assert asked.late({"7"}) == ["7"]
    assert asked.late(()) == []


@pytest.fixture
def silent(tmp_path: Path) -> tuple[MachinePaths, WorkerState]:
    machine = Root(tmp_path).machine("own")
    state = worker()
    make_directory(machine.worker(1).directory)
    write_atomically(machine.worker(1).state, to_json(state.to_dict()))
    return machine, state


@pytest.mark.parametrize(
    ("allocations", "seconds", "is_lost"),
    [
        ((), 60, True),
        (("7",), 60, False),
        ((), 30, False),
    ],
)
def test_a_worker_is_lost_when_it_is_silent_and_its_allocation_is_over(
    silent: tuple[MachinePaths, WorkerState],
    clock: Clock,
    allocations: tuple[str, ...],
    seconds: int,
    is_lost: bool,
) -> None:
    machine, state = silent
    losses = Losses(machine, clock)
    assert not losses.look([state])
    for _ in range(seconds // 10):
        clock.time += 10
        losses.look([state])
    losses.declare(allocations)
    assert machine.worker(1).presumed_dead.exists() == is_lost


def test_a_silent_worker_is_lost_when_its_allocation_has_another_one_after_it_was_requeued(
    silent: tuple[MachinePaths, WorkerState], clock: Clock
) -> None:
    machine, state = silent
    losses = Losses(machine, clock)
    make_directory(machine.worker(2).directory)
    for beat in range(7):
        latest = replace(state, worker=2, heartbeat=beat)
        write_atomically(machine.worker(2).state, to_json(latest.to_dict()))
        losses.look([state, latest])
        clock.time += 10
    losses.declare(("7",))
    assert machine.worker(1).presumed_dead.exists()
    assert not machine.worker(2).presumed_dead.exists()
