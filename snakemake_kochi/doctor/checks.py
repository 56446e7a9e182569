"""Checks, each in a process of its own with a deadline.

A hanging filesystem hangs only that process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import TrialPaths

Answer = TypeVar("Answer")

# Seconds from SIGKILL to the end. A process that hangs in the kernel does not end, and remains.
_KILL_PATIENCE = 1.0
# NFS keeps a file that is open on another node under another name, for some seconds.
_REMOVAL_PATIENCE = 5.0
INTERRUPTING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    `verdict`: from good to bad; a note is about a fact that cannot be judged, or that was not
    tested. `measured` is a sentence about the measurement, `advice` one about what to do, if
    anything. `run` adds the `check` and its `directory`, "" if it is about the node.
    """

    verdict: Literal["ok", "note", "warning", "failed"]
    measured: str
    advice: str = ""
    check: str = ""
    directory: str = ""


class Check(NamedTuple):
    """A check of a directory or of the node.

    `patience`: seconds, if it may need more than others. After an error in a check that `is_needed`
    the rest is not tried.
    """

    name: str
    directory: Path | None
    measure: Callable[[], Finding]
    patience: float = 0.0
    is_needed: bool = False


class HangsError(KochiError):
    """No answer came before the deadline."""


def run(checks: Iterable[Check], patience: float) -> Generator[Finding]:
    """The findings of checks, up to the first one that hangs.

    Each check has `patience` seconds to answer.
    """
    for check in checks:
        try:
            found = isolated(check.measure, max(patience, check.patience))
        except KochiError as error:
            yield failed(check.name, check.directory, error)
            if check.is_needed or isinstance(error, HangsError):
                return
        else:
            yield replace(found, check=check.name, directory=str(check.directory or ""))


def failed(name: str, directory: Path | None, error: KochiError) -> Finding:
    """The finding of a check that ended with an error."""
    advice = error.hint or ""
    if isinstance(error, HangsError):
        advice = f"Check the filesystem of {directory}. " if directory else ""
        if {"lock", "locks"} & set(name.split()):  # and not a clock
            advice = "Name a directory with working locks in kochi.yaml (machines: NAME: lock_dir)"
            advice += ", or use lock_kind: lease. "
        advice += "The later checks were skipped."
    return Finding("failed", error.message, advice, name, str(directory or ""))


@contextlib.contextmanager
def trial(
    paths: TrialPaths, patience: float, remark: Callable[[str], None]
) -> Iterator[TrialPaths]:
    """A context with the directory for trials.

    At the end it is removed, with the directories that had to be made for it. `remark` prints a
    message if something cannot be removed. Raises KochiError.
    """
    around = (paths.directory, *paths.directory.parents)
    missing = isolated(lambda: [path for path in around if not path.is_dir()], patience)

    def tell(is_left: bool) -> None:
        if is_left:
            remark(f"Some test files are left. To remove them, type: rm -r {paths.directory}")

    with at_end(partial(_remove, missing), max(patience, 2 * _REMOVAL_PATIENCE), tell):
        isolated(partial(make_directory, paths.directory), patience)
        yield paths


def _remove(made: list[Path]) -> bool:
    """Remove a directory, the first of them, with its content, and the unused ones around it.

    The others were made for the first, and remain if they are in use. Returns whether the first is
    left.
    """

    def is_removed() -> bool:
        # Again and again: on NFS, a file that a process still has open leaves another behind.
        shutil.rmtree(made[0], ignore_errors=True)
        return not made[0].exists()

    wait_until(is_removed, _REMOVAL_PATIENCE, 0.01)
    for path in made[1:]:
        with contextlib.suppress(OSError):
            path.rmdir()
    return made[0].exists()


def isolated(work: Callable[[], Answer], patience: float) -> Answer:
    """The return value of the work, from a process that may hang.

    Raises HangsError after `patience` seconds, and KochiError for an error of the work.
    """
    answer: Answer = _result(_start(work), patience)
    return answer


@contextlib.contextmanager
def at_end(
    work: Callable[[], Any], patience: float, tell: Callable[[Any], None] = lambda _: None
) -> Iterator[None]:
    """Do the work at the end in such a process, also when this one is killed.

    `tell` gets its return value, or the error.
    """
    waits, release = os.pipe()

    def wait() -> Any:
        os.close(release)
        os.read(waits, 1)
        return work()

    process = _start(wait)
    os.close(waits)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, process.mask)
        yield
    finally:
        os.close(release)
        try:
            result = _result(process, patience)
        except KochiError as error:
            result = error
        tell(result)


class _Process(NamedTuple):
    """A process that may hang.

    `mask`: the signals that were blocked before its start. Only these are blocked again as soon as
    its end is certain.
    """

    number: int
    answer: Connection
    mask: set[int | signal.Signals]


def _start(work: Callable[[], Any]) -> _Process:
    reader, writer = Pipe(duplex=False)
    # Otherwise an exception by a signal would be lost in the functions that Python calls at a fork,
    # or the child would be lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTING)
    if (child := os.fork()) == 0:
        _do(work, writer)
    writer.close()
    return _Process(child, reader, mask)


def _result(process: _Process, patience: float) -> Any:
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, process.mask)
        if not process.answer.poll(patience):
            raise HangsError(f"no answer within {patience:g} seconds: it hangs")
        result, error = process.answer.recv()
    except (EOFError, OSError):
        raise KochiError("the process of this check was ended") from None
    finally:
        # Also after Ctrl-C.
        process.answer.close()
        _end(process.number)
    if error is not None:
        raise KochiError(*error)
    return result


def _do(work: Callable[[], Any], answer: Connection) -> NoReturn:
    try:
        os.setsid()  # Ctrl-C is for the waiting process
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            # A reader of our output must not wait for a process that hangs.
            os.dup2(nothing, stream)
        for number in INTERRUPTING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTING)
        result, message = None, None
        try:
            result = work()
        except KochiError as error:
            message = (error.message, error.hint)
        except OSError as error:
            file = f"{error.filename}: " if error.filename else ""
            message = (f"{file}{error.strerror or error}", None)
        except Exception as error:
            message = (f"{type(error).__name__}: {error}", None)
        answer.send((result, message))
    finally:
        os._exit(0)


def _end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
        os.killpg(child, signal.SIGKILL)
    wait_until(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), _KILL_PATIENCE, 0.001)
