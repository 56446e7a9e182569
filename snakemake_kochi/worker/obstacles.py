"""The tickets that a worker cannot run, and why."""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections.abc import Iterable, Iterator
from itertools import repeat

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.entries import find_entry
from snakemake_kochi.queue.job_set import JobSet
from snakemake_kochi.queue.ticket import Ticket, read_ticket

_log = logging.getLogger(__name__)

_MOST_SHOWN = 5


class Obstacles:
    """The tickets that a worker leaves to others, by obstacle.

    An obstacle remains, because the worker's capacity and time only decrease.
    """

    def __init__(self, machine: MachinePaths) -> None:
        self._machine = machine
        self._jobs: dict[str, dict[str, JobSet]] = {}  # by obstacle and queue

    def add(self, ticket: Ticket, obstacle: str) -> None:
        """Note what prevents the worker from running a ticket.

        Thousands of tickets may share an obstacle, so only the first of them is logged.
        """
        if obstacle not in self._jobs:
            _log.info("job %d (%s) is skipped: %s", ticket.job, ticket.name, obstacle)
        by_queue = self._jobs.setdefault(obstacle, {})
        by_queue.setdefault(ticket.queue, JobSet()).add(ticket.job)

    def describe(self) -> list[str]:
        """Lines for people about these tickets, as far as they still wait.

        There is a line for each of the first tickets, and one for the rest. Each of the first
        tickets costs some directory listings.
        """
        with contextlib.suppress(OSError):
            return self._describe()
        return []

    def _describe(self) -> list[str]:
        lines: list[str] = []
        for job, queue, obstacle in self._in_order():
            entry = find_entry(self._machine.queue(queue), job)
            if entry is None or entry.worker is not None:
                continue  # another worker claimed it
            if len(lines) == _MOST_SHOWN:
                lines.append("and more; list them with: kochi show jobs")
                break
            with contextlib.suppress(FileNotFoundError, DamagedFileError):
                name = read_ticket(entry.path).name
                lines.append(f"Kochi job {name} (ID={job}) is left to other workers: {obstacle}.")
        return lines

    def _in_order(self) -> Iterator[tuple[int, str, str]]:
        sets: Iterable[Iterator[tuple[int, str, str]]] = (
            zip(jobs, repeat(queue), repeat(obstacle), strict=False)
            for obstacle, by_queue in self._jobs.items()
            for queue, jobs in by_queue.items()
        )
        return heapq.merge(*sets)
