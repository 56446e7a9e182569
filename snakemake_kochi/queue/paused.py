"""Paused batches: no worker starts their jobs until they are resumed; running jobs end.

paused/<digest>.json   {"version", "directory", "experiment", "batch", "since", "host"}

The name says which batch it is, so a worker lists one small directory and opens no file. Whoever
claims tickets, and whoever requests workers for waiting tickets, asks here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from snakemake_kochi.base import clock, files
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import list_names, make_directory, read_json, to_json, write_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import this_node
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.ticket import Ticket, now

VERSION = 1
_LOOK = 0.5  # seconds between two looks of one process
# The labels of a ticket that name its batch.
EXPERIMENT, BATCH = "experiment", "batch"


@dataclass(frozen=True)
class PausedBatch:
    """`directory` is the working directory of its runs, `experiment` the file of its experiment.

    `since` is ISO 8601 in UTC, `host` where it was paused.
    """

    directory: str
    experiment: str
    batch: str
    since: str = field(default_factory=now)
    host: str = field(default_factory=lambda: this_node().host)

    @property
    def digest(self) -> str:
        # The same directory by way of a link is the same batch.
        key = [os.path.realpath(self.directory), self.experiment, self.batch]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def pause(machine: MachinePaths, batch: PausedBatch) -> bool:
    """Pause a batch; False if it is paused already. Raises OSError."""
    make_directory(machine.paused)
    content = to_json({"version": VERSION, **asdict(batch)})
    return bool(write_exclusively(machine.paused_batch(batch.digest), content))


def resume(machine: MachinePaths, batch: PausedBatch) -> bool:
    """Let a batch go on; False if it is not paused. Raises OSError."""
    try:
        machine.paused_batch(batch.digest).unlink()
    except FileNotFoundError:
        return False
    return True


def list_paused(machine: MachinePaths) -> list[PausedBatch]:
    """All paused batches; a file that cannot be read is left out."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(list_names(machine.paused)):
            with contextlib.suppress(OSError, DamagedFileError, KeyError, TypeError):
                data = read_json(machine.paused / name, VERSION)
                keys = ("directory", "experiment", "batch", "since", "host")
                found.append(PausedBatch(*(str(data[key]) for key in keys)))
    return found


def pause_of(machine: MachinePaths, ticket: Ticket) -> PausedBatch | None:
    """Why a ticket is not started now, if its batch is paused."""
    own = _batch_of(ticket)
    if own is None:
        return None
    return next((each for each in list_paused(machine) if each.digest == own.digest), None)


def _batch_of(ticket: Ticket) -> PausedBatch | None:
    experiment, batch = ticket.labels.get(EXPERIMENT), ticket.labels.get(BATCH)
    if not experiment or not batch:
        return None
    return PausedBatch(ticket.directory, experiment, batch, "", "")


class PausedBatches:
    """The paused batches as one process sees them, at most half a second old.

    Without any, a look costs one call for a directory that does not exist.
    """

    def __init__(
        self, machine: MachinePaths, seconds: Callable[[], float] = lambda: clock.now()
    ) -> None:
        self._machine = machine
        self._seconds = seconds
        self._next = 0.0
        self._names: frozenset[str] = frozenset()
        self._known: dict[tuple[str, str | None, str | None], str] = {}

    def has_changed(self) -> bool:
        """Look again if it is time; whether other batches are paused now than before.

        While the directory cannot be read, nothing changes.
        """
        if self._seconds() < self._next:
            return False
        self._next = self._seconds() + _LOOK
        before = self._names
        with contextlib.suppress(OSError):
            directory = str(self._machine.paused)
            # If none was paused, it does not matter why nothing is found.
            names = listing(directory) if before else files.names(directory)
            self._names = frozenset(names)
        return self._names != before

    def has(self, ticket: Ticket) -> bool:
        """Whether the batch of a ticket is paused, as of the last look."""
        if not self._names:
            return False
        key = (ticket.directory, ticket.labels.get(EXPERIMENT), ticket.labels.get(BATCH))
        if key not in self._known:
            batch = _batch_of(ticket)
            name = "" if batch is None else self._machine.paused_batch(batch.digest).name
            self._known[key] = name
        return self._known[key] in self._names
