"""The start of a worker: a number, a registration, a log, and then the loop."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import (
    is_there,
    make_directory,
    to_json,
    write_atomically,
    write_exclusively,
)
from snakemake_kochi.heartbeat import heartbeat_interval
from snakemake_kochi.locks.probe import probe_locks
from snakemake_kochi.next.worker.walltime import find_beginning, find_walltime
from snakemake_kochi.node_lock import has_lock, lock_directory
from snakemake_kochi.packing import pack_in_background
from snakemake_kochi.parent_death import adopt_orphans
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.entries import allocate_ids
from snakemake_kochi.queue.jobs import packed_log
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.wakeup import assign_queues, read_queues
from snakemake_kochi.queue.workers import WorkerState
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.worker.node.capacity import Gpus, capacity_of_this_node, find_gpus
from snakemake_kochi.worker.node.devices import CpuLeases, Devices, layout_of
from snakemake_kochi.worker.node.turns import Turns
from snakemake_kochi.worker.orders import Surroundings
from snakemake_kochi.worker.output import WIDTH, Echo, log_to_file
from snakemake_kochi.worker.runners.command import CommandRunner
from snakemake_kochi.worker.runners.interface import Runners
from snakemake_kochi.worker.runners.phase import PhaseRunner
from snakemake_kochi.worker.runners.shell import ShellRunner
from snakemake_kochi.worker.runners.zygote.runner import ZygoteRunner
from snakemake_kochi.worker.settings import WorkerSettings
from snakemake_kochi.worker.signals import Wake
from snakemake_kochi.worker.supervisor import run_supervised
from snakemake_kochi.worker.worker import Worker

_log = logging.getLogger(__name__)

# With this variable each Snakemake that a job runs loads the profile of the Snakemake that
# submitted the job.
_NOT_FOR_JOBS = ("SNAKEMAKE_PROFILE",)


MakeRunners = Callable[[MachinePaths, WorkerState, Mapping[str, str]], Runners]


def make_runners(
    machine: MachinePaths, state: WorkerState, environment: Mapping[str, str]
) -> Runners:
    """The runners of a worker, whose jobs have this common environment."""
    own = {"KOCHI_MACHINE": machine.name, "KOCHI_WORKER_ID": str(state.worker)}
    zygotes = ZygoteRunner(
        machine.worker(state.worker),
        {**environment, **own},
        len(os.sched_getaffinity(0)),
        state.capacity.memory_mb,
    )
    phases = PhaseRunner({**environment, **own}, state.capacity.memory_mb)
    return Runners([phases, ShellRunner(), zygotes, CommandRunner()], [phases, zygotes])


def run_worker(settings: WorkerSettings, runners: MakeRunners = make_runners) -> int:
    """Run as a worker; return its exit status when it leaves.

    The worker is a child of the calling process, its supervisor. Call this from the main thread of
    a process without other threads and other children. Jobs get the environment of this process. If
    the number in the settings was used before, a worker in an allocation gets another number: the
    scheduler may have requeued the allocation. `runners` makes the runners in the worker's process.

    SIGTERM, SIGINT, SIGUSR1 and SIGHUP end the jobs within `settings.grace` seconds and requeue
    them; a second signal does this at once.

    Raises KochiError for names that cannot be used and for locks that do not work, and WorkerError
    when the number is taken.
    """
    machine = settings.paths
    for name in settings.queues:
        machine.queue(name)
    if settings.controller is not None:
        machine.controller(settings.controller)
    heartbeat = settings.heartbeat or heartbeat_interval()
    environment = dict(os.environ)
    began = None if settings.allocation is None else find_beginning(environment)
    walltime = find_walltime(
        settings.walltime, environment, settings.grace, began, settings.allocation_seconds
    )
    gpus = find_gpus(settings.gpus, environment)
    capacity = capacity_of_this_node(
        *(settings.cores, settings.memory_mb, len(gpus.names), environment),
        settings.most_memory_mb,
        settings.allocation_nodes,
    )
    probe_locks(machine, may_fork=True)
    number, served = _number_and_queues(machine, settings)
    surroundings = Surroundings(
        _environment_for_jobs(environment, machine.worker(number).hosts),
        None if settings.parent is None else _identify(settings.parent),
        walltime,
    )

    def work(wake: Wake) -> int:
        own = ProcessIdentity.of(os.getpid())
        assert own is not None
        started = now()
        state = WorkerState(
            worker=number,
            state="running",
            process=own,
            node=this_node(),
            queues=served,
            capacity=capacity,
            started=started,
            updated=started,
            controller=settings.controller,
            allocation=settings.allocation,
            allocation_began=began,
            until=walltime.until,
            idle_since=started,
            fresh=walltime.is_fresh,
            heartbeat_interval=heartbeat,
        )
        return _work(machine, state, settings, surroundings, gpus, wake, runners)

    try:
        return run_supervised(machine, number, heartbeat, work)
    finally:
        parent = surroundings.parent
        if settings.owns_queues and parent is not None and not parent.is_alive():
            _remove_queues(machine, served)
        # Jobs of a run are packed at its end, and an allocation ends with its worker.
        if settings.controller is None and settings.allocation is None:
            pack_in_background(machine)


def _remove_queues(machine: MachinePaths, names: Sequence[str]) -> None:
    """Cancel what is left in queues that no other worker will ever serve."""
    for name in names:
        with contextlib.suppress(OSError, KochiError):
            queue = Queue(machine, name)
            queue.cancel_jobs()
            queue.remove()


def _work(
    machine: MachinePaths,
    state: WorkerState,
    settings: WorkerSettings,
    surroundings: Surroundings,
    gpus: Gpus,
    wake: Wake,
    runners: MakeRunners,
) -> int:
    """The worker's own process, from its registration to its end."""
    with contextlib.ExitStack() as stack:
        try:
            # Register before the worker can claim a ticket.
            if not write_exclusively(machine.worker(state.worker).state, to_json(state.to_dict())):
                raise _started_before(machine, state.worker)
            stack.enter_context(log_to_file(machine, state.worker))
        except OSError as error:
            raise _not_started(machine, state.worker, error) from error
        _log.info("worker %d started on machine %s: %s", state.worker, machine.name, state)
        shown = Echo(jobs=settings.echo, packed_log=partial(packed_log, machine))
        shown.say(f"Kochi worker {state.worker} started on machine {machine.name}.", "=" * WIDTH)
        adopt_orphans()
        devices = _devices(machine, state.capacity, gpus)
        turns = Turns(None if has_lock() else lock_directory())
        try:
            own = runners(machine, state, surroundings.environment)
            worker = Worker(
                machine, state, settings, surroundings, own, shown, devices, turns, wake
            )
            status = worker.run()
        except OSError as error:
            # An error of a disk or a lock. The worker's tickets are requeued, now or by the next
            # recovery.
            _log.error("worker %d cannot go on: %s", state.worker, error)
            raise WorkerError(
                f"worker {state.worker} on machine {machine.name} cannot go on: {error}"
            ) from error
        except KochiError as error:
            _log.error("worker %d cannot go on: %s", state.worker, error.message)
            raise
        except BaseException:
            _log.exception("worker %d failed", state.worker)
            raise
        _log.info("worker %d left", state.worker)
    return status


def _environment_for_jobs(environment: Mapping[str, str], file: Path) -> dict[str, str]:
    """The environment from which each job's environment is made.

    In an allocation it also has two variables: KOCHI_NODELIST, the host names separated by commas,
    and, for mpirun, KOCHI_HOSTFILE, the name of `file`. This function writes a line `HOST
    slots=CPUS` for each host to `file`.
    """
    found = {name: environment[name] for name in environment if name not in _NOT_FOR_JOBS}
    if (allocation := own_allocation(environment)) is None:
        return found
    found = {name: value for name, value in found.items() if allocation.is_for_jobs(name)}
    try:
        if hosts := allocation.hosts():
            lines = [f"{host} slots={cpus}\n" for host, cpus in hosts.items()]
            write_atomically(file, "".join(lines).encode())
            found["KOCHI_NODELIST"] = ",".join(hosts)
            found["KOCHI_HOSTFILE"] = str(file)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Go on: most jobs do not need these variables.
        _log.warning("KOCHI_NODELIST and KOCHI_HOSTFILE are not set for jobs: %s", error)
    return found


def _number_and_queues(
    machine: MachinePaths, settings: WorkerSettings
) -> tuple[int, tuple[str, ...]]:
    worker = settings.worker
    number = allocate_ids(machine, "worker", 1)[0] if worker is None else worker
    paths = machine.worker(number)
    try:
        if worker is not None and settings.allocation and is_there(paths.state):
            # The scheduler has requeued the worker's allocation, and the allocation has begun
            # again.
            number = allocate_ids(machine, "worker", 1)[0]
            paths = machine.worker(number)
        if is_there(paths.state):
            raise _started_before(machine, number)
        make_directory(paths.directory)
        if settings.queues:
            assign_queues(machine, number, settings.queues)
        return number, read_queues(machine, number)
    except FileNotFoundError as error:
        raise WorkerError(
            f"worker {number} on machine {machine.name} has no queue to serve", "Use --queue NAME."
        ) from error
    except OSError as error:
        raise _not_started(machine, number, error) from error


def _not_started(machine: MachinePaths, worker: int, error: OSError) -> WorkerError:
    return WorkerError(f"worker {worker} on machine {machine.name} cannot be started: {error}")


def _started_before(machine: MachinePaths, worker: int) -> WorkerError:
    return WorkerError(
        f"worker {worker} on machine {machine.name} was started before",
        "Leave --worker out: the worker then gets a new number.",
    )


def _devices(machine: MachinePaths, capacity: Capacity, gpus: Gpus) -> Devices:
    try:
        leases = CpuLeases(machine.cpu_leases(this_node().host))
    except OSError as error:
        _log.warning("jobs are not pinned to CPUs: %s", error)
        leases = None
    return Devices(capacity.cores, layout_of(os.sched_getaffinity(0)), gpus, leases)


def _identify(pid: int) -> ProcessIdentity:
    # A process that is gone has no start time; with -1 no living process matches the identity.
    return ProcessIdentity.of(pid) or ProcessIdentity(pid, -1)
