"""What Snakemake does before it executes a job's command: here without Snakemake.

It happens in a process forked off the worker, for each job: a few system calls, and nothing that a
job does not need.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from snakemake_kochi.worker.runners.job_process import asked_again

TYPE_CHECKING = False  # not from typing, for its size: see spawner_process
if TYPE_CHECKING:
    from snakemake_kochi.queue.ticket import ShellJob, Ticket

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


class UnpreparedError(Exception):
    """The job cannot begin; the text says why, for people."""


def prepare(
    ticket: Ticket, shell: ShellJob, environment: dict[str, str], temporary: str | None = None
) -> str:
    """Make ready for the command, in the current directory; returns it, and adds to its
    environment. `temporary`: the answer of find_temporary_directory, if it is known already.
    Raises UnpreparedError or OSError."""
    return asked_again(lambda: _prepare(ticket, shell, environment, temporary))


def _prepare(
    ticket: Ticket, shell: ShellJob, environment: dict[str, str], temporary: str | None
) -> str:
    _refuse_protected(ticket.outputs)
    for path in ticket.outputs:
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
    _make_directories(
        {os.path.dirname(path) for path in (*ticket.outputs, *shell.logs, *benchmark)}
    )
    _wait_for(shell.inputs, shell.latency_wait)
    return script


def _refuse_protected(outputs: Iterable[str]) -> None:
    protected = [path for path in outputs if _is_protected(path)]
    if protected:
        raise UnpreparedError(
            f"write-protected output files: {', '.join(protected)}. Remove them, or make them "
            "writable, to have them made again."
        )


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
        _remove_directory(path, with_content)


def _remove_directory(path: str, with_content: bool) -> None:
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


def _make_directories(paths: Collection[str]) -> None:
    for path in paths:
        if path:
            # If it is a file, the command will say so better.
            with contextlib.suppress(FileExistsError):
                os.makedirs(path, exist_ok=True)


def show_awaited(arguments: Sequence[str]) -> None:
    """Have the files seen, as far as they are there, for which a Snakemake with these arguments
    waits before it does anything: it only asks for them, again and again."""
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
    """Those that are not there, after a second look by way of their directories, if need be."""
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
            raise UnpreparedError(
                f"missing files after {seconds:g} seconds: {', '.join(missing)}. If the "
                "filesystem is slow, wait longer with --latency-wait."
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
        missing = _missing(missing)


def _note(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"kochi: {text}\n".encode("utf-8", "surrogateescape"))
