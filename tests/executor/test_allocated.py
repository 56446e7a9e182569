"""Requests and cancellations as jobs and workers of a run on tickets come and go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_kochi.allocation.request import WorkerCommand
from snakemake_kochi.allocation.sizing import workers_to_request
from snakemake_kochi.errors import WorkerError
from snakemake_kochi.executor import allocated, allocations
from snakemake_kochi.executor.allocated import _Provision, _Worker
from snakemake_kochi.executor.allocations import Allocations
from snakemake_kochi.paths import Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue.paused import PausedBatch, PausedBatches, pause, resume
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
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Kind, Resources, Ticket

SMALL, LARGE = Resources(cores=1), Resources(cores=4)


class Scheduler:
    """Grants all requests; notes requests and cancellations."""

    can_exclude = True
    lacks = None
    how_to_cancel = ""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.wanted: list[Wanted] = []
        self.first: list[tuple[Kind, ...]] = []
        self.cancelled: list[str] = []
        self.told_to_leave: list[str] = []
        self.found: dict[str, Allocation] | None = None

    def limits(self, request: AllocationRequest = NO_REQUEST) -> Limits:
        return self._limits

    def submit(self, wanted: Wanted, worker: WorkerCommand, known: Collection[str]) -> list[str]:
        self.wanted.append(wanted)
        self.first.append(worker.settings.first)
        return [f"{len(self.wanted)}_{index}" for index in range(wanted.count)]

    def find(self) -> dict[str, Allocation] | None:
        return self.found

    def ends(self, ids: Collection[str]) -> dict[str, Allocation]:
        return {}

    def cancel(self, ids: Iterable[str] = ()) -> None:
        self.cancelled += ids

    def tell_to_leave(self, ids: Collection[str]) -> None:
        self.told_to_leave += ids


class Run:
    """The jobs and the workers of a run, and what is requested for them."""

    def __init__(
        self,
        directory: Path,
        patch: pytest.MonkeyPatch,
        workers: int,
        least: int = 0,
        steady: float = 0.0,
        **limits: Any,
    ) -> None:
        self.now = 1000.0
        self.sized: list[Any] = []  # what was asked whenever requests were computed
        time = SimpleNamespace(monotonic=lambda: self.now)
        patch.setattr(allocated, "time", time)
        patch.setattr(allocations, "time", time)
        patch.setattr(allocated, "_STEADY", steady)
        patch.setattr(allocations, "_AFTER_REFUSAL", 0.0)
        patch.setattr(allocated, "workers_to_request", self._size)
        self.scheduler: Any = Scheduler(Limits(workers, Capacity(8, 16_000), **limits))
        settings = AllocationSettings(max_workers=workers, min_workers=least)
        root, logger = Root(directory), logging.getLogger("test")
        self.paths = root.machine("own")
        location: Any = SimpleNamespace(
            root=root, machine=Machine("own", allocation=settings), machine_paths=self.paths
        )
        stopping: Any = None
        own = location, 1, self.scheduler, stopping, logger
        self.allocations = Allocations(*own)  # type: ignore[arg-type]
        self._provision = _Provision(location, self.allocations, logger)  # type: ignore[arg-type]
        self._provision._paused = PausedBatches(self.paths, seconds=lambda: self.now)
        self.pending: dict[str, dict[tuple[int, int], Ticket]] = {"a": {}, "b": {}}
        self.workers: list[_Worker] = []
        self.came: set[str] = set()  # the allocations that have had a worker

    def _size(self, *given: Any) -> Any:
        self.sized.append(given)
        return workers_to_request(*given)

    def wait(self, queue: str, *wanted: Resources) -> None:
        """These jobs wait, and no others."""
        self.pending[queue] = {
            (1, job): Ticket("x", ("x",), "/", resources=each, labels={"rule": "one"})
            for job, each in enumerate(wanted, 1)
        }

    def come(
        self, queue: str, allocation: str, cores: int, held: int = 0, seen: float = 0.0, **how: Any
    ) -> None:
        """A worker comes; it has the job of that number."""
        pulse: Any = None
        given = {"seconds": None, "facts": {"until": None}, "pulse": pulse, **how}
        worker = _Worker("1", queue, allocation, Capacity(cores, 16_000), **given)
        worker.held, worker.seen = ({(1, held)} if held else set()), self.now + seen
        self.workers.append(worker)

    def leave(self, allocation: str) -> None:
        self.workers = [worker for worker in self.workers if worker.allocation != allocation]

    def look(self, times: int = 2) -> None:
        for _ in range(times):
            there = {worker.allocation for worker in self.workers}
            self.came |= there
            self.allocations.look(there, lambda: self.came)
            held = {key for worker in self.workers for key in worker.held}
            for queue in self.pending:
                self._provision(queue, NO_REQUEST, self.pending, self.workers, held)

    @property
    def cores(self) -> list[int]:
        """The cores of each submission."""
        return [wanted.cores for wanted in self.scheduler.wanted]


Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    tmp_path.chmod(0o700)
    return lambda **options: Run(tmp_path, monkeypatch, **options)


def test_a_worker_that_stays_and_that_no_job_fits_makes_room_for_one_that_jobs_fit(
    make: Make,
) -> None:
    run = make(workers=1, least=1)
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


def test_a_request_names_the_project_and_the_rules_whose_jobs_wait(make: Make) -> None:
    run = make(workers=3)
    run.wait("a", SMALL, SMALL, SMALL)
    rules = ("made", "sort", "cut")
    run.pending["a"] = {
        key: replace(ticket, labels={"project": "/home/me/fib", "rule": rule})
        for (key, ticket), rule in zip(run.pending["a"].items(), rules, strict=True)
    }
    run.come("a", "0_0", 1, held=1)
    run.look()
    assert [wanted.purpose for wanted in run.scheduler.wanted] == [
        "kochi:project=fib:rules=cut,sort"
    ]


def test_a_worker_is_told_for_which_jobs_it_is_requested(make: Make) -> None:
    run = make(workers=3)
    long = replace(SMALL, runtime_seconds=36_000)
    run.wait("a", *[replace(SMALL, runtime_seconds=60)] * 4, long)
    run.look()
    of_long = [any(kind.has(long) for kind in first) for first in run.scheduler.first]
    assert sorted(of_long) == [False, True]


def test_no_worker_is_requested_for_the_jobs_of_a_paused_batch(make: Make) -> None:
    run = make(workers=2)
    run.wait("a", SMALL)
    labels = {"experiment": "fib.yaml", "batch": "scaling"}
    run.pending["a"] = {k: replace(t, labels=labels) for k, t in run.pending["a"].items()}
    batch = PausedBatch("/", "fib.yaml", "scaling")
    pause(run.paths, batch)
    run.look()
    assert run.cores == []
    resume(run.paths, batch)
    run.now += 3600
    run.look()
    assert run.cores == [1]


def test_requests_are_not_computed_before_it_is_time(make: Make) -> None:
    run = make(workers=2, steady=3600.0)
    run.wait("a", SMALL, SMALL)
    run.come("a", "9_0", cores=1, held=1)
    run.look(5)
    assert run.sized == [] and run.cores == []
    run.now += 3600
    run.look()
    assert len(run.sized) == len(run.cores) == 1


def test_a_worker_that_stays_makes_room_for_jobs_of_another_queue(make: Make) -> None:
    run = make(workers=1, least=1)
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
    make: Make, least: int
) -> None:
    run = make(workers=3, least=least)
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
    make: Make,
) -> None:
    run = make(workers=3)
    run.wait("b", SMALL)
    run.look()
    run.come("b", "1_0", 1)
    run.wait("b")
    run.wait("a", SMALL)
    run.come("a", "other", 1, held=1)
    run.look()
    assert run.scheduler.told_to_leave == run.scheduler.cancelled == []
    run.wait("a", SMALL, SMALL)
    run.look(3)
    assert run.cores == [1, 1]
    assert run.scheduler.told_to_leave == ["1_0"]


def test_a_worker_with_a_job_and_one_that_jobs_fit_stay(make: Make) -> None:
    run = make(workers=2)
    run.wait("a", SMALL, SMALL)
    run.look()
    run.come("a", "1_0", 1, held=1)
    run.come("a", "1_1", 1)
    run.wait("a", SMALL, SMALL, LARGE)
    run.look()
    assert run.scheduler.told_to_leave == run.scheduler.cancelled == []


def test_no_more_workers_are_requested_if_they_are_always_too_small(
    make: Make,
) -> None:
    run = make(workers=9)
    run.wait("a", LARGE)
    for number in range(1, 8):
        run.look()
        if len(run.cores) == number:
            run.come("a", f"{number}_0", 2, held=2)
            run.wait("a", LARGE, SMALL)
    assert run.cores == [4, 4, 4]
    # The other job has ended.
    run.wait("a", LARGE)
    for worker in run.workers:
        worker.held = set()
    with pytest.raises(
        WorkerError, match=r"rule one: .* none can run it: 4 cores needed, 2 available"
    ):
        run.look()


@pytest.mark.parametrize(("usual", "asked"), [(None, 7260.0), (3600.0, 7260.0), (9000.0, 9000.0)])
def test_workers_that_stay_have_the_time_that_their_jobs_need(
    make: Make, usual: float | None, asked: float
) -> None:
    run = make(workers=1, least=1, seconds=86_400.0, asks_for_all=False, usual=usual)
    run.wait("a", Resources(cores=1, runtime_seconds=7200))
    run.look()
    assert [wanted.seconds for wanted in run.scheduler.wanted] == [asked]


def test_workers_that_are_seen_late_do_not_count_as_unfit(make: Make) -> None:
    """Jobs that take all the available time, and workers that began a minute ago."""
    run = make(workers=9, seconds=3600.0)
    run.wait("a", Resources(cores=4, runtime_seconds=3600))
    for number in range(1, 5):
        run.look()
        until = (datetime.now(UTC) + timedelta(seconds=3540)).isoformat()
        run.come("a", f"{number}_0", 4, facts={"until": until}, seconds=3602.0, seen=-60.0)
    run.look()
    assert run.cores == [4] * 5


def test_an_unreachable_scheduler_is_not_asked_repeatedly_to_cancel(make: Make) -> None:
    run = make(workers=2)
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
    make: Make,
) -> None:
    run = make(workers=2)
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


def test_an_allocation_that_lost_its_worker_is_awaited_if_it_was_requeued(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(workers=1)
    run.wait("a", SMALL)
    run.look()
    run.come("a", "1_0", 1, held=1)
    run.look()
    run.leave("1_0")
    run.scheduler.found = {"1_0": Allocation("1_0", "pending")}
    run.look()
    assert caplog.text.count("The scheduler requeued allocation 1_0") == 1
    assert [each.is_coming for each in run.allocations.all()] == [True]
    assert run.cores == [1]
    run.scheduler.found = {}
    run.allocations.questions.at_once()
    run.look()
    assert [each.id for each in run.allocations.all()] == ["2_0"]


@pytest.mark.parametrize("reason", ["", "NodeFail"])
def test_ends_before_a_worker_came(
    make: Make, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    run = make(workers=1)
    run.wait("a", SMALL)
    run.look()
    end = Allocation("1_0", "ended", reason, nodes="node1", was_cancelled=not reason)
    run.scheduler.found = {"1_0": end}
    run.allocations.questions.at_once()
    run.look()
    cancelled = "Cancelled before a worker started, and not by this run: 1_0" in caplog.text
    failed = "Allocation ended before its worker started: 1_0 on node node1" in caplog.text
    assert (cancelled, failed) == (not reason, bool(reason))
