"""The process of a job before it becomes the job's command.

It makes its session, enters the job's directory and, for a shell job, does what Snakemake does
before it executes a command. The supervisor imports this module, and forks faster the smaller it
is: so the module uses little of the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from snakemake_kochi.parent_death import end_with_parent
from snakemake_kochi.thread_variables import THREAD_VARIABLES

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    from snakemake_kochi.tickets.ticket import ShellJob

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


# proc_pid_oom_score_adj(5): -1000 to 1000. If the kernel killed the worker instead, all its jobs
# would die with it.
_OOM_SCORE = "/proc/{}/oom_score_adj"
_OOM_VICTIM = 800

CANNOT_EXECUTE = 126  # as in the shell
NOT_FOUND = 127
UNPREPARED = 1  # the status of a Snakemake that refuses a job

# Seconds between two looks for missing files.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

_TEMPORARY = ("TMPDIR", "TMP", "TEMPDIR", "TEMP")
# The variables in which Python looks for it.
TEMPORARY_SOURCES = ("TMPDIR", "TEMP", "TMP")


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


# ---- shell jobs


def execute_shell_job(
    job: Job,
    shell: ShellJob,
    environment: dict[str, str],
    run: Callable[[list[str]], int] | None = None,
) -> int:
    """Prepare a shell job as Snakemake does, and become its command or let `run` execute it.

    Returns an exit status when the process has not become the command. May raise the exceptions of
    `run`.
    """
    if status := enter(job):
        return status
    try:
        script = repeated_if_stale(lambda: _prepare(job, shell, environment))
    except (_UnpreparedError, OSError) as error:
        say(job, str(error))
        return UNPREPARED
    arguments = [shell.executable, "-c", script]
    if run is not None:
        return run(arguments)
    return execute(job, shell.executable, arguments, environment)


class _UnpreparedError(Exception):
    """The job cannot begin; the text gives the reason, for people."""


def _prepare(job: Job, shell: ShellJob, environment: dict[str, str]) -> str:
    """Prepare the current directory for the command, and return the command.

    Adds to the command's environment. Raises _UnpreparedError or OSError.
    """
    if protected := [path for path in job.outputs if _is_protected(path)]:
        raise _UnpreparedError(
            f"write-protected output files: {', '.join(protected)}. Remove them, or make them "
            "writable, to have them made again."
        )
    for path in job.outputs:
        _remove(path, path in shell.directories)
    for path in job.logs:
        _remove(path, False)
    for name in THREAD_VARIABLES:
        environment[name] = str(shell.threads)
    script = shell.script
    if shell.temporary_directory:
        script = script.replace(shell.temporary_directory, _use_temporary_directory(environment))
    benchmark = () if shell.benchmark is None else (shell.benchmark.file,)
    for directory in {os.path.dirname(path) for path in (*job.outputs, *job.logs, *benchmark)}:
        if directory:
            # If the directory is a file, the command gives a better message.
            with contextlib.suppress(FileExistsError):
                os.makedirs(directory, exist_ok=True)
    _wait_for(shell.inputs, shell.latency_wait)
    return script


def _is_protected(path: str) -> bool:
    if os.access(path, os.W_OK):
        return False
    # Symbolic links never count as protected.
    return os.path.exists(path) and not os.path.islink(path)


def _remove(path: str, with_content: bool) -> None:
    if path == os.devnull:
        return
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        # For a directory Linux reports EISDIR, other systems EPERM.
        if os.path.islink(path) or not os.path.isdir(path):
            raise
        if with_content:
            import shutil

            shutil.rmtree(path)
            return
        try:
            os.removedirs(path)
        except OSError as error:
            left = "not empty" if error.errno == errno.ENOTEMPTY else error.strerror
            note(f"the directory {path} was not removed: {left}")


def _use_temporary_directory(environment: dict[str, str]) -> str:
    """The temporary directory of the node, as Python finds it in the job's environment."""
    named = (environment.get(name) for name in TEMPORARY_SOURCES)
    paths = map(os.path.abspath, filter(None, (*named, "/tmp", "/var/tmp", "/usr/tmp", ".")))
    found = next((path for path in paths if os.access(path, os.W_OK | os.X_OK)), "/tmp")
    for name in _TEMPORARY:
        environment[name] = found
    return found


def missing_files(paths: Iterable[str]) -> list[str]:
    """The files that are missing, after a second look through their directories if necessary."""
    missing = [path for path in paths if not os.path.exists(path)]
    if not missing:
        return []
    find_packages()
    from snakemake_kochi.files import show_new_files

    for directory in {os.path.dirname(path) for path in missing}:
        show_new_files(directory)
    return [path for path in missing if not os.path.exists(path)]


def _wait_for(paths: Sequence[str], seconds: float) -> None:
    """Wait for files that another node has written: this node may see them only after a while."""
    missing = missing_files(paths)
    if not missing:
        return
    note(f"waiting at most {seconds:g} seconds for missing files: {', '.join(missing)}")
    deadline = time.monotonic() + seconds
    pause = _FIRST_PAUSE
    while missing:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _UnpreparedError(
                f"missing files after {seconds:g} seconds: {', '.join(missing)}. If the "
                "filesystem is slow, wait longer with --latency-wait."
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
        missing = missing_files(missing)
