"""A shell job's process: what Snakemake does before it executes a job's command, done here.

The supervisor imports this module, too: see `job_process.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from snakemake_kochi.thread_variables import THREAD_VARIABLES
from snakemake_kochi.worker.job_process import (
    enter,
    execute,
    find_packages,
    note,
    repeated_if_stale,
    say,
)

TYPE_CHECKING = False  # not from typing, for its size
if TYPE_CHECKING:
    from snakemake_kochi.tickets.ticket import ShellJob
    from snakemake_kochi.worker.job_process import Job

UNPREPARED = 1  # the status of a Snakemake that refuses a job

# Seconds between two looks for missing files.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

_TEMPORARY = ("TMPDIR", "TMP", "TEMPDIR", "TEMP")
# The variables in which Python looks for the temporary directory.
TEMPORARY_SOURCES = ("TMPDIR", "TEMP", "TMP")


def execute_shell_job(
    job: Job,
    shell: ShellJob,
    environment: dict[str, str],
    temporary: str | None = None,
    run: Callable[[list[str]], int] | None = None,
) -> int:
    """Prepare a shell job as Snakemake does, and become its command or let `run` execute it.

    `temporary`: the answer of find_temporary_directory, if already known. Returns an exit status
    when the process has not become the command. May raise the exceptions of `run`.
    """
    if status := enter(job):
        return status
    try:
        script = repeated_if_stale(lambda: _prepare(job, shell, environment, temporary))
    except (_UnpreparedError, OSError) as error:
        say(job, str(error))
        return UNPREPARED
    arguments = [shell.executable, "-c", script]
    if run is not None:
        return run(arguments)
    return execute(job, shell.executable, arguments, environment)


class _UnpreparedError(Exception):
    """The job cannot begin; the text gives the reason, for people."""


def _prepare(job: Job, shell: ShellJob, environment: dict[str, str], temporary: str | None) -> str:
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
        script = script.replace(
            shell.temporary_directory, _use_temporary_directory(environment, temporary)
        )
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


def find_temporary_directory(environment: Mapping[str, str]) -> str:
    """The directory where Python puts temporary files in a process with this environment."""
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
    """The temporary directory of the node in the job's environment; creates it if necessary."""
    is_usable = known is not None and os.access(known, os.W_OK | os.X_OK)
    found = known if known and is_usable else find_temporary_directory(environment)
    os.makedirs(found, exist_ok=True)
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
