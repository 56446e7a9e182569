"""The runner that can run every ticket: it executes the command in a new process.

This module forks by itself because `subprocess` returns only when the command has begun. The
process must exist before the command begins, because its number must be on disk by then: the
process that recovers the ticket of a killed worker must find all processes that the worker could
have started. It settles the worker's other threads before, so running Python between fork and exec
is safe.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Mapping
from typing import NoReturn

from snakemake_kochi.files.together import settle
from snakemake_kochi.next.worker.job_process import (
    CANNOT_EXECUTE,
    enter,
    execute,
    lead_session,
    say,
)
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.interface import Child, Runner
from snakemake_kochi.worker.runners.job_process import await_release


class CommandRunner(Runner):
    """Executes a ticket's command."""

    name = "command"

    def can_run(self, ticket: Ticket) -> bool:
        return True

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        return fork_child(
            self.name, ticket, log, cpus, lambda: _run_command(ticket, dict(environment))
        )


def _run_command(ticket: Ticket, environment: dict[str, str]) -> int:
    """Execute the command; returns an exit status, and only when the command cannot be executed."""
    if status := enter(ticket):
        return status
    return execute(ticket, ticket.command[0], list(ticket.command), environment)


def fork_child(
    runner: str,
    ticket: Ticket,
    log: int,
    cpus: Collection[int] | None,
    work: Callable[[], int],
) -> Child:
    """Fork a child that calls `work` once released, and exits with the status that `work` returns.

    Raises OSError when no process can be made.
    """
    settle()
    held, gate = os.pipe()
    worker = os.getpid()
    # Otherwise a signal that arrives before the child has reset the worker's handlers is lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            os.close(gate)
            _become(ticket, log, cpus, held, worker, work)
    except OSError:
        os.close(gate)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(held)
    return Child(runner, pid, gate)


def _become(
    ticket: Ticket,
    log: int,
    cpus: Collection[int] | None,
    held: int,
    worker: int,
    work: Callable[[], int],
) -> NoReturn:
    """Live as the child up to exec; must not return or raise into the worker's loop."""
    status = CANNOT_EXECUTE
    try:
        _restore_signals()
        lead_session(log, cpus)
        await_release(held, worker)
        _close_all_but_standard()
        status = work()
    except BaseException as error:
        say(ticket, repr(error))
    finally:
        os._exit(status)


def _restore_signals() -> None:
    """Restore the signal handling that a command gets from a shell.

    Python ignores SIGPIPE, and the worker handles other signals.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _close_all_but_standard() -> None:
    # Exec closes Python's own descriptors. The worker may have inherited others, for example from a
    # scheduler's launcher, which waits until every process has closed them.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
