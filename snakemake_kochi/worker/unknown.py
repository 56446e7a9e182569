"""Claims of a worker that it does not know of. NFS may make the rename that is the claim, lose the
answer, and say that there was no such ticket; while the worker lives nobody else would take it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import Entry, running_entries
from snakemake_kochi.queue.jobs import new_nonce
from snakemake_kochi.queue.queue import Claim, Queue
from snakemake_kochi.queue.result import read_attempt
from snakemake_kochi.queue.ticket import read_ticket

_log = logging.getLogger(__name__)

_INTERVAL = 5.0  # seconds


class UnknownClaims:
    """Looks for the unknown claims of one worker; a look lists running/ of a queue."""

    def __init__(self, machine: MachinePaths, worker: int) -> None:
        self._machine = machine
        self._worker = worker
        self._due = 0.0
        self._told: set[int] = set()

    def is_time(self) -> bool:
        """Whether to look again; true once in a while."""
        moment = time.monotonic()
        is_time = moment >= self._due
        if is_time:
            self._due = moment + _INTERVAL
        return is_time

    def find(self, queue: Queue, known: Collection[int]) -> list[Claim]:
        """Those that are to be requeued. `known`: the jobs of all claims that the worker knows.

        Raises OSError.
        """
        found = []
        for entry in running_entries(queue.paths):
            if entry.worker == self._worker and entry.job not in known:
                try:
                    self._require_free(entry)
                    ticket = read_ticket(entry.path).with_attempt(entry.attempt)
                except FileNotFoundError:
                    continue  # a listing that was not of this moment
                except DamagedFileError as error:
                    self._leave(entry, error.message)
                    continue
                _log.warning("job %d was claimed without this worker's knowledge", entry.job)
                found.append(Claim(ticket, self._worker, new_nonce(), entry.path))
        return found

    def _require_free(self, entry: Entry) -> None:
        """Raise DamagedFileError unless it is certain that nothing of the job runs."""
        path = self._machine.job(entry.job).attempt(entry.attempt)
        try:
            attempt = read_attempt(path)
        except FileNotFoundError:
            return
        if attempt.worker != self._worker:
            raise DamagedFileError(f"{path}: begun by worker {attempt.worker}")

    def _leave(self, entry: Entry, why: str) -> None:
        if entry.job not in self._told:
            self._told.add(entry.job)
            _log.warning("job %d is left in %s: %s", entry.job, entry.path, why)
