"""A child of the worker that waits for its release before it does anything.

This module forks by itself because `subprocess` returns only when the command has begun. The
process must exist before the command begins, because its number must be on disk by then: the
process that recovers the ticket of a killed worker must find all processes that the worker could
have started. The worker has one thread, so running Python between fork and exec is safe.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection
from typing import NoReturn

from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.interface import Exit, Usage
from snakemake_kochi.worker.runners.job_process import (
    CANNOT_EXECUTE,
    await_release,
    lead_session,
    say,
)


class Child:
    """The process of a job that the worker has forked; see `interface.Execution`."""

    def __init__(self, runner: str, pid: int, gate: int) -> None:
        """Hold a forked process; `gate`: the end of the pipe that releases it."""
        process = ProcessIdentity.of(pid)
        if process is None:  # not even a zombie: the process is not our child
            raise ChildProcessError(f"process {pid} has vanished")
        self.runner = runner
        self.process = process
        self._gate = gate

    def release(self) -> None:
        # The child may have been killed before it could begin.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._gate, b"!")
        os.close(self._gate)

    def abandon(self) -> None:
        os.close(self._gate)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        os.waitpid(self.process.pid, 0)

    def poll(self) -> Exit | None:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self.process.pid, options)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return Exit(found.si_status, None)
        return Exit(None, found.si_status)

    def reap(self) -> Usage | None:
        with contextlib.suppress(ChildProcessError):
            _, _, used = os.wait4(self.process.pid, 0)
            # Linux counts memory in KiB here: see getrusage(2).
            return Usage(used.ru_utime + used.ru_stime, used.ru_maxrss // 1024)
        return None


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
