"""Adopts what an earlier run in this directory left, which was killed or ended by its time limit:
running jobs, and results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.executor.identity import is_forced
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Ended, Inbox, Orphans, OtherControllers, Running, Ticket

# Seconds. What its worker ends together with the dead controller is over by then.
_ENDING_SECONDS = 15.0
_PAUSE = 0.05
_LOOK = 0.5


def await_others(
    others: OtherControllers,
    look_after: Callable[[str], None],
    logger: LoggerExecutorInterface,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Wait until all other runs in the directory that make the same files are known to be over;
    return the controllers that are dead though their files do not tell, as `Orphans.find` takes
    them. Meanwhile `look_after` is called for each of their queues: workers there may have died,
    too.

    Raises KochiError for a run that goes on.
    """
    told = set()
    while watched := others.look():
        for each in watched:
            state = each.state
            if each.seconds_left is not None and state.identity not in told:
                told.add(state.identity)
                logger.warning(
                    f"A run in this directory was started on {state.node.host} (process "
                    f"{state.process.pid}, since {state.started}), and it cannot be asked from "
                    "here whether it goes on: for a sign of life this one waits "
                    f"{each.seconds_left:.0f} s, before it adopts its jobs; else each job "
                    "would be done twice."
                )
            for queue in state.queues or ():
                look_after(queue)
        sleep(_LOOK)
    return others.dead


class Adoption:
    """Finds for each job whether an earlier run left it. Reads no file twice, and without such a
    run none at all."""

    def __init__(
        self,
        machine: MachinePaths,
        workflow: Any,
        inbox: Inbox,
        logger: LoggerExecutorInterface,
        dead: Mapping[str, float],
    ) -> None:
        """`dead`: see `await_others`."""
        self._workflow = workflow
        self._logger = logger
        self._orphans = Orphans.find(machine, workflow.workdir_init, inbox.identity, dead)
        for each in self._orphans.controllers:
            inbox.adopt(machine, each)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The dead controllers whose jobs this run adopts."""
        return self._orphans.controllers

    @property
    def is_empty(self) -> bool:
        return self._orphans.is_empty

    def begin(self, look_after: Callable[[str], None]) -> None:
        """Withdraw what waited, wait for what is ending, and say what was found. `look_after` is
        called meanwhile for each queue with an ending job."""
        if self.is_empty:
            return
        withdrawn = self._orphans.withdraw()
        running, finished = len(self._orphans.running()), self._orphans.unread()
        found = []
        if running or finished:
            found.append(
                f"It left {running} running and {finished} finished kochi jobs, which are adopted "
                "as far as they are needed."
            )
        if withdrawn:
            others = "1 other is" if len(withdrawn) == 1 else f"{len(withdrawn)} others are"
            found.append(f"{others} ended, and handed over anew if needed.")
        if found:
            self._logger.info(
                f"A run in this directory was killed, or its time was over. {' '.join(found)}"
            )
        deadline = time.monotonic() + _ENDING_SECONDS
        look = 0.0
        while (queues := self._orphans.queues_of_ending()) and time.monotonic() < deadline:
            if time.monotonic() >= look:
                look = time.monotonic() + _LOOK
                for queue in queues:
                    look_after(queue)
            time.sleep(_PAUSE)

    def find(self, job: JobExecutorInterface, ticket: Ticket) -> Running | Ended | None:
        """The same job of an earlier run, if it need not be done again."""
        if self.is_empty or is_forced(self._workflow, job):
            return None
        # Snakemake's own mark of incomplete outputs tells nothing: the job's inner process removes
        # it, also between the reading of the DAG and now.
        return self._orphans.take(ticket.identity)

    def clear_the_way(self, ticket: Ticket) -> tuple[int, ...]:
        """End the jobs that write what this ticket writes; returns those to wait for."""
        jobs = self._orphans.in_the_way(ticket.outputs)
        if jobs:
            self._orphans.clear(jobs)
            numbers = " ".join(map(str, jobs))
            self._logger.info(
                f"Before {ticket.name} starts, kochi jobs {numbers} have to end, of a run that was "
                "killed: they write the same files, but are not the same."
            )
        return tuple(jobs)

    def queues_of_ending(self) -> set[str]:
        """Where jobs are that were ended and are not over yet."""
        return self._orphans.queues_of_ending()

    def has_ended(self, jobs: Collection[int]) -> bool:
        return all(map(self._orphans.has_ended, jobs))

    def end(self, all_went_well: bool) -> None:
        """At the end of the run: name what still runs; forget the rest, if nobody can want it."""
        if left := self._orphans.running():
            numbers = " ".join(map(str, left))
            self._logger.warning(
                f"{len(left)} kochi jobs of a run that was killed still run; this run did not need "
                f"them. End them with: kochi cancel {numbers}"
            )
        if all_went_well:
            self._orphans.forget()
