"""What a process does before it becomes a job's command.

Imported by the spawner, which has to stay small, so nothing but the standard library is used here,
and little of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Callable, Collection

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    Answer = TypeVar("Answer")

    class Job(Protocol):
        """What is needed of a ticket."""

        @property
        def job(self) -> int: ...
        @property
        def name(self) -> str: ...
        @property
        def directory(self) -> str: ...
        @property
        def outputs(self) -> tuple[str, ...]: ...


_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

# proc_pid_oom_score_adj(5): -1000 to 1000. A worker that is killed takes all its jobs with it.
_OOM_SCORE = "/proc/self/oom_score_adj"
_OOM_VICTIM = 800

CANNOT_EXECUTE = 126  # as the shells have it
NOT_FOUND = 127


def end_with_parent() -> None:
    """Have the kernel kill the calling process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lead_session(log: int, cpus: Collection[int] | None) -> None:
    """Make the calling process what a job's main process is: leader of a session of its own, with
    the log as its output, on its CPUs, and the first to go when memory runs out."""
    os.setsid()
    # Whatever way the worker dies; the rest of the session is ended by whoever recovers the ticket.
    end_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _confine(cpus)


def _confine(cpus: Collection[int] | None) -> None:
    # A CPU may have been taken from us since: then the job runs where it may, as its worker does.
    with contextlib.suppress(OSError):
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
    with contextlib.suppress(OSError, ValueError):
        score = os.open(_OOM_SCORE, os.O_RDWR)
        # Whoever started the worker may have wanted even more; less would need a privilege.
        if int(os.read(score, 16)) < _OOM_VICTIM:
            os.write(score, b"%d" % _OOM_VICTIM)
        os.close(score)


def await_release(held: int, worker: int) -> None:
    """Return when the worker releases the calling process, a child of it; end it otherwise."""
    # Neither a worker that died before prctl was called nor one that died since releases it.
    if os.getppid() != worker or os.read(held, 1) != b"!":
        os._exit(CANNOT_EXECUTE)


def asked_again(call: Callable[[], Answer]) -> Answer:
    """Make a call that may be repeated, again while the answer is ESTALE: see files.answered."""
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # Only here, for the size of all that it imports.
    from snakemake_kochi.files import answered

    return answered(call)


def enter(job: Job, environment: dict[str, str]) -> int:
    """Go to the job's directory, and say so in the environment; returns an exit status."""
    try:
        asked_again(lambda: os.chdir(job.directory))
    except OSError as error:
        say(job, f"cannot enter the directory {job.directory!r}: {error.strerror}")
        return CANNOT_EXECUTE
    environment["PWD"] = job.directory
    return 0


def execute(job: Job, program: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Become the program; returns only when that cannot be, with an exit status."""
    try:
        asked_again(lambda: os.execvpe(program, arguments, environment))
    except FileNotFoundError as error:
        say(job, f"the command {program!r} was not found: {error.strerror}")
        return NOT_FOUND
    except OSError as error:
        say(job, f"the command {program!r} cannot be executed: {error.strerror}")
        return CANNOT_EXECUTE


def say(job: Job, message: str) -> None:
    """Write a message into the job's log, from the job's process."""
    text = f"kochi: job {job.job} ({job.name}): {message}\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "surrogateescape"))
