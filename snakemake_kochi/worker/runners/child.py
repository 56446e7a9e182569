"""A child of the worker that waits, before it does anything, until it is released.

It forks by itself instead of through `subprocess`, because the process must exist (its number has
to be on disk) before the command begins: whoever recovers the ticket of a worker that was killed
has to find all processes it could have started. `subprocess` returns when the command has begun
already. The worker has one thread, so running Python between fork and exec is safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

from snakemake_kochi.queue.processes import ProcessIdentity
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.worker.runners.interface import Exit

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

# proc_pid_oom_score_adj(5): -1000 to 1000. A worker that is killed takes all its jobs with it.
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_OOM_VICTIM = 800

CANNOT_EXECUTE = 126  # as the shells have it
NOT_FOUND = 127


class Child:
    """See `interface.Execution`."""

    def __init__(self, runner: str, pid: int, gate: int) -> None:
        """`gate`: the end of a pipe from which the child reads its release."""
        process = ProcessIdentity.of(pid)
        if process is None:  # not even a zombie: it is not our child
            raise ChildProcessError(f"process {pid} has vanished")
        self.runner = runner
        self.process = process
        self._gate = gate

    def release(self) -> None:
        # It may have been killed before it could begin.
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

    def reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process.pid, 0)


def fork_child(
    runner: str,
    ticket: Ticket,
    log: int,
    cpus: Collection[int] | None,
    work: Callable[[], int],
) -> Child:
    """A child that does `work` once it is released, and exits with the status that it returns.

    Raises OSError when no process can be made.
    """
    held, gate = os.pipe()
    worker = os.getpid()
    # A signal that came before the child has put off the worker's handlers would be lost.
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
    """The child's life up to exec. Nothing may return or raise from here into the worker's loop."""
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


def lead_session(log: int, cpus: Collection[int] | None) -> None:
    """Make the calling process what a job's main process is: leader of a session of its own, with
    the log as its output, on its CPUs, and the first to go when memory runs out."""
    os.setsid()
    # The kernel ends the main process with the worker, whatever way that dies; the rest of the
    # session is ended by whoever recovers the ticket.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _redirect(log)
    _confine(cpus)


def await_release(held: int, worker: int) -> None:
    """Return when the worker releases the calling process, a child of it; end it otherwise."""
    # Neither a worker that died before prctl was called nor one that died since releases it.
    if os.getppid() != worker or os.read(held, 1) != b"!":
        os._exit(CANNOT_EXECUTE)


def _restore_signals() -> None:
    """A command expects what a shell gives it; Python ignores SIGPIPE, and the worker catches."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _confine(cpus: Collection[int] | None) -> None:
    # A CPU may have been taken from us since: then the job runs where it may, as its worker does.
    with contextlib.suppress(OSError):
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
    with contextlib.suppress(OSError, ValueError):
        # Whoever started the worker may have wanted even more; less would need a privilege.
        if int(_OOM_SCORE.read_text()) < _OOM_VICTIM:
            _OOM_SCORE.write_text(str(_OOM_VICTIM))


def _redirect(log: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _close_all_but_standard() -> None:
    # Python's own are closed by exec; the worker may have inherited others, of a scheduler's
    # launcher say, that wait for their last holder.
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def enter(ticket: Ticket, environment: dict[str, str]) -> int:
    """Go to the ticket's directory, and say so in the environment; returns an exit status."""
    try:
        os.chdir(ticket.directory)
    except OSError as error:
        say(ticket, f"cannot enter the directory {ticket.directory!r}: {error.strerror}")
        return CANNOT_EXECUTE
    environment["PWD"] = ticket.directory
    return 0


def execute(ticket: Ticket, program: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Become the program; returns only when that cannot be, with an exit status."""
    try:
        os.execvpe(program, arguments, environment)
    except FileNotFoundError as error:
        say(ticket, f"the command {program!r} was not found: {error.strerror}")
        return NOT_FOUND
    except OSError as error:
        say(ticket, f"the command {program!r} cannot be executed: {error.strerror}")
        return CANNOT_EXECUTE


def say(ticket: Ticket, message: str) -> None:
    """Write a message into the job's log, from the job's process."""
    text = f"kochi: job {ticket.job} ({ticket.name}): {message}\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "surrogateescape"))
