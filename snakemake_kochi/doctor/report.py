"""Findings of checks. They are measured in a process of their own, the only one that may hang."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import TrialPaths

# Seconds from SIGKILL to the end. A process that hangs in the kernel does not end, and remains.
_KILL_PATIENCE = 1.0
# NFS keeps a file that is open on another node under another name, for some seconds.
_REMOVAL_PATIENCE = 5.0
# Seconds for an interrupted process to end its jobs and remove its files.
_CLEANING_PATIENCE = 40.0
INTERRUPTING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


@dataclass(frozen=True)
class Finding:
    """The outcome of a check.

    `verdict`: from good to bad; a note is about a fact that cannot be judged, or that was not
    tested. `measured` is a sentence about the measurement, `advice` one about what to do, if
    anything. `Report.check` adds the `check` and its `directory`, "" if it is about the node.
    """

    verdict: Literal["ok", "note", "warning", "failed"]
    measured: str
    advice: str = ""
    check: str = ""
    directory: str = ""

    @classmethod
    def of_error(cls, error: Exception) -> Finding:
        if isinstance(error, KochiError):
            return cls("failed", error.message, error.hint or "")
        if isinstance(error, OSError):
            file = f"{error.filename}: " if error.filename else ""
            return cls("failed", f"{file}{error.strerror or error}")
        return cls("failed", f"{type(error).__name__}: {error}")


class Step(NamedTuple):
    """A check that begins.

    `directory`: None if it is about the node. `patience`: seconds, if it may need more than others.
    `if_hanging`: what to do if it hangs, by default about the filesystem of the directory.
    """

    name: str
    directory: Path | None
    patience: float = 0.0
    if_hanging: str = ""

    def found(self, finding: Finding) -> Finding:
        return replace(finding, check=self.name, directory=str(self.directory or ""))

    def hangs(self, seconds: float) -> Finding:
        about = f"Check the filesystem of {self.directory}. " if self.directory else ""
        advice = f"{self.if_hanging or about}The later checks were skipped."
        return self.found(
            Finding("failed", f"no answer within {seconds:g} seconds: it hangs", advice)
        )


class Report:
    """Performs checks, and sends what happens: steps, findings, remarks (texts) and made paths."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send

    def check(
        self,
        name: str,
        directory: Path | None,
        measure: Callable[[], Finding],
        patience: float = 0.0,
        if_hanging: str = "",
    ) -> Finding:
        """Perform a check, see `Step`. An error of `measure` is a failure."""
        step = Step(name, directory, patience, if_hanging)
        self.send(step)
        try:
            finding = measure()
        except Exception as error:
            finding = Finding.of_error(error)
        finding = step.found(finding)
        self.send(finding)
        return finding

    @contextlib.contextmanager
    def trial(self, paths: TrialPaths) -> Iterator[TrialPaths]:
        """A context with the directory for trials.

        At its end the directory is removed, with those around it that were made for it.
        """
        around = (paths.directory, *paths.directory.parents)
        missing = [path for path in around if not path.is_dir()]
        self.send(missing)
        try:
            make_directory(paths.directory)
            yield paths
        finally:
            self.remove(missing)

    def remove(self, made: list[Path]) -> None:
        """Remove a directory, the first of them, with its content, and the unused ones around it.

        The others were made for the first, and remain if they are in use.
        """

        def is_removed() -> bool:
            # Again and again: on NFS, a file that a process still has open leaves another behind.
            shutil.rmtree(made[0], ignore_errors=True)
            return not made[0].exists()

        if not wait_until(is_removed, _REMOVAL_PATIENCE, 0.01):
            self.send(_left(made))
        for path in made[1:]:
            with contextlib.suppress(OSError):
                path.rmdir()


def _left(made: list[Path]) -> str:
    return f"Some test files are left. To remove them, type: rm -r {made[0]}"


Section = Callable[[Report], None]


def isolated(
    section: Section, step: Step, deadline: float, remark: Callable[[str], None]
) -> Generator[Finding]:
    """The findings of a section of checks, in a process of its own, up to the first that hangs.

    `step` is the section between its checks: an error there is a failure, too. Each step has
    `deadline` seconds to end. `remark` prints messages meanwhile. When the generator is closed, or
    this process is killed, the section is interrupted, and its context managers clean up.
    """
    reader, writer = Pipe(duplex=False)
    # Otherwise an exception by a signal would be lost in the functions that Python calls at a fork,
    # or the child would be lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTING)
    # Not a multiprocessing.Process: at its end Python waits for it, even if it hangs in the kernel.
    if (child := os.fork()) == 0:
        _measure(section, step, reader, writer)
    current, is_lost = step, False
    made: list[list[Path]] = []
    try:
        writer.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        while True:
            seconds = max(deadline, current.patience)
            if not reader.poll(seconds):
                is_lost = True
                yield current.hangs(seconds)
                return
            message = reader.recv()
            if message is None:
                return
            if isinstance(message, Step):
                current = message
            elif isinstance(message, Finding):
                current = step
                yield message
            elif isinstance(message, str):
                remark(message)
            else:
                made.append(message)
    except (EOFError, OSError):
        is_lost = True
        yield current.found(Finding("failed", "the process of this check was ended"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        reader.close()
        if not _end(child, 0.0 if is_lost else _CLEANING_PATIENCE) or is_lost:
            for paths in made:
                remove = partial(Report.remove, made=paths)
                if list(isolated(remove, step, max(deadline, 2 * _REMOVAL_PATIENCE), remark)):
                    remark(_left(paths))


def _measure(section: Section, step: Step, reader: Connection, writer: Connection) -> NoReturn:
    try:
        reader.close()  # a killed parent must be noticed
        os.setsid()  # Ctrl-C is for the parent
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            # A reader of our output must not wait for a process that hangs.
            os.dup2(nothing, stream)
        for number in INTERRUPTING:
            signal.signal(number, lambda *_: sys.exit())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTING)
        try:
            section(Report(writer.send))
        except Exception as error:
            writer.send(step.found(Finding.of_error(error)))
        writer.send(None)
    finally:
        os._exit(0)


def _end(child: int, patience: float) -> bool:
    """End a process and its children; returns whether it has cleaned up before."""

    def has_ended() -> bool:
        # It stays a zombie, so that its number is not used again.
        return bool(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    os.kill(child, signal.SIGTERM)
    has_cleaned = wait_until(has_ended, patience, 0.001, 0.05)
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    wait_until(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), _KILL_PATIENCE, 0.001)
    return has_cleaned
