"""Notes of the allocations that runs have requested. They are for people only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.tickets.ticket import now

VERSION = 1


@dataclass(frozen=True)
class AllocationNote:
    """allocations/<controller>-<allocation>.json, written once the allocation was requested.

    The controller writes the time of the request, and its purpose in words.
    """

    allocation: str
    submitted: str
    wanted: str


def note_allocations(
    machine: MachinePaths, controller: str, allocations: Iterable[str], wanted: str
) -> None:
    """Note that a controller has just requested allocations.

    The notes are for people: the run goes on if they cannot be written.
    """
    for allocation in allocations:
        note = AllocationNote(allocation, now(), wanted)
        with contextlib.suppress(OSError):
            make_directory(machine.allocations)
            path = machine.allocation_note(controller, allocation)
            write_atomically(path, to_json({"version": VERSION, **asdict(note)}))


def list_allocations(machine: MachinePaths, controller: str) -> list[AllocationNote]:
    """The allocation requests of a controller, in the order of time; damaged notes are left out."""
    found = []
    for path in machine.allocation_notes(controller):
        with contextlib.suppress(DamagedFileError, KeyError):
            data = read_json(path, VERSION)
            fields = (str(data[key]) for key in ("allocation", "submitted", "wanted"))
            found.append(AllocationNote(*fields))
    return sorted(found, key=lambda note: note.submitted)
