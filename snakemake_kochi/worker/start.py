"""Becoming a worker: a number, a registration, a log, and then the loop."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.files import make_directory, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.ids import allocate_ids
from snakemake_kochi.queue.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.workers import WorkerState, assign_queues, read_queues
from snakemake_kochi.worker.echo import WIDTH, Echo
from snakemake_kochi.worker.node import capacity_of_this_node
from snakemake_kochi.worker.runners import CommandRunner
from snakemake_kochi.worker.signals import adopt_orphans
from snakemake_kochi.worker.worker import Worker, WorkerSettings

_log = logging.getLogger(__name__)

# It makes every Snakemake that a job runs load the profile of the one that handed the job over.
_NOT_FOR_JOBS = ("SNAKEMAKE_PROFILE",)


def run_worker(
    machine: MachinePaths,
    queues: Sequence[str],
    *,
    cores: int | None = None,
    stay: bool = False,
    environment: Mapping[str, str] | None = None,
    echo: bool = False,
    parent: int | None = None,
    worker: int | None = None,
    controller: str | None = None,
    idle_wait: float = 2.0,
    grace: float = 5.0,
) -> int:
    """Be a worker; return its exit status when it leaves.

    `queues` may be empty when `worker`, a number from `allocate_ids`, was given its queues by
    `assign_queues`. `cores` defaults to those this process may run on, `environment` (of the jobs)
    to this process's own. Without `stay` it leaves when its queues are empty. With `echo` the
    jobs' output is shown. With `controller`, the identity of an inbox, it claims the tickets of
    that controller and no others. It leaves when the process `parent` ends. SIGTERM, SIGINT,
    SIGUSR1 and SIGHUP end the jobs within `grace` seconds and put them back; a second one does it
    at once. `idle_wait` is in seconds.

    Runs in the main thread of a process with no other threads and no other children. Raises
    KochiError for names that cannot be used, and WorkerError when the number is taken.
    """
    for name in queues:
        machine.queue(name)
    if controller is not None:
        machine.controller(controller)
    state = _register(machine, queues, cores, worker, controller)
    own = dict(os.environ) if environment is None else dict(environment)
    settings = WorkerSettings(
        environment={name: own[name] for name in own if name not in _NOT_FOR_JOBS},
        stay=stay,
        parent=None if parent is None else _identify(parent),
        idle_wait=idle_wait,
        grace=grace,
    )
    shown = Echo(jobs=echo)
    with _log_to_file(machine, state.worker):
        _log.info("worker %d started on machine %s: %s", state.worker, machine.name, state)
        shown.say(f"Kochi worker {state.worker} started on machine {machine.name}.", "=" * WIDTH)
        adopt_orphans()
        try:
            status = Worker(machine, state, settings, CommandRunner(), shown).run()
        except BaseException:
            _log.exception("worker %d failed", state.worker)
            raise
        _log.info("worker %d left", state.worker)
    return status


def _register(
    machine: MachinePaths,
    queues: Sequence[str],
    cores: int | None,
    worker: int | None,
    controller: str | None,
) -> WorkerState:
    """Write the worker's state for the first time, before it can claim anything."""
    number = allocate_ids(machine, "worker", 1)[0] if worker is None else worker
    paths = machine.worker(number)
    make_directory(paths.directory)
    if queues:
        assign_queues(machine, number, queues)
    try:
        served = read_queues(machine, number)
    except FileNotFoundError as error:
        raise WorkerError(
            f"worker {number} on machine {machine.name} has no queue to serve", "Use --queue NAME."
        ) from error
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    started = now()
    state = WorkerState(
        worker=number,
        state="running",
        process=own,
        node=this_node(),
        queues=served,
        capacity=capacity_of_this_node(cores),
        started=started,
        updated=started,
        controller=controller,
    )
    if not write_exclusively(paths.state, to_json(state.to_dict())):
        raise WorkerError(
            f"worker {number} on machine {machine.name} was started before",
            "Leave --worker out to get a number of its own.",
        )
    return state


def _identify(pid: int) -> ProcessIdentity:
    # One that is gone already has no start time; with this one nothing is found alive.
    return ProcessIdentity.of(pid) or ProcessIdentity(pid, -1)


@contextlib.contextmanager
def _log_to_file(machine: MachinePaths, worker: int) -> Iterator[None]:
    """Messages of the worker and of the queues it serves go to its log, warnings to stderr too."""
    logger = logging.getLogger("snakemake_kochi")
    level = logger.level
    to_file = logging.FileHandler(
        machine.worker(worker).log, encoding="utf-8", errors="backslashreplace"
    )
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    to_terminal = logging.StreamHandler()
    to_terminal.setLevel(logging.WARNING)
    to_terminal.setFormatter(logging.Formatter("kochi worker: %(message)s"))
    logger.setLevel(logging.INFO)
    for handler in (to_file, to_terminal):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in (to_file, to_terminal):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
