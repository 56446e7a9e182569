"""What a process does before it becomes a job's command: its session, its release, and for a shell
job what Snakemake would prepare.

It happens in a process that was forked for the job: a few system calls, and nothing that the job
does not need. The spawner imports this module and has to stay small, so it uses only the standard
library, and little of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    from snakemake_kochi.queue.ticket import ShellJob

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

UNPREPARED = 1  # as of a Snakemake that refuses a job
CANNOT_EXECUTE = 126  # as the shells have it
NOT_FOUND = 127

# Seconds between two looks for files that are missing.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

# As Snakemake's shell() sets them.
_THREADS = (
    "OMP_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_TEMPORARY = ("TMPDIR", "TMP", "TEMPDIR", "TEMP")
# Where Python looks for the temporary directory.
TEMPORARY_SOURCES = ("TMPDIR", "TEMP", "TMP")


def end_with_parent() -> None:
    """Have the kernel kill the calling process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def lead_session(log: int, cpus: Collection[int] | None) -> None:
    """Make the calling process a job's main process: the leader of a session of its own, with the
    log as its output, on its CPUs, and the first to go when memory runs out."""
    os.setsid()
    # Whatever way the worker dies; the rest of the session is ended by whoever recovers the ticket.
    end_with_parent()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
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


def enter(job: Job, environment: dict[str, str]) -> int:
    """Go to the job's directory, and say so in the environment; returns an exit status."""
    try:
        _repeated_if_stale(lambda: os.chdir(job.directory))
    except OSError as error:
        say(job, f"cannot enter the directory {job.directory!r}: {error.strerror}")
        return CANNOT_EXECUTE
    environment["PWD"] = job.directory
    return 0


def execute(job: Job, program: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Become the program; returns only when that is not possible, with an exit status."""
    try:
        _repeated_if_stale(lambda: os.execvpe(program, arguments, environment))
    except FileNotFoundError as error:
        say(job, f"the command {program!r} was not found: {error.strerror}")
        return NOT_FOUND
    except OSError as error:
        say(job, f"the command {program!r} cannot be executed: {error.strerror}")
        return CANNOT_EXECUTE


def execute_shell_job(
    job: Job,
    shell: ShellJob,
    environment: dict[str, str],
    temporary: str | None = None,
    measure: Callable[[list[str]], int] | None = None,
) -> int:
    """Prepare a shell job as Snakemake does, and become its command; or let `measure` execute it.

    `temporary`: the answer of find_temporary_directory, if it is known already. Returns an exit
    status when the process did not become the command. May raise what `measure` raises.
    """
    if status := enter(job, environment):
        return status
    try:
        script = _repeated_if_stale(lambda: _prepare(job, shell, environment, temporary))
    except (_UnpreparedError, OSError) as error:
        say(job, str(error))
        return UNPREPARED
    arguments = [shell.executable, "-c", script]
    if measure is not None:
        return measure(arguments)
    return execute(job, shell.executable, arguments, environment)


def say(job: Job, message: str) -> None:
    """Write a message into the job's log, from the job's process."""
    _note(f"job {job.job} ({job.name}): {message}")


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"kochi: {text}\n".encode("utf-8", "surrogateescape"))


def _repeated_if_stale(call: Callable[[], Answer]) -> Answer:
    """Make a call that may be repeated, again while the answer is ESTALE: see files.answered."""
    try:
        return call()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
    # Only here, for the size of all that it imports.
    from snakemake_kochi.files import answered

    return answered(call)


# ---- what Snakemake does before it executes a job's command


class _UnpreparedError(Exception):
    """The job cannot begin; the text says why, for people."""


def _prepare(job: Job, shell: ShellJob, environment: dict[str, str], temporary: str | None) -> str:
    """Make ready for the command, in the current directory; returns it, and adds to its
    environment. Raises _UnpreparedError or OSError."""
    if protected := [path for path in job.outputs if _is_protected(path)]:
        raise _UnpreparedError(
            f"write-protected output files: {', '.join(protected)}. Remove them, or make them "
            "writable, to have them made again."
        )
    for path in job.outputs:
        _remove(path, path in shell.directories)
    for path in shell.logs:
        _remove(path, False)
    for name in _THREADS:
        environment[name] = str(shell.threads)
    script = shell.script
    if shell.temporary_directory:
        script = script.replace(
            shell.temporary_directory, _use_temporary_directory(environment, temporary)
        )
    benchmark = () if shell.benchmark is None else (shell.benchmark.file,)
    for directory in {os.path.dirname(path) for path in (*job.outputs, *shell.logs, *benchmark)}:
        if directory:
            # If it is a file, the command will say so better.
            with contextlib.suppress(FileExistsError):
                os.makedirs(directory, exist_ok=True)
    _wait_for(shell.inputs, shell.latency_wait)
    return script


def _is_protected(path: str) -> bool:
    if os.access(path, os.W_OK):
        return False
    # Symbolic links are never taken for protected.
    return os.path.exists(path) and not os.path.islink(path)


def _remove(path: str, with_content: bool) -> None:
    if path == os.devnull:
        return
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        # Linux says EISDIR of a directory, others EPERM.
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
            _note(f"the directory {path} was not removed: {left}")


def find_temporary_directory(environment: Mapping[str, str]) -> str:
    """Where Python puts temporary files of a process with this environment."""
    import tempfile

    before = {name: os.environ.get(name) for name in TEMPORARY_SOURCES}
    known, tempfile.tempdir = tempfile.tempdir, None
    try:
        _set_variables({name: environment.get(name) for name in TEMPORARY_SOURCES})
        return tempfile.gettempdir()
    finally:
        tempfile.tempdir = known
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _use_temporary_directory(environment: dict[str, str], known: str | None) -> str:
    """The node's, by the job's environment; it is there afterwards."""
    is_usable = known is not None and os.access(known, os.W_OK | os.X_OK)
    found = known if known and is_usable else find_temporary_directory(environment)
    os.makedirs(found, exist_ok=True)
    for name in _TEMPORARY:
        environment[name] = found
    return found


def show_awaited(arguments: Sequence[str]) -> None:
    """Have this node see the files for which a Snakemake with these arguments waits before it does
    anything, as far as they are there: Snakemake only asks for them, again and again."""
    awaited = _values_of("--wait-for-files", arguments)
    for path in _values_of("--wait-for-files-file", arguments):
        _missing([path])
        with contextlib.suppress(OSError), open(path, errors="surrogateescape") as lines:
            awaited += [line.strip() for line in lines]
    _missing(awaited)


def _values_of(option: str, arguments: Sequence[str]) -> list[str]:
    if option not in arguments:
        return []
    values = []
    for word in arguments[arguments.index(option) + 1 :]:
        if word.startswith("--"):
            break
        values.append(word)
    return values


def _missing(paths: Iterable[str]) -> list[str]:
    """The files that are not there, after a second look through their directories, if need be."""
    missing = [path for path in paths if not os.path.exists(path)]
    if not missing:
        return []
    # Only here, for the size of all that it imports.
    from snakemake_kochi.files import show_new_files

    for directory in {os.path.dirname(path) for path in missing}:
        show_new_files(directory)
    return [path for path in missing if not os.path.exists(path)]


def _wait_for(paths: Sequence[str], seconds: float) -> None:
    """Files that another node has written may take a while to be seen on this one."""
    missing = _missing(paths)
    if not missing:
        return
    _note(f"waiting at most {seconds:g} seconds for missing files: {', '.join(missing)}")
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
        missing = _missing(missing)
