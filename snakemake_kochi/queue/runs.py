"""The runs of a directory as other processes see them, and which files are being made in it.

This module only reads. A ticket that moves during a look may be missed; the next look finds it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from snakemake_kochi.base import files
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_same_directory
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, is_gone, this_node
from snakemake_kochi.queue.views import layout_of
from snakemake_kochi.tickets.history import JobId, places
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import Name, numbers_in
from snakemake_kochi.tickets.run import ENDED, OWN
from snakemake_kochi.tickets.ticket import now
from snakemake_kochi.tickets.watching import INTERVAL, SILENT, Pulse, facts_in

# Seconds without a heartbeat after which nobody expects another one: the clock of the file server
# may differ.
_SILENT = 2 * SILENT * INTERVAL


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
class LiveRun:
    """A run, as this host sees it. `token` says who owns it; `is_gone`: its process has certainly
    ended; `is_here`: this host can see its process.

    `outputs`: the files that it was to make when it began, None for any.
    """

    number: int
    token: str
    host: str
    process: int
    started: str
    outputs: frozenset[str] | None
    locks: tuple[LockFile, ...]
    is_gone: bool
    is_here: bool

    @classmethod
    def of(cls, number: int, token: str, facts: Any) -> LiveRun:
        outputs, node = facts["outputs"], Node.from_dict(facts["node"])
        return cls(
            number=number,
            token=token,
            host=node.host,
            process=facts["process"]["pid"],
            started=facts["started"],
            outputs=None if outputs is None else frozenset(outputs),
            locks=tuple(LockFile(**each) for each in facts["locks"]),
            is_gone=is_gone(facts),
            is_here=this_node().can_see(node),
        )

    def makes(self, file: str) -> bool:
        return self.outputs is None or file in self.outputs

    @property
    def has_ended(self) -> bool:
        return self.token == ENDED

    @property
    def is_dead(self) -> bool:
        """Whether it certainly does nothing more with jobs: another run may have taken over."""
        return self.is_gone or self.token != OWN

    @property
    def controller(self) -> str:
        return str(self.number)


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

    runs: Sequence[LiveRun]
    jobs: Mapping[str, LiveJob]


@dataclass
class MakingWatch:
    """Looks at one directory again and again; opens each file once."""

    machine: MachinePaths
    directory: str
    _facts: dict[int, Any] = field(default_factory=dict)  # None: a run elsewhere, or by hand
    _tickets: dict[tuple[int, int], Sequence[str]] = field(default_factory=dict)  # outputs

    def runs(self) -> list[LiveRun]:
        """The runs of this directory that the machine still knows, the oldest first.

        Raises OSError when the files of the machine cannot be listed now.
        """
        layout = layout_of(self.machine)
        found: list[LiveRun] = []
        if not self.machine.directory.exists():  # nothing has run on this machine yet
            return found
        for number in numbers_in(listing(layout.runs)):
            paths = layout.run(number)
            if number not in self._facts:
                with suppress(FileNotFoundError):
                    self._facts[number] = self._own(facts_in(paths.facts))
            if (facts := self._facts.get(number)) is not None:
                token = next((t for t in listing(paths.directory) if _is_token(t)), ENDED)
                found.append(LiveRun.of(number, token, facts))
        return found

    def _own(self, found: Any) -> Any:
        is_run = found is not None and found["directory"]
        if is_run and is_same_directory(found["directory"], self.directory):
            return found["facts"]
        return None

    def look(self) -> Making:
        """Raises OSError when the files of the machine cannot be listed now."""
        runs = [run for run in self.runs() if not run.has_ended]
        numbers = {run.number for run in runs}
        jobs: dict[str, LiveJob] = {}
        present: dict[tuple[int, int], Sequence[str]] = {}
        for name, queue, path in places(layout_of(self.machine)) if numbers else ():
            if name.run in numbers:
                present[name.key] = outputs = self._outputs_of(name, path)
                jobs |= dict.fromkeys(outputs, _live(name, queue, path))
        self._tickets = present
        return Making([run for run in runs if not (run.is_dead or self.is_silent(run))], jobs)

    def is_silent(self, run: LiveRun) -> bool:
        """Whether a run, perhaps on another host, has given no sign of life for too long."""
        with suppress(OSError):
            alive = os.stat(layout_of(self.machine).run(run.number).alive)
            return time.time() - alive.st_mtime > _SILENT
        return False

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
        self._layout = layout_of(machine)
        self._watch = MakingWatch(machine, directory)
        self._pulses: dict[int, Pulse] = {}

    def look(self) -> list[tuple[LiveRun, Life]]:
        """Each with whether it lives: of one on another host this becomes known in a minute.

        Raises OSError.
        """
        runs = self._watch.runs()
        holding = (run for run in runs if any(lock.is_there for lock in run.locks))
        return [(run, self._life(run)) for run in holding]

    def _life(self, run: LiveRun) -> Life:
        if run.is_gone or run.is_here:
            return "dead" if run.is_gone else "alive"
        if run.number not in self._pulses:
            self._pulses[run.number] = Pulse(self._layout.run(run.number).alive)
            self._pulses[run.number].look()
            return "unknown"
        still = self._pulses[run.number].look()
        return "alive" if still == 0 else "dead" if still >= SILENT else "unknown"


def refusal(run: LiveRun) -> KochiError:
    """Two runs would execute the same jobs."""
    where, on = ("this host", "") if run.is_here else (run.host, f" on {run.host}")
    return KochiError(
        f"another run in this directory is alive on {where} (process {run.process}, started at "
        f"{run.started}) and makes the same files: each job would be executed twice",
        f"Wait for its end, or interrupt it. To interrupt it, type{on}: kill -INT {run.process}\n"
        "Then type your command again. To see the jobs that still run, type: kochi show jobs",
    )


def _is_token(text: str) -> bool:
    return text == ENDED or text.partition(".")[0] == OWN


def _live(name: Name, queue: str, path: str) -> LiveJob:
    started = None
    if name.worker:
        with suppress(OSError):  # the rename of its claim has set this time
            started = datetime.fromtimestamp(os.stat(path).st_ctime, UTC).isoformat()
    worker = int(name.worker) if name.worker.isdecimal() else None
    return LiveJob(f"{name.run}.{name.job}", queue, worker, started)
