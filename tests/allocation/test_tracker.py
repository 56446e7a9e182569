"""The states and the ends of requested allocations."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
from support import worker_state

from snakemake_kochi.allocation.failures import FailedStarts
from snakemake_kochi.allocation.packing import Supply
from snakemake_kochi.allocation.tracker import OrphanedAllocations, Tracker
from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import Capacity, allocate_ids
from snakemake_kochi.schedulers.commands import Questions, WaitReasons
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    Allocation,
    AllocationRequest,
    Limits,
    Wanted,
)

ONE = Supply(Capacity(1, 0))


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Scheduler:
    """Answers with what it has, and notes what is cancelled."""

    takes_requests = True
    can_exclude = True
    lacks = None
    cancels_waiting = ()
    how_to_cancel = ""

    def __init__(self) -> None:
        self.found: dict[str, Allocation] = {}
        self.cancelled: list[str] = []
        self.told_to_leave: list[str] = []

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        return Limits(1, Capacity(1, 0))

    def submit(self, wanted: Wanted, launch: Any, known: Collection[str]) -> list[str]:
        return []

    def find(self) -> dict[str, Allocation]:
        return self.found

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        return {}

    def cancel(self, ids: Iterable[str] = ()) -> None:
        self.cancelled += ids

    def tell_to_leave(self, ids: Collection[str]) -> None:
        self.told_to_leave += ids

    def give_up(self) -> None: ...


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tracker(tmp_path: Path, clock: Clock, scheduler: Scheduler) -> Tracker:
    logger: Any = logging.getLogger("test")
    machine = Root(tmp_path).machine("own")
    make_directory(machine.directory)
    tracker = Tracker(
        machine,
        scheduler,
        "me",
        Questions(logger, clock),
        FailedStarts(True, logger, clock),
        OrphanedAllocations(machine, lambda _: scheduler),
        logger,
        clock,
    )
    tracker.add(["7"], "q", ONE, stays=False)
    return tracker


def ids(tracker: Tracker) -> list[str]:
    return [each.id for each in tracker.coming()]


def test_a_worker_starts_and_leaves_and_its_allocation_ends(tracker: Tracker) -> None:
    assert ids(tracker) == ["7"]
    assert not tracker.note_workers([worker_state()])
    assert ids(tracker) == []
    assert not tracker.note_workers([worker_state()])
    assert tracker.note_workers([])
    assert not tracker.is_settled
    [ended] = tracker.note_answer({})
    assert ended.had_worker
    assert tracker.is_settled
    assert not tracker.all()


def test_a_worker_is_expected_again_in_a_requeued_allocation(tracker: Tracker) -> None:
    tracker.note_workers([worker_state()])
    tracker.note_workers([])
    assert tracker.note_answer({"7": Allocation("7", "pending")}) == []
    assert tracker.is_settled
    assert ids(tracker) == ["7"]
    tracker.note_workers([worker_state()])
    assert ids(tracker) == []


def test_a_requeue_is_told_once(tracker: Tracker, caplog: pytest.LogCaptureFixture) -> None:
    tracker.note_answer({"7": Allocation("7", "pending")})
    tracker.note_workers([worker_state()])
    tracker.note_workers([])
    assert caplog.text == ""
    for _ in range(2):
        tracker.note_answer({"7": Allocation("7", "pending")})
    assert caplog.text.count("The scheduler requeued allocation 7: ") == 1


@pytest.mark.parametrize("had_worker", [False, True])
def test_an_allocation_that_the_scheduler_ended_is_told_and_no_reason_to_wait(
    tracker: Tracker, scheduler: Scheduler, caplog: pytest.LogCaptureFixture, had_worker: bool
) -> None:
    if had_worker:
        tracker.note_workers([worker_state()])
    taken = Allocation("7", "ended", "PREEMPTED", "n1", was_cancelled=True, was_taken=True)
    scheduler.found = {"7": taken}
    tracker.look([])
    assert tracker.all() == []
    (line,) = caplog.messages
    assert line.startswith("The scheduler ended allocations of this run: 7 (PREEMPTED). ")


def test_the_run_does_not_wait_for_ever_for_an_allocation_to_end(
    tracker: Tracker, clock: Clock
) -> None:
    tracker.note_workers([worker_state()])
    tracker.note_workers([])
    tracker.note_answer({"7": Allocation("7", "running")})
    assert not tracker.is_settled
    clock.time += 60
    assert tracker.is_settled
    assert ids(tracker) == []


def test_without_a_scheduler_to_ask_a_worker_that_left_has_left_for_good(tracker: Tracker) -> None:
    unknown = {"7": Allocation("7", "pending", is_certain=False)}
    assert tracker.note_answer(unknown) == []
    assert ids(tracker) == ["7"]
    tracker.note_workers([worker_state()])
    assert tracker.note_answer(unknown) == []
    tracker.note_workers([])
    assert [each.id for each in tracker.note_answer(unknown)] == ["7"]


def test_an_allocation_that_runs_for_minutes_without_a_worker_is_reported_once(
    tracker: Tracker, scheduler: Scheduler, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scheduler.found = {"7": Allocation("7", "running")}
    tracker.look([])
    assert "has not started" not in caplog.text
    for _ in range(3):
        clock.time += 300
        tracker.look([])
    late = "Allocation 7 runs, but its worker has not started; it wrote no log"
    assert caplog.text.count(late) == 1


def test_an_allocation_held_because_a_node_failed_is_cancelled(
    tracker: Tracker, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.found = {"7": Allocation("7", "pending", "launch failed", has_failed=True)}
    tracker.look([])
    assert scheduler.cancelled == ["7"]
    assert tracker.all() == []
    assert "Cancelled allocations that were held: 7 (launch failed)" in caplog.text


# ---- the reasons of waits


def waiting(*reasons: str) -> list[Allocation]:
    return [Allocation(f"12_{i}", "pending", reason) for i, reason in enumerate(reasons, 1)]


def test_a_reason_is_reported_verbatim_once_for_all_allocations_that_wait_for_it() -> None:
    reasons = WaitReasons()
    assert list(reasons.lines(waiting("Priority", "Priority", "Priority"))) == [
        "3 allocations wait (12_1 to 12_3): Priority"
    ]
    assert list(reasons.lines(waiting("Priority", "Priority"))) == []
    unavailable = "ReqNodeNotAvail, UnavailableNodes:node[1-2]"
    assert list(reasons.lines(waiting(unavailable))) == [f"Allocation 12_1 waits: {unavailable}"]


def test_alternating_reasons_are_reported_again_only_after_a_long_time() -> None:
    clock = Clock()
    reasons = WaitReasons(clock)
    told = []
    for reason in ("Priority", "Resources") * 10:
        told += reasons.lines(waiting(reason))
        clock.time += 60
    assert [line.rpartition(" ")[2] for line in told] == ["Priority", "Resources"]
    clock.time += 1200
    assert len(list(reasons.lines(waiting("Priority")))) == 1


def test_running_allocations_and_missing_reasons_are_not_reported() -> None:
    running = Allocation("1", "running", "None")
    assert list(WaitReasons().lines([*waiting("None", ""), running])) == []


def test_advice_is_reported_with_the_reason() -> None:
    held = Allocation("12", "pending", "JobHeldUser", advice="Let it go.")
    assert list(WaitReasons().lines([held])) == ["Allocation 12 waits: JobHeldUser. Let it go."]


# ---- orphaned allocations


def note(machine: MachinePaths, number: int, allocation: str, **running: Any) -> None:
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    where: Any = {"process": process, "node": this_node(), "allocation": allocation}
    state = worker_state(number, controller="dead", **where, **running)
    path = machine.worker(number).state
    make_directory(path.parent)
    write_atomically(path, to_json(state.to_dict()))


def test_idle_orphaned_allocations_are_cancelled_at_once_and_busy_ones_when_they_become_idle(
    machine: MachinePaths, scheduler: Scheduler
) -> None:
    idle, busy = allocate_ids(machine, "worker", 2)
    note(machine, idle, "1")
    note(machine, busy, "2", running={7: "2026-01-01T00:00:00+00:00"})
    scheduler.found = {id: Allocation(id, "running") for id in ("1", "2", "3")}
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
