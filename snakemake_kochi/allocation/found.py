"""The machine that a host's own scheduler is, where nobody has configured one."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.choice import ALLOCATIONS
from snakemake_kochi.allocation.scheduler import RefusedError
from snakemake_kochi.allocation.slurm import cluster
from snakemake_kochi.allocation.slurm.commands import Pace
from snakemake_kochi.files import write_atomically
from snakemake_kochi.paths import Root
from snakemake_kochi.place import Place, find_place, is_found
from snakemake_kochi.project.chosen_machine import FOUND_VARIABLE
from snakemake_kochi.project.machines import LOCAL

_log = logging.getLogger(__name__)
_TEXT = """\
# What Slurm tells of itself: its cluster's name. With more, for a file of yours, it is written by:
# kochi init --machine
machines:
  {name}:
    scheduler: slurm
"""


def is_left_to_us(place: Place) -> bool:
    """Whether nobody has said which machine this is, nor described one with allocations."""
    return (
        not place.is_named
        and place.machine.name == LOCAL
        and place.unread is None
        and not place.machine.has_allocations
    )


def find_machine(place: Place, pace: Pace = cluster.ONCE) -> Place:
    """The place on the machine of this host's Slurm, by the cluster's name; the same place where
    somebody has said which machine it is, or there is no Slurm.

    The one that was found is that of this process from now on, and of what it starts; by its name
    it is known to all commands. Raises KochiError when Slurm does not answer, at the `pace`.
    """
    if not is_left_to_us(place) or not cluster.is_installed():
        return place
    others = [each.name for each in place.machines.values() if each.has_allocations]
    try:
        name = cluster.cluster_name(pace, _log.warning)
    except RefusedError:  # there are only its programs
        return place
    if name not in others:
        if others or name in place.machines:
            return place  # which of them is meant is to be said
        _write(name)
    os.environ[FOUND_VARIABLE] = name
    return replace(find_place(name), is_named=False)


def place_of_run(wanted: str | None, logger: LoggerExecutorInterface) -> Place:
    """The current place, for a run that asks for one of the PLACES, or for none. What a person has
    not said, and may not expect, is told. Raises KochiError."""
    place = find_place()
    if wanted == ALLOCATIONS:
        place = find_machine(place)
        if is_found(place.machine):
            name = place.machine.name
            logger.info(
                f"Nothing is configured: this is machine {name}, as Slurm calls its cluster, with "
                f"Slurm's default partition and account; KOCHI_ROOT is {place.root.directory}. "
                f"Other commands know it by -m {name}, and kochi init --machine writes it down."
            )
    elif wanted is None and (unused := unused_scheduler(place)):
        logger.warning(unused)
    return place


def unused_scheduler(place: Place) -> str:
    """One line, for a person whose jobs run on this computer because nobody has said otherwise,
    though there is a Slurm; "" where that is not so."""
    # Within an allocation, this computer is what was asked for.
    if not is_left_to_us(place) or "SLURM_JOB_ID" in os.environ or not cluster.is_there():
        return ""
    others = [each.name for each in place.machines.values() if each.has_allocations]
    how = (
        f"type: export KOCHI_DEFAULT_MACHINE={others[0]}"
        if others
        else "add to the line: --kochi-place allocations"
    )
    return (
        "Jobs run on this computer, although it has a Slurm, as no machine is chosen. For "
        f"allocations, {how}; to have it so without this remark, add: --kochi-place here"
    )


def _write(name: str) -> None:
    root = Root.find()
    file = root.machine(name).found
    root.secure(file.parent)
    with root.explaining():
        write_atomically(file, _TEXT.format(name=name).encode())
