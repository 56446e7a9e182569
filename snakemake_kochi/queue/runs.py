"""Runs as other processes see them, and which files are being made in a directory.

This module only reads. A ticket that moves during a look may be missed; the next look finds it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
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
        data = facts_in(paths.facts) if facts is None else facts
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
    """All runs, or those in one directory; the newest first."""
    layout = machine.layout
    if not is_there(machine.directory):
        return
    for number in reversed(numbers_in(listing(layout.runs))):
        run = read_run(layout, number)
        if run is not None and directory in (None, run.directory):
            yield run


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


@dataclass(frozen=True)
class Making:
    """The runs of a directory, and their jobs by output, relative to the directory."""

    runs: Sequence[RunView]
    jobs: Mapping[str, LiveJob]


@dataclass
class MakingWatch:
    """Looks at one directory again and again; opens each file once."""

    machine: MachinePaths
    directory: str
    _facts: dict[int, Any] = field(default_factory=dict)  # None: a run elsewhere, or by hand
    _tickets: dict[tuple[int, int], Sequence[str]] = field(default_factory=dict)  # outputs

    def runs(self) -> list[RunView]:
        """The runs of this directory that the machine still knows, the oldest first.

        Raises OSError when the files of the machine cannot be listed now.
        """
        layout = self.machine.layout
        found: list[RunView] = []
        if not self.machine.directory.exists():  # nothing has run on this machine yet
            return found
        for number in numbers_in(listing(layout.runs)):
            if number not in self._facts:
                with suppress(FileNotFoundError):
                    self._facts[number] = self._own(facts_in(layout.run(number).facts))
            facts = self._facts.get(number)
            if facts is not None and (run := read_run(layout, number, facts)) is not None:
                found.append(run)
        return found

    def _own(self, found: Any) -> Any:
        directory = (found or {}).get("directory")
        return found if directory and is_same_directory(directory, self.directory) else None

    def look(self) -> Making:
        """Raises OSError when the files of the machine cannot be listed now."""
        runs = [run for run in self.runs() if run.state != "ended"]
        numbers = {run.number for run in runs}
        jobs: dict[str, LiveJob] = {}
        present: dict[tuple[int, int], Sequence[str]] = {}
        for name, queue, path in places(self.machine.layout) if numbers else ():
            if name.run in numbers:
                present[name.key] = outputs = self._outputs_of(name, path)
                jobs |= dict.fromkeys(outputs, _live(name, queue, path))
        self._tickets = present
        return Making([run for run in runs if run.state == "running"], jobs)

    def _outputs_of(self, name: Name, path: str) -> Sequence[str]:
        """None of a ticket that cannot be read, because it has moved, for example."""
        if name.key not in self._tickets:
            with suppress(OSError, ValueError, KeyError, TypeError):
                line = files.read(path).partition(b"\n")[0]
                return list(map(str, files.parse(line)["outputs"]))
        return self._tickets.get(name.key, ())


Life = Literal["alive", "unknown", "dead"]


class Holders:
    """Looks at the runs that have locked a directory, again and again."""

    def __init__(self, machine: MachinePaths, directory: str) -> None:
        self._layout = machine.layout
        self._watch = MakingWatch(machine, directory)
        self._pulses: dict[int, Pulse] = {}

    def look(self) -> list[tuple[RunView, Life]]:
        """Each with whether it lives: of one on another host this becomes known in a minute.

        Raises OSError.
        """
        runs = self._watch.runs()
        holding = (run for run in runs if any(lock.is_there for lock in run.locks))
        return [(run, self._life(run)) for run in holding]

    def _life(self, run: RunView) -> Life:
        if run.is_gone or run.is_here:
            return "dead" if run.is_gone else "alive"
        if run.number not in self._pulses:
            self._pulses[run.number] = Pulse(self._layout.run(run.number).alive)
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


def _live(name: Name, queue: str, path: str) -> LiveJob:
    started = views.claimed_at(path) if name.worker else None
    worker = int(name.worker) if name.worker.isdecimal() else None
    return LiveJob(f"{name.run}.{name.job}", queue, worker, started)
