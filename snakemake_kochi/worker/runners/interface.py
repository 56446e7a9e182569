"""The protocol of the runners, the processes that they make, and the choice for each ticket.

The choice is the first runner that can execute the ticket, in the order of their cost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.ticket import Ticket


class RunnerUnavailableError(Exception):
    """This runner cannot execute the ticket after all, and the next one must.

    Nothing of the job has been executed, and no process that could execute it is left.
    """


@dataclass(frozen=True)
class Exit:
    """How a process ended: by an exit status, or by a signal; the other value is None."""

    status: int | None
    signal: int | None


@dataclass(frozen=True)
class Usage:
    """The resources that a process and all the processes that it waited for took.

    These are seconds of CPUs, and the memory of the largest single process, in MiB. A forked
    process that became another program counts at least the memory that it had at that moment.
    """

    cpu_seconds: float
    peak_memory_mb: int


class Child:
    """A job's main process, a child of the worker and leader of a session of its own.

    It waits for its release before it does anything. `runner`: the name of the runner that made it.
    """

    def __init__(self, runner: str, pid: int, gate: int) -> None:
        """Hold a forked process; `gate`: the end of the pipe that releases it."""
        process = ProcessIdentity.of(pid)
        if process is None:  # not even a zombie: the process is not our child
            raise ChildProcessError(f"process {pid} has vanished")
        self.runner = runner
        self.process = process
        self._gate = gate

    def release(self) -> None:
        """Let the process begin. Until then it has not executed anything of the job."""
        # The child may have been killed before it could begin.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._gate, b"!")
        os.close(self._gate)

    def abandon(self) -> None:
        """End a process that was never released, and reap it."""
        os.close(self._gate)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        os.waitpid(self.process.pid, 0)

    def poll(self) -> Exit | None:
        """How the process ended; None while it runs.

        It stays a zombie, so that its number is not given to another process. The number identifies
        the other processes of its session.
        """
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self.process.pid, options)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return Exit(found.si_status, None)
        return Exit(None, found.si_status)

    def reap(self) -> Usage | None:
        """Reap the ended process; return its usage, if known."""
        with contextlib.suppress(ChildProcessError):
            _, _, used = os.wait4(self.process.pid, 0)
            # Linux counts memory in KiB here: see getrusage(2).
            return Usage(used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)
        return None


class Watched(Protocol):
    """The part of a runner that the worker's loop must serve."""

    def fileno(self) -> int:
        """A descriptor that is readable when `attend` has something to do."""

    def attend(self) -> None:
        """Handle the messages and the ends of the runner's processes; never waits."""


class Runner(Protocol):
    """A way to execute tickets. By default it has no processes, and is ready for every ticket."""

    @property
    def name(self) -> str: ...

    @property
    def helpers(self) -> Collection[int]:
        """The children of the worker that belong to this runner and to no job."""
        return ()

    def close(self) -> None:
        """End the runner's processes when the worker ends."""
        return

    def can_run(self, ticket: Ticket) -> bool:
        """Whether the runner can execute this ticket, now or soon."""

    def why_not(self, ticket: Ticket) -> str:
        """Why the runner cannot run the ticket, for people; "" if the ticket is not for it."""
        return ""

    def is_ready(self, ticket: Ticket) -> bool:
        """Whether the runner can start a ticket that it can run without any delay.

        If not, the runner begins to prepare for the ticket.
        """
        return True

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        """Make a process that, once released, executes the ticket with this whole environment.

        With `cpus` the process and its descendants run on these CPUs only. When memory runs out,
        the kernel ends this process rather than the worker. Its stdout and stderr are the file
        descriptor `log`, its stdin is empty. A fault of the ticket (no such directory, no such
        command) causes a message in the log and an exit status of 126 or 127. Raises OSError when
        no process can be made, and RunnerUnavailableError.
        """


_log = logging.getLogger(__name__)


class Runners:
    """The runners of a worker, the cheapest first; the last one can run every ticket.

    `watched`: the runners that the worker's loop must serve.
    """

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
        return next(each for each in self._runners if each.can_run(ticket)).is_ready(ticket)

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> tuple[Child, str]:
        """Start the ticket; see `Runner.start`.

        Also returns why faster runners that are meant for the ticket cannot run it, for example "no
        zygote: it takes 900 MiB". Raises OSError.
        """
        skipped_runners: list[str] = []
        for runner in self._runners[:-1]:
            why = runner.why_not(ticket)
            if runner.can_run(ticket):
                try:
                    child = runner.start(ticket, log, _told(environment, runner), cpus)
                    return child, "; ".join(skipped_runners)
                except RunnerUnavailableError as error:
                    _log.warning("job %d goes to the next runner: %s", ticket.job, error)
                    why = str(error)
            if why:
                skipped_runners.append(f"no {runner.name}: {why}")
        last = self._runners[-1]
        child = last.start(ticket, log, _told(environment, last), cpus)
        return child, "; ".join(skipped_runners)


def _told(environment: Mapping[str, str], runner: Runner) -> dict[str, str]:
    return {**environment, "KOCHI_RUNNER": runner.name}
