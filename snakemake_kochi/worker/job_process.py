"""The process of a job before it becomes the job's command.

It makes its session and enters the job's directory. The supervisor imports this module, and forks
faster the smaller it is: so the module uses only the standard library, and little of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable, Collection

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    Answer = TypeVar("Answer")

    class Job(Protocol):
        """The fields of a ticket that are needed here."""

        @property
        def job(self) -> int | str: ...
        @property
        def name(self) -> str: ...
        @property
        def directory(self) -> str: ...
        @property
        def outputs(self) -> tuple[str, ...]: ...
        @property
        def logs(self) -> tuple[str, ...]: ...


_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)

# proc_pid_oom_score_adj(5): -1000 to 1000. If the kernel killed the worker instead, all its jobs
# would die with it.
_OOM_SCORE = "/proc/{}/oom_score_adj"
_OOM_VICTIM = 800

CANNOT_EXECUTE = 126  # as in the shell
NOT_FOUND = 127


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal the calling process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)


def lead_session(log: int, cpus: Collection[int] | None) -> None:
    """Make the calling process a job's main process.

    The process leads a session of its own, writes its output to the log, runs on its CPUs, and is
    the first to be killed when memory runs out.
    """
    os.setsid()
    # The process ends however the worker dies; the process that recovers the ticket ends the rest
    # of the session.
    end_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # A CPU may have been taken from us since: then the job runs on any CPU of its worker.
    with contextlib.suppress(OSError):
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
    become_victim()


def become_victim(pid: int | str = "self") -> None:
    """Have a process be the first to be killed when memory runs out."""
    with contextlib.suppress(OSError, ValueError):
        score = os.open(_OOM_SCORE.format(pid), os.O_RDWR)
        # The worker may have been started with a higher score; a lower one would need a privilege.
        if int(os.read(score, 16)) < _OOM_VICTIM:
            os.write(score, b"%d" % _OOM_VICTIM)
        os.close(score)


def enter(job: Job) -> int:
    """Enter the job's directory; return an exit status."""
    try:
        repeated_if_stale(lambda: os.chdir(job.directory))
    except OSError as error:
        say(job, f"cannot enter the directory {job.directory!r}: {error.strerror}")
        return CANNOT_EXECUTE
    return 0


def execute(job: Job, program: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Become the program; returns an exit status, and only when that is not possible."""
    try:
        _execute_first(program, arguments, environment)
        repeated_if_stale(lambda: os.execvpe(program, arguments, environment))
    except FileNotFoundError as error:
        say(job, f"the command {program!r} was not found: {error.strerror}")
        return NOT_FOUND
    except OSError as error:
        say(job, f"the command {program!r} cannot be executed: {error.strerror}")
        return CANNOT_EXECUTE


def _execute_first(program: str, arguments: list[str], environment: dict[str, str]) -> None:
    """As os.execvpe, which imports modules in each process: 1 ms. Returns if there is none."""
    directories = environment.get("PATH", os.defpath).split(":") if "/" not in program else []
    for path in [os.path.join(directory, program) for directory in directories]:
        if os.access(path, os.X_OK):
            with contextlib.suppress(OSError):
                os.execve(path, arguments, environment)


def say(job: Job, message: str) -> None:
    """Write a message into the job's log, from the job's process."""
    note(f"job {job.job} ({job.name}): {message}")


def note(text: str) -> None:
    """Write a line about this run of the job into its log, from the job's process."""
    with contextlib.suppress(OSError):
        os.write(2, f"kochi: {text}\n".encode("utf-8", "surrogateescape"))


def repeated_if_stale(call: Callable[[], Answer]) -> Answer:
    """Make a call that may be repeated, and repeat it while it fails with ESTALE.

    See files.answered.
    """
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    find_packages()
    from snakemake_kochi.files import answered

    return answered(call)


def find_packages() -> None:
    """Call this before an import that needs other packages: the supervisor starts without them."""
    if sys.flags.no_site:
        import site

        site.main()
