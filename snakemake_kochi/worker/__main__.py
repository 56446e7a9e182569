"""The worker's own process: `-m snakemake_kochi.worker SETTINGS [OPTIONS] SOCKET`."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import Signals
from typing import Any

from snakemake_kochi.base import files
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import write_atomically
from snakemake_kochi.node_lock import has_lock, lock_directory
from snakemake_kochi.processes import ALL_VARIABLE, is_gone
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.tickets.claims import WorkerLife
from snakemake_kochi.tickets.hand import remove_queue
from snakemake_kochi.tickets.names import Layout, numbers_in
from snakemake_kochi.worker.health import Health
from snakemake_kochi.worker.loop import Means, Worker, facts_of_worker
from snakemake_kochi.worker.node.capacity import OomWatch, capacity_of_this_node, find_gpus
from snakemake_kochi.worker.node.devices import CpuLeases, Devices, layout_of
from snakemake_kochi.worker.runners import Forks, Runners
from snakemake_kochi.worker.settings import WorkerSettings, settings_of
from snakemake_kochi.worker.walltime import find_beginning, find_walltime

_TRIES = 20
# With this variable each Snakemake that a job runs loads the profile of the Snakemake that
# submitted the job.
_NOT_FOR_JOBS = ("SNAKEMAKE_PROFILE",)


def main(arguments: list[str]) -> int:
    settings = settings_of(arguments[:-1])
    link = socket.socket(fileno=int(arguments[-1]))
    environment = dict(os.environ)
    began = None if settings.allocation is None else find_beginning(environment)
    limits = settings.walltime, environment, settings.grace, began, settings.allocation_seconds
    walltime = find_walltime(*limits)
    gpus = find_gpus(settings.gpus, environment)
    capacity = capacity_of_this_node(
        *(settings.cores, settings.memory_mb, len(gpus.names), environment),
        *(settings.most_memory_mb, settings.allocation_nodes),
    )
    machine = settings.paths
    layout = machine.layout
    facts = facts_of_worker(settings, capacity, walltime) | {"began": began}
    life = _register(layout, settings, facts)
    logging.raiseExceptions = False  # a full disk ends no job
    form = "%(asctime)s %(levelname)s: %(message)s"
    logging.basicConfig(filename=life.paths.log, level=logging.INFO, format=form)
    computer = lock_directory()
    leases = CpuLeases(computer / "cpus")
    devices = Devices(capacity.cores, layout_of(os.sched_getaffinity(0)), gpus, leases)
    hosts = Path(life.paths.hosts)
    common = _environment_for_jobs(environment, hosts)
    common |= {"KOCHI_MACHINE": machine.name, ALL_VARIABLE: facts["nonce"]}
    lock = None if has_lock() else computer
    means = Means(
        *(capacity, devices, walltime, common, lock, OomWatch(), Health(common), is_gone),
    )

    def make_forks(stop: Callable[[Signals], None]) -> tuple[Forks, Runners]:
        forks = Forks(link, stop, lambda *heard: runners.hear(*heard))
        own = common | {"KOCHI_WORKER_ID": life.name}
        runners = Runners(forks, own, capacity.memory_mb, life.paths)
        return forks, runners

    threading.excepthook = _crash
    status = Worker(layout, life, settings, means, make_forks).run()
    if settings.owns_queues:
        for queue in settings.queues:
            remove_queue(layout, queue)
    return status


def _crash(arguments: Any) -> None:
    """A thread failed: the crash path puts everything right."""
    logging.critical("thread %s failed", arguments.thread, exc_info=arguments[:3])
    os._exit(70)


def _environment_for_jobs(environment: Mapping[str, str], file: Path) -> dict[str, str]:
    """The environment from which the worker makes that of each job.

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
        logging.warning("KOCHI_NODELIST and KOCHI_HOSTFILE are not set for jobs: %s", error)
    return found


def _register(layout: Layout, settings: WorkerSettings, facts: object) -> WorkerLife:
    """Take the next number. Raises OSError."""
    files.make_below(layout.directory, "workers")
    numbers = numbers_in(files.names(layout.workers))
    number = settings.worker or max(numbers, default=0) + 1
    for _ in range(_TRIES):
        try:
            return WorkerLife(layout, str(number), facts, is_reserved=number == settings.worker)
        except OSError as error:
            reason, number = error, number + 1
    raise reason


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KochiError as error:
        sys.exit(f"kochi worker: {error.sentences}")
    except OSError as error:
        sys.exit(f"kochi: the worker cannot go on: {error}")
