"""The tickets a worker has skipped, because it can never run them, and what to say of them."""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections.abc import Iterator
from itertools import repeat

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import find_entry
from snakemake_kochi.queue.job_set import JobSet
from snakemake_kochi.queue.ticket import Ticket, read_ticket

_log = logging.getLogger(__name__)

_MOST_SHOWN = 5


class Passed:
    """What a worker can do only becomes less while it runs, so an obstacle stays one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], JobSet] = {}  # by queue and obstacle
        self._told: set[str] = set()

    def add(self, ticket: Ticket, obstacle: str) -> None:
        """`obstacle`: for people. Each is logged once: thousands of tickets may share it."""
        self._found.setdefault((ticket.queue, obstacle), JobSet()).add(ticket.job)
        if obstacle not in self._told:
            self._told.add(obstacle)
            _log.info("job %d (%s) is skipped: %s", ticket.job, ticket.name, obstacle)

    def describe(self, machine: MachinePaths) -> list[str]:
        """A line for each of the first that still wait, and one for the rest; costs some
        directory listings for each of the first."""
        lines: list[str] = []
        for job, (queue, obstacle) in self._in_order():
            entry = find_entry(machine.queue(queue), job)
            if entry is None or entry.worker is not None:
                continue  # another worker could
            if len(lines) == _MOST_SHOWN:
                lines.append("and more; list them with: kochi show jobs")
                break
            with contextlib.suppress(FileNotFoundError, DamagedFileError):
                name = read_ticket(entry.path).name
                lines.append(f"Kochi job {name} (ID={job}) is left to other workers: {obstacle}.")
        return lines

    def _in_order(self) -> Iterator[tuple[int, tuple[str, str]]]:
        return heapq.merge(*(zip(jobs, repeat(why)) for why, jobs in self._found.items()))
