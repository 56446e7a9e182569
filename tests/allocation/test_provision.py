"""Requests and cancellations as jobs and workers come and go."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from support import wait_until, worker_state

from snakemake_kochi.allocation.allocated_workers import AllocatedWorkers
from snakemake_kochi.allocation.ending import end_allocations
from snakemake_kochi.allocation.failures import FailedStarts
from snakemake_kochi.allocation.provision import Provision
from snakemake_kochi.allocation.request import WorkerCommand
from snakemake_kochi.allocation.sizing import workers_to_request
from snakemake_kochi.allocation.submission import Submitter
from snakemake_kochi.allocation.tracker import OrphanedAllocations, Tracker
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.paths import Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue import Capacity, Resources, Ticket, WorkerState
from snakemake_kochi.queue.paused import PausedBatch, PausedBatches, pause, resume
from snakemake_kochi.schedulers.commands import Questions
from snakemake_kochi.schedulers.interface import (
    NO_REQUEST,
    Allocation,
    AllocationRequest,
    AllocationSettings,
    Limits,
    RefusedError,
    UnreachableError,
    Wanted,
)

SMALL, LARGE = Resources(cores=1), Resources(cores=4)


class Scheduler:
    """Grants all requests; notes requests and cancellations."""

    takes_requests = True
    can_exclude = True
    lacks = None
    cancels_waiting = ()
    how_to_cancel = ""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.wanted: list[Wanted] = []
        self.cancelled: list[str] = []
        self.told_to_leave: list[str] = []

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        return self._limits

    def submit(self, wanted: Wanted, worker: WorkerCommand, known: Collection[str]) -> list[str]:
        self.wanted.append(wanted)
        return [f"{len(self.wanted)}_{index}" for index in range(wanted.count)]

    def find(self) -> dict[str, Allocation]:
        return {}

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        return {}

    def cancel(self, ids: Iterable[str] = ()) -> None:
        self.cancelled += ids

    def tell_to_leave(self, ids: Collection[str]) -> None:
        self.told_to_leave += ids

    def give_up(self) -> None: ...


class Run:
    """The jobs and the workers of a run, by queue, and what is requested for them."""

    def __init__(
        self, directory: Path, workers: int, least: int = 0, steady: float = 0.0, **limits: Any
    ) -> None:
        self.scheduler = Scheduler(Limits(workers, Capacity(8, 16_000), **limits))
        self.now = 1000.0
        self.sized = 0  # how often requests were computed
        machine = Machine(
            "own", allocation=AllocationSettings(max_workers=workers, min_workers=least)
        )
        logger: Any = logging.getLogger("test")
        root = Root(directory)
        paths, questions = root.machine("own"), Questions(logger)
        starts = FailedStarts(self.scheduler.can_exclude, logger)
        orphaned = OrphanedAllocations(paths, lambda _: self.scheduler)
        self._tracker = Tracker(paths, self.scheduler, "me", questions, starts, orphaned, logger)
        submitter = Submitter(
            *(root, paths, machine, self.scheduler, "me", self._tracker, questions, starts),
            *(logger, threading.Event()),
            after_refusal=0.0,
        )
        self._provision = Provision(
            *(machine, submitter, self._tracker, starts, logger),
            steady=steady,
            clock=lambda: self.now,
            size=self._size,
            paused=PausedBatches(paths, clock=lambda: self.now),
        )
        self.paths = paths
        self.pending: dict[str, list[Ticket]] = {}
        self.workers: dict[str, list[WorkerState]] = {"a": [], "b": []}

    def _size(self, *given: Any) -> Any:
        self.sized += 1
        return workers_to_request(*given)

    def wait(self, queue: str, *wanted: Resources) -> None:
        """These jobs wait, and no others."""
        self.pending[queue] = [
            Ticket("x", ("x",), "/", resources=each, job=job, labels={"rule": "one"})
            for job, each in enumerate(wanted, 1)
        ]

    def come(self, queue: str, allocation: str, cores: int, **how: Any) -> None:
        number = 1 + sum(map(len, self.workers.values()))
        what: Any = {"queues": (queue,), "capacity": Capacity(cores, 16_000)}
        state = worker_state(number, **{"allocation": allocation, **what, **how})
        self.workers[queue].append(state)

    def leave(self, allocation: str) -> None:
        for found in self.workers.values():
            found[:] = [worker for worker in found if worker.allocation != allocation]

    def look(self, times: int = 2) -> None:
        for _ in range(times):
            self._tracker.note_workers([each for found in self.workers.values() for each in found])
            for queue in self.workers:
                self._provision.provide(queue, NO_REQUEST, self.pending, self.workers)

    @property
    def cores(self) -> list[int]:
        """The cores of each submission."""
        return [wanted.cores for wanted in self.scheduler.wanted]


def test_a_worker_that_stays_and_that_no_job_fits_makes_room_for_one_that_jobs_fit(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, workers=1, least=1)
    run.wait("a", SMALL)
    run.look()
    run.come("a", "1_0", 1)
    run.wait("a", LARGE)
    run.look()
    assert run.scheduler.told_to_leave == ["1_0"]
    assert run.cores == [1]  # it still exists
    run.leave("1_0")
    run.look()
    assert run.cores == [1, 4]


def test_a_request_names_the_project_and_the_rules_whose_jobs_wait(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=3)
    run.wait("a", SMALL, SMALL, SMALL)
    rules = ("made", "sort", "cut")
    run.pending["a"] = [
        replace(ticket, labels={"project": "/home/me/fib", "rule": rule})
        for ticket, rule in zip(run.pending["a"], rules, strict=True)
    ]
    run.come("a", "0_0", 1, running={1: "2026-01-01T00:00:00+00:00"})
    run.look()
    assert [wanted.purpose for wanted in run.scheduler.wanted] == [
        "kochi:project=fib:rules=cut,sort"
    ]


def test_no_worker_is_requested_for_the_jobs_of_a_paused_batch(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=2)
    run.wait("a", SMALL)
    labels = {"experiment": "fib.yaml", "batch": "scaling"}
    run.pending["a"] = [replace(each, labels=labels) for each in run.pending["a"]]
    batch = PausedBatch("/", "fib.yaml", "scaling")
    pause(run.paths, batch)
    run.look()
    assert run.cores == []
    resume(run.paths, batch)
    run.now += 3600
    run.look()
    assert run.cores == [1]


def test_requests_are_not_computed_before_it_is_time(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=2, steady=3600.0)
    run.wait("a", SMALL, SMALL)
    run.come("a", "9_0", cores=1, running={1: "2026-01-01T00:00:00+00:00"})
    run.look(5)
    assert run.sized == 0 and run.cores == []
    run.now += 3600
    run.look()
    assert run.sized == len(run.cores) == 1


def test_a_worker_that_stays_makes_room_for_jobs_of_another_queue(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=1, least=1)
    run.wait("a", SMALL)
    run.look()
    run.come("a", "1_0", 1)
    run.wait("a")
    run.wait("b", LARGE)
    run.look()
    assert run.scheduler.told_to_leave == ["1_0"]
    run.leave("1_0")
    run.look(4)
    # And none for the queue whose jobs have ended.
    assert run.cores == [1, 4]
    run.come("b", "2_0", 4)
    run.look(4)
    assert (run.cores, run.scheduler.told_to_leave) == ([1, 4], ["1_0"])


@pytest.mark.parametrize("least", [0, 1])
def test_a_worker_that_no_job_fits_leaves_its_node_to_a_waiting_allocation(
    tmp_path: Path, least: int
) -> None:
    run = Run(tmp_path, workers=3, least=least)
    run.wait("a", SMALL)
    run.look()
    run.come("a", "1_0", 1)
    run.wait("a", LARGE)
    run.look(1)
    assert run.scheduler.told_to_leave == run.scheduler.cancelled == []  # there may be a free node
    run.look(3)
    assert run.cores[:2] == [1, 4]
    assert run.scheduler.told_to_leave[:1] == ["1_0"]


def test_a_worker_of_another_queue_leaves_its_node_although_jobs_fit_existing_workers(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, workers=3)
    run.wait("b", SMALL)
    run.look()
    run.come("b", "1_0", 1)
    run.wait("b")
    run.wait("a", SMALL)
    run.come("a", "other", 1, running={1: "2026-01-01T00:00:00+00:00"})
    run.look()
    assert run.scheduler.told_to_leave == run.scheduler.cancelled == []
    run.wait("a", SMALL, SMALL)
    run.look(3)
    assert run.cores == [1, 1]
    assert run.scheduler.told_to_leave == ["1_0"]


def test_a_worker_with_a_job_and_one_that_jobs_fit_stay(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=2)
    run.wait("a", SMALL, SMALL)
    run.look()
    run.come("a", "1_0", 1, running={1: "2026-01-01T00:00:00+00:00"})
    run.come("a", "1_1", 1)
    run.wait("a", SMALL, SMALL, LARGE)
    run.look()
    assert run.scheduler.told_to_leave == run.scheduler.cancelled == []


def test_no_more_workers_are_requested_if_they_are_always_too_small(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, workers=9)
    run.wait("a", LARGE)
    for number in range(1, 8):
        run.look()
        if len(run.cores) == number:
            run.come("a", f"{number}_0", 2, running={2: "2026-01-01T00:00:00+00:00"})
            run.wait("a", LARGE, SMALL)
    assert run.cores == [4, 4, 4]
    # The other job has ended.
    run.wait("a", LARGE)
    run.workers["a"] = [replace(worker, running={}) for worker in run.workers["a"]]
    with pytest.raises(
        WorkerError, match=r"rule one: .* none can run it: 4 cores needed, 2 available"
    ):
        run.look()


@pytest.mark.parametrize(("usual", "asked"), [(None, 7260.0), (3600.0, 7260.0), (9000.0, 9000.0)])
def test_workers_that_stay_have_the_time_that_their_jobs_need(
    tmp_path: Path, usual: float | None, asked: float
) -> None:
    run = Run(tmp_path, workers=1, least=1, seconds=86_400.0, asks_for_all=False, usual=usual)
    run.wait("a", Resources(cores=1, runtime_seconds=7200))
    run.look()
    assert [wanted.seconds for wanted in run.scheduler.wanted] == [asked]


def test_workers_that_are_seen_late_do_not_count_as_unfit(tmp_path: Path) -> None:
    """Jobs that take all the available time, and workers that began a minute ago."""
    run = Run(tmp_path, workers=9, seconds=3600.0)
    run.wait("a", Resources(cores=4, runtime_seconds=3600))
    for number in range(1, 5):
        run.look()
        began, until = (datetime.now(UTC) + timedelta(seconds=each) for each in (-60, 3540))
        times = {"allocation_began": began.isoformat(), "until": until.isoformat()}
        run.come("a", f"{number}_0", 4, **times)
    run.look()
    assert run.cores == [4] * 5


def test_an_unreachable_scheduler_is_not_asked_repeatedly_to_cancel(tmp_path: Path) -> None:
    run = Run(tmp_path, workers=2)
    run.wait("a", SMALL)
    run.look()
    run.wait("a")
    calls = []

    def cancel(ids: Iterable[str] = ()) -> None:
        calls.append(list(ids))
        raise UnreachableError("away")

    run.scheduler.cancel = cancel  # type: ignore[method-assign]
    run.look(20)
    assert calls == [["1_0"]]


def test_a_refusal_ends_the_run_only_without_other_workers(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, workers=2)
    run.wait("a", SMALL)
    run.look()

    def refuse(*_: object) -> list[str]:
        raise RefusedError("no more")

    run.scheduler.submit = refuse  # type: ignore[method-assign]
    run.wait("b", SMALL)
    run.look()  # one is coming
    run.come("a", "1_0", 1)
    run.look()
    run.wait("a")
    run.leave("1_0")
    with pytest.raises(RefusedError, match="no more"):
        run.look()


def allocated(directory: Path, scheduler: Scheduler, **how: Any) -> AllocatedWorkers:
    root, machine = Root(directory), Machine("own", allocation=AllocationSettings())
    logger: Any = logging.getLogger("test")
    return AllocatedWorkers(
        *(root, root.machine("own"), machine, lambda _: scheduler, "me", logger), **how
    )


def has_thread() -> bool:
    return any(thread.name == "kochi-allocations" for thread in threading.enumerate())


def test_a_submission_in_progress_at_the_end_is_reported_and_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(Limits(2, Capacity(8, 16_000)))
    scheduler.how_to_cancel = "scancel mine"
    answer, is_asked, cancelled = threading.Event(), threading.Event(), []

    def submit(wanted: Wanted, worker: WorkerCommand, known: Collection[str]) -> list[str]:
        is_asked.set()
        answer.wait(20)
        return ["1"]

    scheduler.submit = submit  # type: ignore[method-assign]
    scheduler.cancel = lambda ids=(): cancelled.append(list(ids))  # type: ignore[method-assign]
    workers = allocated(tmp_path, scheduler, last_patience=0.1)
    workers.look_after({"a": [Ticket("x", ("x",), "/")]})
    workers.serve(["a"])
    assert is_asked.wait(20)
    workers.stop()
    answer.set()
    assert cancelled == [[]]
    assert "To cancel it, type: scancel mine" in caplog.text
    wait_until(lambda: not has_thread())


def test_a_run_goes_on_without_requests_while_its_workers_are_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(Limits(2, Capacity(8, 16_000)))
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        workers = allocated(filesystem.path, scheduler)
        Root(filesystem.path).machine("own").queue("a").make()
        pending = {"a": [Ticket("x", ("x",), "/")]}
        with filesystem.fault("readdir", errno.EIO, "*/subscribers") as fault:
            workers.serve(["a"])
            workers.look_after(pending)
            assert workers.will_serve("a")
            wait_until(lambda: filesystem.count(fault) > 20)
            wait_until(lambda: "cannot check its workers at the moment" in caplog.text)
            workers.look_after(pending)
            assert scheduler.wanted == []
        wait_until(lambda: scheduler.wanted)
        workers.look_after(pending)
        workers.stop()
    assert caplog.text.count("cannot check its workers at the moment") == 1


def test_the_scheduler_is_asked_at_growing_pauses_while_allocations_end() -> None:
    scheduler = Scheduler(Limits(2, Capacity(8, 16_000)))
    left = [{"1": Allocation("1", "running")}] * 20
    pauses: list[float] = []
    scheduler.find = lambda: left.pop() if left else {}  # type: ignore[method-assign]
    logger: Any = logging.getLogger("test")
    end_allocations(scheduler, logger, lambda: False, sleep=pauses.append)
    assert len(pauses) == 20
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.2, 2.0)


@pytest.mark.parametrize(
    ("urgent_after", "patience", "questions"), [(None, 0.0, 1), (0, 45.0, 1), (2, 45.0, 3)]
)
def test_allocations_that_have_not_ended_in_time_or_before_an_urgent_end_are_named(
    caplog: pytest.LogCaptureFixture,
    urgent_after: int | None,
    patience: float,
    questions: int,
) -> None:
    scheduler = Scheduler(Limits(2, Capacity(8, 16_000)))
    asked: list[None] = []

    def find() -> dict[str, Allocation]:
        asked.append(None)
        return {"1": Allocation("1", "running")}

    def is_urgent() -> bool:
        return urgent_after is not None and len(asked) > urgent_after

    scheduler.find = find  # type: ignore[method-assign]
    logger: Any = logging.getLogger("test")
    end_allocations(scheduler, logger, is_urgent, patience, sleep=lambda _: None)
    assert len(asked) == questions
    assert "These cancelled allocations have not ended yet: 1" in caplog.text


def test_an_unreachable_scheduler_is_asked_again_to_cancel_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = Scheduler(Limits(2, Capacity(8, 16_000)))
    scheduler.how_to_cancel = "scancel mine"
    failures = [UnreachableError("away")] * 3

    def cancel(ids: Iterable[str] = ()) -> None:
        if failures:
            raise failures.pop()

    scheduler.cancel = cancel  # type: ignore[method-assign]
    logger: Any = logging.getLogger("test")
    end_allocations(scheduler, logger, lambda: False, sleep=lambda _: None)
    assert caplog.text == ""
    failures += [UnreachableError("away")] * 3
    end_allocations(scheduler, logger, lambda: len(failures) < 2, sleep=lambda _: None)
    assert "could not be cancelled: away" in caplog.text
    assert "type: scancel mine" in caplog.text


@pytest.mark.parametrize(
    ("answers", "cancelled"),
    [
        # The script of one has ended, and nobody knows more of it.
        ([{"1": "running"}, {"2": "unknown"}], [["3"]]),
        ([{"1": "running"}] * 99, [["3"], []]),
        ([None], [["3"], []]),
    ],
    ids=["it leaves", "it stays", "no answer"],
)
def test_an_allocation_whose_worker_leaves_is_not_cancelled(
    answers: list[dict[str, str] | None], cancelled: list[list[str]]
) -> None:
    scheduler = Scheduler(Limits(2, Capacity(8, 16_000)))
    calls: list[list[str]] = []
    left = list(answers)

    def find() -> dict[str, Allocation]:
        found = left.pop(0) if [] not in calls else {}
        if found is None:
            raise UnreachableError("away")
        return {
            id: Allocation(id, "running", is_certain=state != "unknown")
            for id, state in found.items()
        }

    scheduler.find = find  # type: ignore[method-assign]
    scheduler.cancel = lambda ids=(): calls.append(list(ids))  # type: ignore[method-assign]
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    logger: Any = logging.getLogger("test")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.monotonic", lambda: clock[0])
        end_allocations(
            *(scheduler, logger, lambda: False), sleep=sleep, with_worker=["1"], without=["3"]
        )
    assert (scheduler.told_to_leave, calls) == (["1"], cancelled)
    assert clock[0] < 10


@pytest.mark.parametrize("failure", [KochiError("no"), ValueError("a fault of ours")])
def test_an_error_in_the_thread_is_raised_and_the_thread_does_not_start_again(
    tmp_path: Path, failure: Exception
) -> None:
    class Broken(Scheduler):
        @property
        def lacks(self) -> None:  # type: ignore[override]
            raise failure

    workers = allocated(tmp_path, Broken(Limits(2, Capacity(8, 16_000))))
    workers.serve(["a"])
    wait_until(lambda: not has_thread())
    with pytest.raises(type(failure), match=str(failure)):
        workers.look_after({})
    workers.serve(["b"])
    assert not has_thread()
    workers.stop()
