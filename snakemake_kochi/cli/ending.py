"""`kochi cancel` and `kochi release`: end jobs and workers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from humanfriendly.text import pluralize

from snakemake_kochi.cli.options import (
    JOB,
    WORKER,
    json_option,
    machine_option,
    quiet_option,
    yes_option,
)
from snakemake_kochi.cli.output import agreed, print_json, remark, say
from snakemake_kochi.cli.show.jobs import belongs_to
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.locks import read_lock_settings
from snakemake_kochi.queue.by_hand import cancel_all, order_release
from snakemake_kochi.queue.views import (
    RequestedWorker,
    WorkerView,
    find_worker,
    list_jobs,
    list_workers,
    requested_workers,
)
from snakemake_kochi.tickets.history import JobId

_SENTENCES = {
    "cancelled": "Job {} was cancelled.",
    "cancelling": "Job {} is being cancelled by its worker.",
    "ended": "Job {} had ended already.",
}


@click.command()
@machine_option
@click.option("-a", "--all", "all_jobs", is_flag=True, help="Cancel all jobs of this project.")
@yes_option
@quiet_option
@json_option
@click.argument("jobs", nargs=-1, type=JOB, metavar="JOB...")
def cancel_command(
    machine: str | None,
    all_jobs: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
    jobs: Sequence[JobId],
) -> int:
    """Cancel waiting and running jobs, with all their processes."""
    if bool(jobs) == all_jobs:
        raise click.UsageError("either numbers of jobs or -a was expected")
    location = find_location(machine)
    location.require_here()
    if read_lock_settings(location.machine_paths) is None:
        location.prepare_machine()
    else:
        # Whatever the configuration says by now: users cancel jobs in order to change it.
        location.secure(location.machine_paths.directory)
    if all_jobs:
        jobs = _jobs_of_project(location)
        which = f"{pluralize(len(jobs), 'job')}: {' '.join(map(str, jobs))}"
        if jobs and not agreed(f"Cancel {which}?", yes):
            return 1
        if not jobs and not as_json:
            say("This project has no waiting or running jobs.", quiet)
    outcomes = []
    failed = False
    found = cancel_all(location.machine_paths, jobs)
    for job in dict.fromkeys(jobs):
        outcome = found[job]
        if isinstance(outcome, Exception):
            # The other jobs are cancelled all the same.
            remark(f"kochi: job {job}: {outcome}")
            failed = True
            continue
        outcomes.append({"job": job, "outcome": outcome})
        if not as_json:
            say(_SENTENCES[outcome].format(job), quiet)
    if as_json:
        print_json(outcomes)
    return int(failed)


def _jobs_of_project(location: Location) -> list[JobId]:
    """The project's jobs, the waiting ones first: a worker with a cancelled job would start one."""
    project = location.require_project()
    views = list_jobs(location.machine_paths, ended=False, limit=sys.maxsize)
    own = [view for view in views if belongs_to(view, project)]
    return [view.job for view in sorted(own, key=lambda view: view.state != "waiting")]


@click.command()
@machine_option
@click.option(
    *("-q", "--queue", "queues"),
    metavar="QUEUE",
    multiple=True,
    help="Release all workers that serve this queue. May be given several times.",
)
@click.option("--now", is_flag=True, help="Release them at once, and requeue their running jobs.")
@quiet_option
@json_option
@click.argument("workers", nargs=-1, type=WORKER, metavar="WORKER...")
def release_command(
    machine: str | None,
    queues: tuple[str, ...],
    now: bool,
    quiet: bool,
    as_json: bool,
    workers: Sequence[int],
) -> int:
    """Release workers and their allocations.

    The workers take no more jobs, finish the jobs that they have, and leave. The workers that a run
    has started end with the run.
    """
    if bool(workers) == bool(queues):
        raise click.UsageError("either numbers of workers or -q QUEUE was expected")
    location = find_location(machine)
    location.require_here()
    for queue in queues:
        location.machine_paths.queue(queue)
    location.secure(location.machine_paths.directory)
    requested = requested_workers(location.machine_paths)
    how = "now" if now else "finish"
    outcomes = []
    has_failed = False
    for worker in dict.fromkeys(workers or _serving(location, queues, requested)):
        try:
            if worker in requested:
                outcome, said = release_before_it_starts(location, requested[worker], how)
            else:
                outcome, said = _release(location, find_worker(location.machine_paths, worker), how)
        except KochiError as error:
            # The other workers are released all the same.
            remark(f"kochi: {error.sentences}")
            has_failed = True
            continue
        outcomes.append({"worker": worker, "outcome": outcome})
        if not as_json:
            say(said, quiet)
    if as_json:
        print_json(outcomes)
    return int(has_failed)


def _serving(
    location: Location, queues: Sequence[str], requested: Mapping[int, RequestedWorker]
) -> list[int]:
    """The workers that serve one of the queues and belong to no run, and those that will."""
    machine = location.machine_paths
    found = [
        worker.worker
        for worker in list_workers(machine)
        if not worker.is_gone and worker.controller is None and {*worker.queues} & {*queues}
    ]
    for number, each in requested.items():
        if {*each.queues} & {*queues}:
            found.append(number)
    if not found:
        raise KochiError(
            f"no worker that you started serves queue {' or '.join(queues)} on machine "
            f"{machine.name}",
            "To list the workers, type: kochi show workers",
        )
    return found


def _release(location: Location, worker: WorkerView, how: str) -> tuple[str, str]:
    """Release a worker; returns the outcome in a word, and in a sentence. Raises KochiError."""
    number = worker.worker
    if worker.is_gone:
        state = worker.state
        return state, f"Worker {number} {'had left already' if state == 'left' else 'is lost'}."
    if worker.controller is not None:
        raise KochiError(
            f"worker {number} belongs to run {worker.controller}, and ends with it",
            "To end the run, press Ctrl-C there, or type: kochi launch --stop",
        )
    order_release(location.machine_paths, number, how)
    # That of a worker beside a person's shell stays: it is the shell's.
    asked = Path(location.machine_paths.layout.worker(number).asked)
    is_own = worker.allocation and is_there(asked)
    back = f", which ends allocation {worker.allocation}" if is_own else ""
    jobs = ", ".join(map(str, worker.running))
    which = f"job{'s' * (len(worker.running) > 1)} {jobs}"
    if not jobs:
        return "leaving", f"Worker {number} was told to leave: it leaves at once{back}."
    if how == "now":
        are = "are" if len(worker.running) > 1 else "is"
        return "leaving", f"Worker {number} was told to leave{back}: {which} {are} requeued."
    return "finishing", f"Worker {number} was told to leave when it has finished {which}{back}."


def release_before_it_starts(
    location: Location, requested: RequestedWorker, how: str
) -> tuple[str, str]:
    """Release a worker that has not started.

    It may start at this moment. It then sees the release before it takes a job, or it has started
    already and may have a job.
    """
    from snakemake_kochi.allocation.workers import make_scheduler
    from snakemake_kochi.schedulers.interface import UnreachableError, not_ended

    order_release(location.machine_paths, requested.worker, how)
    if is_there(Path(location.machine_paths.layout.worker(requested.worker).facts)):
        return _release(location, find_worker(location.machine_paths, requested.worker), how)
    begun = f"Worker {requested.worker} has not started yet"
    if location.machine.scheduler is None:
        return "asked", f"{begun}: it will leave as soon as it starts."
    scheduler = make_scheduler(location.machine, requested.owner, None)
    with contextlib.suppress(UnreachableError):
        found = scheduler.find()
        if found is not None and requested.allocation not in not_ended(found):
            said = f"its allocation {requested.allocation} no longer exists"
            return "gone", f"Worker {requested.worker} will not start: {said}."
    scheduler.cancel([requested.allocation])
    return "cancelled", f"{begun}: its allocation {requested.allocation} was cancelled."
