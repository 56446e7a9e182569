"""Taking over what a run in this directory left that was killed: jobs that run, and results."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.executor.identity import is_forced
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Ended, Estate, Inbox, Running, Ticket

# Seconds. What its worker ends together with the dead controller is over by then.
_ENDING_SECONDS = 15.0
_PAUSE = 0.05


@dataclass(frozen=True)
class Held:
    """A job that is not handed over before others have ended, which write the same files."""

    queue: str
    job: JobExecutorInterface
    ticket: Ticket
    behind: tuple[int, ...] = ()


class Takeover:
    """Finds for each job whether an earlier run left it. Nothing is looked at twice, and without
    such a run nothing at all."""

    def __init__(
        self, machine: MachinePaths, workflow: Any, inbox: Inbox, logger: LoggerExecutorInterface
    ) -> None:
        self._workflow = workflow
        self._logger = logger
        self._estate = Estate.find(machine, workflow.workdir_init, inbox.identity)
        for dead in self._estate.controllers:
            inbox.adopt(machine, dead)

    @property
    def controllers(self) -> tuple[str, ...]:
        """Those that died, and from which this run takes over."""
        return self._estate.controllers

    @property
    def is_empty(self) -> bool:
        return self._estate.is_empty

    def begin(self) -> None:
        """Take back what waited, wait for what is ending, and say what was found."""
        if self.is_empty:
            return
        withdrawn = self._estate.withdraw()
        running, finished = len(self._estate.running()), self._estate.unread()
        found = []
        if running or finished:
            found.append(
                f"It left {running} running and {finished} finished kochi jobs, which are taken "
                "over as far as they are needed."
            )
        if withdrawn:
            found.append(
                f"{len(withdrawn)} others are ended, and handed over anew if they are needed."
            )
        if found:
            self._logger.info(f"A run in this directory was killed. {' '.join(found)}")
        deadline = time.monotonic() + _ENDING_SECONDS
        while not all(map(self._estate.has_ended, withdrawn)) and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    def find(self, job: JobExecutorInterface, ticket: Ticket) -> Running | Ended | None:
        """The same job of an earlier run, if it need not be done again."""
        if self.is_empty or is_forced(self._workflow, job):
            return None
        # Snakemake's own mark of incomplete outputs tells nothing: the job's inner process removes
        # it, also between the reading of the DAG and now.
        return self._estate.take(ticket.identity)

    def clear_the_way(self, ticket: Ticket) -> tuple[int, ...]:
        """End the jobs that write what this ticket writes; returns those to wait for."""
        jobs = self._estate.in_the_way(ticket.outputs)
        if jobs:
            self._estate.clear(jobs)
            numbers = " ".join(map(str, jobs))
            self._logger.info(
                f"Before {ticket.name} starts, kochi jobs {numbers} have to end, of a run that was "
                "killed: they write the same files, but are not the same."
            )
        return tuple(jobs)

    def has_ended(self, jobs: Collection[int]) -> bool:
        return all(map(self._estate.has_ended, jobs))

    def end(self, all_went_well: bool) -> None:
        """At the end of the run: name what still runs; forget the rest, if nobody can want it."""
        if left := self._estate.running():
            numbers = " ".join(map(str, left))
            self._logger.warning(
                f"{len(left)} kochi jobs of a run that was killed still run; this run did not need "
                f"them. End them with: kochi cancel {numbers}"
            )
        if all_went_well:
            self._estate.forget()
