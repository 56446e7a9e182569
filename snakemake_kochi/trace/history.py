"""The history of a run that has ended, goes on or was killed, read from disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.packs import Packs
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import (
    AllocationNote,
    AttemptView,
    JobView,
    RunRecord,
    WorkerState,
    attempts,
    find_job,
    find_worker,
    jobs_of,
    list_allocations,
    list_runs,
    view_ended,
)
from snakemake_kochi.queue.controllers import read_controller
from snakemake_kochi.queue.entries import read_next
from snakemake_kochi.tickets.ticket import now

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobHistory:
    """A job with all its attempts, in order. Its view has a ticket."""

    view: JobView
    attempts: tuple[AttemptView, ...]


@dataclass(frozen=True)
class RunHistory:
    """A run as it was at a `moment`.

    `goes_on`: whether its controller is alive. `workers`: the workers that the run started, and
    the workers that ran its jobs.
    """

    run: RunRecord
    moment: str
    goes_on: bool
    jobs: tuple[JobHistory, ...]
    workers: tuple[WorkerState, ...]
    allocations: tuple[AllocationNote, ...]


def goes_on(machine: MachinePaths, run: RunRecord) -> bool:
    """Whether a run has not ended, and its controller is not known to be dead."""
    if run.ended is not None:
        return False
    try:
        return not read_controller(machine, run.controller).is_dead
    except FileNotFoundError:
        return False  # the controller was killed, and another one has adopted its jobs
    except DamagedFileError:
        return True


def state_of(machine: MachinePaths, run: RunRecord) -> str:
    """running, ended or killed."""
    return "ended" if run.ended else "running" if goes_on(machine, run) else "killed"


def read_history(machine: MachinePaths, run: RunRecord) -> RunHistory:
    """Read the history of a run: some small files for each job number assigned during the run."""
    runs = goes_on(machine, run)
    packs = Packs(machine)
    jobs = tuple(
        JobHistory(view, tuple(attempts(machine, view, packs)))
        for view in _views_of(machine, run, packs)
    )
    return RunHistory(
        run=run,
        moment=now(),
        goes_on=runs,
        jobs=jobs,
        workers=tuple(_workers_of(machine, run, jobs)),
        allocations=tuple(list_allocations(machine, run.controller)),
    )


def _views_of(machine: MachinePaths, run: RunRecord, packs: Packs) -> Iterator[JobView]:
    # Read the live jobs first: a job that ends meanwhile is then found among the ended ones.
    live = {view.job: view for view in _live_jobs(machine, run)}
    for job in sorted({*range(run.first_job, _last_job(machine, run) + 1), *run.adopted}):
        try:
            view = view_ended(machine, job, packs) or live.get(job)
            if view is None and machine.job(job).directory.exists():
                view = find_job(machine, job)  # requeued meanwhile, or a job of another run
        except KochiError as error:
            _log.warning("%s", error.message)
            continue
        if view is None or view.ticket is None:
            continue
        if view.ticket.controller == run.controller or job in run.adopted:
            yield view


def _live_jobs(machine: MachinePaths, run: RunRecord) -> list[JobView]:
    try:
        queues = read_controller(machine, run.controller).queues
    except FileNotFoundError:
        return []  # the controller removes its file after the ends of all its jobs
    except DamagedFileError:
        queues = None
    return jobs_of(machine, [run.controller], queues)


def _last_job(machine: MachinePaths, run: RunRecord) -> int:
    if run.last_job is not None:
        return run.last_job
    # A killed run ended before the next run of its directory began: two never run at a time.
    later = [
        other.first_job
        for other in list_runs(machine, run.directory)
        if other.started > run.started
    ]
    return min((*later, read_next(machine, "job"))) - 1


def _workers_of(
    machine: MachinePaths, run: RunRecord, jobs: tuple[JobHistory, ...]
) -> Iterator[WorkerState]:
    had = {attempt.worker for job in jobs for attempt in job.attempts}
    begun = range(run.first_worker, read_next(machine, "worker"))
    for number in sorted({*begun, *(worker for worker in had if worker is not None)}):
        try:
            worker = find_worker(machine, number)
        except KochiError:
            continue  # the worker never registered, or its file is damaged
        if number in had or worker.controller == run.controller:
            yield worker
