"""The protocol of a way to execute tickets, and the choice of one for a ticket: the first that can,
in the order of their cost."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.ticket import Ticket


class RunnerUnavailableError(Exception):
    """This runner cannot execute the ticket after all: the next one has to. Nothing of the job has
    been executed, and no process for it is left that could."""


@dataclass(frozen=True)
class Exit:
    """How a process ended: by an exit status, or by a signal; the other is None."""

    status: int | None
    signal: int | None


@dataclass(frozen=True)
class Usage:
    """What a process and all that it waited for took: seconds of CPUs, and the memory, in MiB, of
    the largest single one of them. That of a process that was forked and became another program is
    at least what it had at that moment."""

    cpu_seconds: float
    peak_memory_mb: int


class Execution(Protocol):
    """A job's main process, a child of the worker and leader of a session of its own."""

    @property
    def runner(self) -> str:
        """The name of the runner that made it."""

    @property
    def process(self) -> ProcessIdentity: ...

    def release(self) -> None:
        """Let it begin. Until then it has not executed anything of the job's."""

    def abandon(self) -> None:
        """End a process that was never released, and reap it."""

    def poll(self) -> Exit | None:
        """How it ended, or None. It stays a zombie, so that its number, by which the rest of its
        session is found, is not given to another process."""

    def reap(self) -> Usage | None:
        """Let go of the ended process; what it took, if that is known."""


class Watched(Protocol):
    """What of a runner the worker's loop has to attend to."""

    def fileno(self) -> int:
        """Readable when there is something to attend to."""

    def attend(self) -> None:
        """Take note of what its processes said, and of their end; never waits."""


class Runner(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def helpers(self) -> Collection[int]:
        """The children of the worker that are processes of this runner's, and no job's."""

    def close(self) -> None:
        """End them, at the end of the worker."""

    def can_run(self, ticket: Ticket) -> bool:
        """Whether it can execute this ticket, now or soon."""

    def why_not(self, ticket: Ticket) -> str:
        """Why it cannot, for people; "" for a ticket that is not meant for it."""

    def is_ready(self, ticket: Ticket) -> bool:
        """Whether it can start a ticket that it can run at once, without making anybody wait; if
        not, it begins to see to that."""

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Execution:
        """Make a process that, once released, executes the ticket with this whole environment.

        With `cpus` it and all it starts run on these only. When memory runs out, the kernel is to
        end it rather than the worker. Its stdout and stderr are the file descriptor `log`, its
        stdin is empty. What is wrong with the ticket (no such directory, no such command) is said
        in the log and is an exit status of 126 or 127. Raises OSError when no process can be made,
        and RunnerUnavailableError.
        """


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
