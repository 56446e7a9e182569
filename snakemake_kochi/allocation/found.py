"""The machine of a host's own scheduler, if no machine is configured."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.workers import ALLOCATIONS
from snakemake_kochi.files import write_atomically
from snakemake_kochi.location import Location, find_location, is_found
from snakemake_kochi.paths import Root
from snakemake_kochi.project.machine_lookup import FOUND_VARIABLE
from snakemake_kochi.project.machines import LOCAL
from snakemake_kochi.schedulers.commands import ONCE, Pace
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.schedulers.interface import RefusedError
from snakemake_kochi.schedulers.native import BatchSystem, system_of_host

_log = logging.getLogger(__name__)
_TEXT = """\
# What {title} tells of itself: its cluster's name. With more, for a file of yours, it is written
# by: kochi init --machine
machines:
  {name}:
    scheduler: {scheduler}
"""


def is_left_to_us(location: Location) -> bool:
    """Whether the configuration neither selects a machine nor describes one with allocations."""
    return (
        not location.is_named
        and location.machine.name == LOCAL
        and location.unread is None
        and not location.machine.has_allocations
    )


def find_machine(location: Location, pace: Pace = ONCE) -> Location:
    """The location with the machine of this host's scheduler, under the cluster's name.

    It is the same location if a machine was selected, or if there is no scheduler. From now on,
    this process and its children use that machine, and all commands know it by its name. Raises
    KochiError when the scheduler does not answer, at the `pace`.
    """
    if not is_left_to_us(location) or not (scheduler := system_of_host()).is_installed():
        return location
    others = [each.name for each in location.machines.values() if each.has_allocations]
    try:
        name = scheduler.cluster_name(pace, _log.warning)
    except RefusedError:  # only its programs are installed
        return location
    if name not in others:
        if others or name in location.machines:
            return location  # the user must say which of them is meant
        _write(name, scheduler)
    os.environ[FOUND_VARIABLE] = name
    return replace(find_location(name), is_named=False)


def location_of_run(wanted: str | None, logger: LoggerExecutorInterface) -> Location:
    """The current location, for a run with `--kochi-where` (one of WHERE) or without.

    Tells the user what was not requested and may be unexpected. Raises KochiError.
    """
    location = find_location()
    if wanted == ALLOCATIONS:
        location = find_machine(location)
        if is_found(location.machine):
            name, title = location.machine.name, system_of_host().TITLE
            logger.info(
                f"Nothing is configured: this is machine {name}, as {title} calls its cluster, "
                f"with {title}'s default partition and account; KOCHI_ROOT is "
                f"{location.root.directory}. "
                f"Other commands know it by -m {name}, and kochi init --machine writes it down."
            )
    elif wanted is None and (unused := unused_scheduler(location)):
        logger.warning(unused)
    return location


def unused_scheduler(location: Location) -> str:
    """One line about a scheduler that a run on this computer does not use, or "".

    It is for a user whose jobs run on this computer only by default.
    """
    # Within an allocation, the user requested this computer.
    if not is_left_to_us(location) or own_allocation(os.environ):
        return ""
    if not (scheduler := system_of_host()).is_there():
        return ""
    others = [each.name for each in location.machines.values() if each.has_allocations]
    how = (
        f"type: export KOCHI_DEFAULT_MACHINE={others[0]}"
        if others
        else "add to the line: --kochi-where allocations"
    )
    return (
        f"Jobs run on this computer, although it has a {scheduler.TITLE}, as no machine is chosen. "
        f"For allocations, {how}; to have it so without this remark, add: --kochi-where here"
    )


def _write(name: str, scheduler: BatchSystem) -> None:
    root = Root.find()
    file = root.machine(name).found
    root.secure(file.parent)
    with root.explaining():
        write_atomically(
            file, _TEXT.format(name=name, scheduler=scheduler.NAME, title=scheduler.TITLE).encode()
        )
