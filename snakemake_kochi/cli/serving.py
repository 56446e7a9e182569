"""Whether anybody will run what is handed to a queue."""

from __future__ import annotations

from snakemake_kochi.cli.output import remark
from snakemake_kochi.errors import ConfigError
from snakemake_kochi.location import Location
from snakemake_kochi.project.chosen_machine import chosen_machine
from snakemake_kochi.queue.workers import shared_workers


def remark_without_worker(location: Location, queue: str) -> None:
    """Say how to get a worker if none serves the queue: a job may wait for it for ever."""
    if shared_workers(location.machine_paths, queue):
        return
    # Where there is a way to compute nodes, a worker that is started here is on a login node.
    command = "alloc" if location.machine.has_allocations else "work"
    words = f"kochi {command} {_machine_option(location)}-q {queue}"
    remark(f"No worker serves that queue yet. To start one, type: {words}")


def _machine_option(location: Location) -> str:
    """What has to be typed for the same machine."""
    machines = {} if location.project is None else location.project.machines
    try:
        is_chosen = chosen_machine(machines) == location.machine.name
    except ConfigError:
        is_chosen = False
    return "" if is_chosen else f"-m {location.machine.name} "
