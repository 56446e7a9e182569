"""Which runner executes a ticket: the first that can, of those in the order of their cost."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.interface import (
    Execution,
    Runner,
    RunnerUnavailableError,
    Watched,
)

_log = logging.getLogger(__name__)


class Runners:
    """The runners of a worker, the cheapest first; the last one can run every ticket. `watched`:
    those of them that have to be attended to."""

    def __init__(self, runners: Sequence[Runner], watched: Sequence[Watched] = ()) -> None:
        self._runners = tuple(runners)
        self.watched = tuple(watched)

    @property
    def helpers(self) -> frozenset[int]:
        """See `Runner.helpers`."""
        return frozenset(pid for runner in self._runners for pid in runner.helpers)

    def close(self) -> None:
        for runner in self._runners:
            runner.close()

    def is_ready(self, ticket: Ticket) -> bool:
        """Whether the ticket can be started without making the worker's loop wait."""
        return self._for(ticket)[0].is_ready(ticket)

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> tuple[Execution, str]:
        """See `Runner.start`; and why not by a faster runner for which the ticket is, as
        "no zygote: it takes 900 MiB". Raises OSError."""
        skipped_runners: list[str] = []
        for runner in self._runners[:-1]:
            why = runner.why_not(ticket)
            if runner.can_run(ticket):
                try:
                    execution = runner.start(ticket, log, _told(environment, runner), cpus)
                    return execution, "; ".join(skipped_runners)
                except RunnerUnavailableError as error:
                    _log.warning("job %d goes to the next runner: %s", ticket.job, error)
                    why = str(error)
            if why:
                skipped_runners.append(f"no {runner.name}: {why}")
        last = self._runners[-1]
        execution = last.start(ticket, log, _told(environment, last), cpus)
        return execution, "; ".join(skipped_runners)

    def _for(self, ticket: Ticket) -> list[Runner]:
        return [runner for runner in self._runners if runner.can_run(ticket)]


def _told(environment: Mapping[str, str], runner: Runner) -> dict[str, str]:
    return {**environment, "KOCHI_RUNNER": runner.name}
