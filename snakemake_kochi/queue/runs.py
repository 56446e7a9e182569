"""Runs as other processes see them, and which files are being made in a directory.

This module only reads. A ticket that moves during a look may be missed; the next look finds it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from snakemake_kochi.base import files
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.files import is_same_directory, is_there
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue import views
from snakemake_kochi.tickets.history import JobId, places
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import Layout, Name, numbers_in
from snakemake_kochi.tickets.run import ENDED, OWN
from snakemake_kochi.tickets.ticket import now
from snakemake_kochi.tickets.watching import SILENT, Pulse, facts_in

_MOST_NAMED = 5


@dataclass(frozen=True)
class LockFile:
    """A file of Snakemake that keeps others out of a directory, as it was when it was made.

    Another file at the same path is another process's. `modified` is in nanoseconds.
    """

    path: str
    inode: int
    modified: int

    @classmethod
    def of(cls, path: str) -> LockFile | None:
        """The present file at a path, if any."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return cls(path, found.st_ino, found.st_mtime_ns)

    @property
    def is_there(self) -> bool:
        return LockFile.of(self.path) == self


def facts_of_run(
    queue: str | None, outputs: Collection[str] | None, locks: Sequence[str] = ()
) -> dict[str, Any]:
    """What a run says of itself. `outputs`: the files that it makes, None if that is not known;
    `locks`: the files with which its Snakemake keeps others from making the same."""
    process = ProcessIdentity.of(os.getpid())
    return {
        "started": now(),
        "node": asdict(this_node()),
        "process": None if process is None else asdict(process),
        "command": sys.argv,
        "queue": queue,
        "outputs": None if outputs is None else sorted(outputs),
        "locks": [asdict(lock) for path in locks if (lock := LockFile.of(path)) is not None],
    }


@dataclass(frozen=True)
class RunView:
    """A run, as it was at one moment. `token` says who owns it.

    `outputs`: the files that it was to make when it began, None for any. `ended`: when another run,
    if it was killed, or itself has closed it. `silent`: the seconds since its last sign of life.
    """

    number: int
    token: str
    directory: str
    started: str
    node: Node
    process: ProcessIdentity
    outputs: frozenset[str] | None = None
    locks: tuple[LockFile, ...] = ()
    ended: str | None = None
    silent: float = 0.0

    @classmethod
    def of(cls, number: int, token: str, directory: str, facts: Any) -> RunView:
        """`facts`: those of `facts_of_run`. Raises KeyError, TypeError, or ValueError."""
        outputs = facts["outputs"]
        return cls(
            *(number, token, directory, facts["started"]),
            Node.from_dict(facts["node"]),
            ProcessIdentity.from_dict(facts["process"]),
            None if outputs is None else frozenset(outputs),
            tuple(LockFile(**each) for each in facts["locks"]),
        )

    @property
    def controller(self) -> str:
        return str(self.number)

    @property
    def who(self) -> str:
        """For people."""
        return f"process {self.process.pid} on {self.node.host}"

    @property
    def state(self) -> Literal["running", "ended", "killed"]:
        """One that was killed has ended once another one has closed it."""
        if self.token == ENDED:
            return "ended"
        is_silent = self.silent > views.SILENT and not self.is_here
        return "killed" if self.token != OWN or self.is_gone or is_silent else "running"

    @property
    def is_gone(self) -> bool:
        """Whether its process has certainly ended."""
        return self.process.has_ended(self.node)

    @property
    def is_here(self) -> bool:
        """Whether this host can see its process."""
        return this_node().can_see(self.node)

    def makes(self, file: str) -> bool:
        return self.outputs is None or file in self.outputs


def read_run(layout: Layout, number: int, facts: Any = None) -> RunView | None:
    """None for a job by hand, and if there is none, or its file is damaged. Raises OSError.

    `facts`: what is in `run.json`, if it has been read.
    """
    paths = layout.run(number)
    with suppress(FileNotFoundError, KeyError, TypeError, ValueError):
        data = _facts(paths.facts) if facts is None else facts
        if not data["directory"]:
            return None
        token = next((text for text in listing(paths.directory) if _is_token(text)), ENDED)
        ended = None
        if token == ENDED:  # it was renamed last
            modified = os.stat(paths.directory).st_mtime
            ended = datetime.fromtimestamp(modified, UTC).isoformat()
        silent = time.time() - os.stat(paths.alive).st_mtime
        view = RunView.of(number, token, data["directory"], data["facts"])
        return replace(view, ended=ended, silent=silent)
    return None


def list_runs(machine: MachinePaths, directory: str | None = None) -> Iterator[RunView]:
    """All runs, or those in one directory; the newest first. Raises OSError."""
    layout = machine.layout
    if not is_there(machine.directory):  # nothing has run on this machine yet
        return
    for number in reversed(numbers_in(listing(layout.runs))):
        run = None
        with suppress(FileNotFoundError):
            facts = _facts(layout.run(number).facts)
            if directory is None or _is_in(facts, directory):
                run = read_run(layout, number, facts)
        if run is not None:
            yield run


@lru_cache(maxsize=10_000)
def _facts(path: str) -> Any:
    """What is in a `run.json`: it is written once. {} if it is damaged. Raises OSError."""
    return facts_in(path) or {}


def _is_in(facts: Any, directory: str) -> bool:
    own = facts.get("directory")
    return bool(own) and (own == directory or is_same_directory(own, directory))


def find_run(machine: MachinePaths, number: str) -> RunView:
    """Raises NameNotFoundError."""
    found = read_run(machine.layout, int(number)) if number.isdecimal() else None
    if found is not None:
        return found
    known = (run.controller for run, _ in zip(list_runs(machine), range(_MOST_NAMED), strict=False))
    raise NameNotFoundError(
        f"there is no run {number} on machine {machine.name}; {nearest(number, known)}",
        "List them with: kochi trace --list",
    )


@dataclass(frozen=True)
class LiveJob:
    """A job that waits, or runs since `started`."""

    job: JobId
    queue: str
    worker: int | None
    started: str | None


Life = Literal["alive", "unknown", "dead"]


class MakingWatch:
    """Looks at the runs of one directory again and again; opens each file once."""

    def __init__(self, machine: MachinePaths, directory: str) -> None:
        self._machine = machine
        self._directory = directory
        self._outputs: dict[tuple[int, int], Sequence[str]] = {}  # of tickets
        self._pulses: dict[int, Pulse] = {}

    def runs(self) -> list[RunView]:
        """Those that the machine still knows, the oldest first. Raises OSError."""
        return [*list_runs(self._machine, self._directory)][::-1]

    def look(self) -> tuple[list[RunView], dict[str, LiveJob]]:
        """The runs that go on, and the jobs by output as in tickets. Raises OSError."""
        runs = [run for run in self.runs() if run.state != "ended"]
        numbers = {run.number for run in runs}
        jobs: dict[str, LiveJob] = {}
        present: dict[tuple[int, int], Sequence[str]] = {}
        for name, queue, path in places(self._machine.layout) if numbers else ():
            if name.run in numbers:
                present[name.key] = outputs = self._outputs_of(name, path)
                started = views.claimed_at(path) if name.worker else None
                worker = int(name.worker) if name.worker.isdecimal() else None
                job = LiveJob(f"{name.run}.{name.job}", queue, worker, started)
                jobs |= dict.fromkeys(outputs, job)
        self._outputs = present
        return [run for run in runs if run.state == "running"], jobs

    def _outputs_of(self, name: Name, path: str) -> Sequence[str]:
        """None of a ticket that cannot be read, because it has moved, for example."""
        if name.key not in self._outputs:
            with suppress(OSError, ValueError, KeyError, TypeError):
                line = files.read(path).partition(b"\n")[0]
                return list(map(str, files.parse(line)["outputs"]))
        return self._outputs.get(name.key, ())

    def holders(self) -> list[tuple[RunView, Life]]:
        """The runs that have locked the directory, each with whether it lives: of one on another
        host this becomes known in a minute. Raises OSError."""
        holding = (run for run in self.runs() if any(lock.is_there for lock in run.locks))
        return [(run, self._life(run)) for run in holding]

    def _life(self, run: RunView) -> Life:
        if run.is_gone or run.is_here:
            return "dead" if run.is_gone else "alive"
        if run.number not in self._pulses:
            self._pulses[run.number] = Pulse(self._machine.layout.run(run.number).alive)
            self._pulses[run.number].look()
            return "unknown"
        still = self._pulses[run.number].look()
        return "alive" if still == 0 else "dead" if still >= SILENT else "unknown"


def refusal(run: RunView) -> KochiError:
    """Two runs would execute the same jobs."""
    pid, host = run.process.pid, run.node.host
    where, on = ("this host", "") if run.is_here else (host, f" on {host}")
    return KochiError(
        f"another run in this directory is alive on {where} (process {pid}, started at "
        f"{run.started}) and makes the same files: each job would be executed twice",
        f"Wait for its end, or interrupt it. To interrupt it, type{on}: kill -INT {pid}\n"
        "Then type your command again. To see the jobs that still run, type: kochi show jobs",
    )


def _is_token(text: str) -> bool:
    return text == ENDED or text.partition(".")[0] == OWN
