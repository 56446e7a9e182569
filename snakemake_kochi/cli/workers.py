"""`kochi work` and `kochi alloc`: workers that a person starts, here or in allocations."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from snakemake_kochi.cli.options import COUNT, duration, machine_option, memory
from snakemake_kochi.errors import KochiError

if TYPE_CHECKING:
    from snakemake_kochi.allocation.request import WorkerCommand
    from snakemake_kochi.location import Location
    from snakemake_kochi.queue.views import WorkerView
    from snakemake_kochi.schedulers.commands import WaitReasons
    from snakemake_kochi.schedulers.interface import Allocation, Scheduler

_NODES = "${nodes}"
# Seconds between two questions to the scheduler until a worker has started.
_QUESTION = 5.0
# Looks without a new line, after which an allocation whose worker has left prints nothing more.
_LAST_LOOKS = 10
# Seconds before each question why allocations wait; a scheduler knows the reason a moment later.
_LOOKS = (0.2, 0.6, 1.2)


@click.command()
@machine_option
@click.option(
    *("-q", "--queue", "queues"),
    metavar="QUEUE",
    multiple=True,
    required=True,
    help="The queue to serve. May be given several times; the first has priority.",
)
@click.option("-b", "--blocking", is_flag=True, help="Do not leave when the queues are empty.")
@click.option(
    "--cores",
    type=COUNT,
    metavar="N",
    help="Cores for jobs; by default those that this process may use.",
)
@click.option(
    "--memory",
    type=memory,
    help="Memory for jobs, for example 16G; by default what this process may use.",
)
@click.option(
    "--gpus",
    metavar="N|NAMES",
    help="GPUs for jobs: their number, or the index or UUID of each, separated by commas; "
    "by default those that this process may use.",
)
@click.option(
    "--walltime",
    type=duration,
    help="How long the worker may run, for example 2h; by default the limit of its Slurm job. It "
    "leaves jobs that need longer to other workers.",
)
def work_command(
    machine: str | None,
    queues: tuple[str, ...],
    blocking: bool,
    cores: int | None,
    memory: int | None,
    gpus: str | None,
    walltime: float | None,
) -> int:
    """Run the jobs of queues in this terminal until there are none."""
    from snakemake_kochi.location import find_location
    from snakemake_kochi.worker.settings import WorkerSettings
    from snakemake_kochi.worker.terminal import work

    location = find_location(machine, asks=True)
    location.prepare_machine()
    settings = WorkerSettings(
        str(location.root.directory),
        location.machine.name,
        queues,
        cores=cores,
        memory_mb=memory,
        gpus=gpus,
        walltime=walltime,
        stay=blocking,
        echo=True,
    )
    for queue in queues:
        location.machine_paths.queue(queue)
    return work(settings)


@dataclass(frozen=True)
class _RequestedAllocation:
    """A requested allocation: its worker, its id, its scheduler and its command."""

    worker: int
    id: str
    scheduler: Scheduler
    command: WorkerCommand


@click.command()
@machine_option
@click.option(
    *("-q", "--queue"),
    metavar="QUEUE",
    required=True,
    help="The queue to serve; ${nodes} in it stands for the node specification of -n.",
)
@click.option(
    *("-n", "--nodes", "specs"),
    metavar="SPEC",
    multiple=True,
    help="The nodes. With 'scheduler: slurm' their number or names; an alloc_script gets the "
    "text in KOCHI_ALLOC_NODE_SPEC. May be given several times; each requests an allocation.",
)
@click.option(
    *("-d", "--duplicates", "count"),
    type=COUNT,
    metavar="COUNT",
    default=1,
    show_default=True,
    help="How many allocations to request for each SPEC.",
)
@click.option(
    *("-t", "--time-limit", "limit"),
    metavar="LIMIT",
    help="The time limit of each allocation; by default that of kochi.yaml. An alloc_script gets "
    "the text in KOCHI_ALLOC_TIME_LIMIT.",
)
@click.option("-f", "--follow", is_flag=True, help="Show what the workers print, until they leave.")
@click.option(
    "-b", "--blocking", is_flag=True, help="The workers do not leave when the queue is empty."
)
def alloc_command(
    machine: str | None,
    queue: str,
    specs: tuple[str, ...],
    count: int,
    limit: str | None,
    follow: bool,
    blocking: bool,
) -> int:
    """Request workers for a queue from the machine's scheduler or by its alloc_script.

    The workers run all jobs of that queue and leave when there are none. Their memory is that of
    kochi.yaml, or the scheduler's default. Ctrl-C ends -f, not the workers.
    """
    from snakemake_kochi.cli.output import remark
    from snakemake_kochi.location import find_location

    location = find_location(machine, asks=True)
    location.require_here()
    if _NODES in queue and not specs:
        raise click.UsageError(f"-n SPEC was expected, because the queue's name contains {_NODES}")
    queues = [queue.replace(_NODES, spec) for spec in specs] or [queue]
    for name in queues:
        location.machine_paths.queue(name)
    location.prepare_machine()
    requested = []
    for name, spec in zip(queues, specs or (None,), strict=True):
        requested += _request(location, name, spec, count, limit, blocking)
    if blocking:
        numbers = " ".join(str(each.worker) for each in requested)
        remark(
            f"The workers stay until their time limit, or until you type: kochi release {numbers}"
        )
    if follow:
        return _follow(requested)
    _say_why_they_wait(requested)
    return 0


def _request(
    location: Location, queue: str, spec: str | None, count: int, limit: str | None, blocking: bool
) -> list[_RequestedAllocation]:
    from snakemake_kochi.allocation.request import WorkerCommand, unmet_cores, wanted_by_hand
    from snakemake_kochi.allocation.workers import make_scheduler
    from snakemake_kochi.cli.output import remark, say
    from snakemake_kochi.files import make_directory
    from snakemake_kochi.location import with_file_to_edit
    from snakemake_kochi.queue.by_hand import note_requested, reserve_workers
    from snakemake_kochi.queue.views import RequestedWorker
    from snakemake_kochi.schedulers.script import AllocScript
    from snakemake_kochi.worker.settings import WorkerSettings

    machine = location.machine
    settings = machine.allocation
    if not machine.has_allocations:
        if location.unread is not None:
            raise location.unread
        raise KochiError(
            f"machine {machine.name} has neither a scheduler nor an alloc_script, by which "
            "compute nodes are requested",
            "Choose a machine that has one with -m, or start a worker here: "
            f"kochi work -q {queue}\n"
            "On a login node of a Slurm cluster, add it as a machine: kochi init --machine",
        )
    settings = replace(settings, node_spec=spec or settings.node_spec)
    if machine.scheduler is not None and limit is not None:
        settings = replace(settings, time=seconds_of_limit(limit))
    # A name of its own: it finds an allocation that was submitted although the answer was lost.
    name = f"kochi-{location.unique_name('alloc')}"
    scheduler = make_scheduler(replace(machine, allocation=settings), name, limit)
    wanted = wanted_by_hand(scheduler, settings, count, location.purpose(f"queue={queue}"))
    if unmet := unmet_cores(machine, scheduler.limits()):
        remark(unmet)
    if machine.scheduler is not None and not wanted.memory_mb:
        at = with_file_to_edit(machine).allocation_at(["memory"])
        remark(
            f"No memory is set: each allocation ({wanted.describe()}) has the scheduler's default, "
            "which a cluster may enforce. When its worker has started, kochi show workers says how "
            f"much that is. To request more, set {at}"
        )
    numbers = reserve_workers(location.machine_paths, count)
    for_workers = WorkerSettings(
        str(location.root.directory), machine.name, (queue,), stay=blocking, echo=True
    )
    command = WorkerCommand(for_workers, machine.load_env_on_machine, first_worker=numbers.start)
    make_directory(location.machine_paths.allocations)
    ids = scheduler.submit(wanted, command, ())
    for worker, each in zip(numbers, ids, strict=False):
        request = RequestedWorker(worker, [queue], each, name)
        note_requested(location.machine_paths, request)
        say(
            f"Requested worker {worker} for queue {queue}: allocation {each}, "
            f"log, once it runs: {command.log(each)}"
        )
        if isinstance(scheduler, AllocScript) and (process := scheduler.process(each)) is not None:
            remark(
                "Its alloc_script keeps running. To end it and its worker, type: "
                f"kill -- -{process}"
            )
    return [
        _RequestedAllocation(worker, each, scheduler, command)
        for worker, each in zip(numbers, ids, strict=False)
    ]


def seconds_of_limit(limit: str) -> float:
    """A time limit that a person typed, in seconds."""
    from snakemake_kochi.quantities import walltime_of

    try:
        return walltime_of(limit)
    except ValueError as error:
        raise click.BadParameter(f"{limit!r}: {error}", param_hint="-t") from error


def _say_why_they_wait(requested: list[_RequestedAllocation]) -> None:
    """Report why allocations wait, as far as the scheduler knows it soon.

    An allocation that never begins is no error: its obstacle may be removed.
    """
    from snakemake_kochi.cli.output import remark
    from snakemake_kochi.schedulers.commands import WaitReasons

    reasons = WaitReasons()
    for pause in _LOOKS:
        time.sleep(pause)
        waiting = _waiting(requested)
        lines = list(reasons.lines(waiting))
        for line in lines:
            remark(line)
        if any(each.advice for each in waiting):
            words = {each.scheduler.how_to_cancel: None for each in requested}
            remark(f"To cancel these allocations, type: {'; '.join(words)}")
        if lines or not waiting:
            return


def _waiting(requested: list[_RequestedAllocation]) -> list[Allocation]:
    """The allocations that wait, as far as this is known."""
    from snakemake_kochi.schedulers.interface import UnreachableError

    ids = {each.id for each in requested}
    found: dict[str, Allocation] = {}
    for scheduler in {id(each.scheduler): each.scheduler for each in requested}.values():
        with contextlib.suppress(UnreachableError):
            found |= scheduler.find() or {}
    return [
        each
        for each in found.values()
        if each.id in ids and each.state == "pending" and each.is_certain
    ]


def _follow(requested: list[_RequestedAllocation]) -> int:
    """Show their logs, each from its beginning, until the workers have left.

    Returns 1 if an allocation ended before its worker started.
    """
    from snakemake_kochi.backoff import Backoff
    from snakemake_kochi.cli.output import copy_from
    from snakemake_kochi.queue.views import list_workers
    from snakemake_kochi.schedulers.commands import WaitReasons

    reasons = WaitReasons()
    positions = dict.fromkeys((each.id for each in requested), 0)
    left = {each.id: each for each in requested}
    ended: Counter[str] = Counter()  # looks since its end at which it had printed nothing new
    question = Backoff()
    has_failed = False
    while left:
        workers = list_workers(requested[0].command.machine)
        there = [worker for worker in workers if worker.allocation in left]
        over = {each for each in left if _have_left(there, each)}
        if question.is_due:
            question.hold(_QUESTION)
            waiting = {*left} - {*ended} - {worker.allocation for worker in there}
            without = _ended_without_worker([left[each] for each in waiting], reasons)
            has_failed |= bool(without)
            over |= without
        for each in list(left.values()):
            before = positions[each.id]
            positions[each.id] = copy_from(each.command.log(each.id), before)
            if each.id in over or each.id in ended:
                ended[each.id] = ended[each.id] + 1 if positions[each.id] == before else 0
            if ended[each.id] == _LAST_LOOKS:
                del left[each.id]
        sys.stdout.flush()
        time.sleep(0.2 if left else 0)
    return 1 if has_failed else 0


def _have_left(workers: list[WorkerView], allocation: str) -> bool:
    own = [worker for worker in workers if worker.allocation == allocation]
    return bool(own) and all(worker.is_gone for worker in own)


def _ended_without_worker(requested: list[_RequestedAllocation], reasons: WaitReasons) -> set[str]:
    """The ids of the allocations that have ended, as far as this can be known.

    Reports each of them, and why others wait.
    """
    from snakemake_kochi.cli.output import remark
    from snakemake_kochi.schedulers.interface import UnreachableError

    ended = set()
    for each in requested:
        try:
            found = each.scheduler.find()
        except UnreachableError as error:
            remark(f"kochi: the scheduler does not answer; trying again: {error.message}")
            continue
        allocation = None if found is None else found.get(each.id)
        if found is None or (allocation is not None and allocation.state != "ended"):
            if allocation is not None and allocation.is_certain:
                for line in reasons.lines([allocation]):
                    remark(line)
            continue
        why = f": {allocation.reason}" if allocation is not None else ""
        remark(f"kochi: allocation {each.id} ended before its worker started{why}")
        ended.add(each.id)
    return ended
