"""What a command's own pipeline still writes when the command has ended well.

Bash does not wait for the processes of `>(...)`: with `tee >(sort > file)` it may end while `sort`
has not written anything yet.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from snakemake_kochi.parent_death import stat_fields
from snakemake_kochi.processes import PROC, ProcessIdentity, all_entries

PATIENCE_VARIABLE = "KOCHI_PIPELINE_SECONDS"
_PATIENCE = 600.0  # seconds, without a limit of time and without that variable
HOLD = 2.0  # seconds for a process that only holds the log
_TOLD_AFTER = 2.0  # seconds of waiting
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.25
_FORKED_ONLY = 0x40  # PF_FORKNOEXEC of linux/sched.h


def patience() -> float:
    """Seconds for a pipeline whose command has no limit of time."""
    with suppress(ValueError):
        return float(os.environ.get(PATIENCE_VARIABLE, _PATIENCE))
    return _PATIENCE


@dataclass(frozen=True)
class Left:
    """The processes that a command left, by what is to become of them.

    Those that are `writing` belong to its pipeline and are waited for. Those that are `holding`
    have nothing but the log, or a pipe to one of the others: they get a moment. `ending`: all
    others that can be ended without harm to these.
    """

    writing: list[ProcessIdentity]
    holding: list[ProcessIdentity]
    ending: list[ProcessIdentity]


class OwnPipeline:
    """Follows what the pipeline of a command still writes; `failure`: why it is given up, or ""."""

    def __init__(
        self,
        outputs: Iterable[str],
        logs: Iterable[str],
        since: int,
        ends_at: float | None,
        say: Callable[[str], None],
    ) -> None:
        """Begin to wait, until `ends_at` (monotonic seconds; None: for `patience`).

        `outputs` (files or directories) and `logs`: absolute paths. `since`: when the command
        started, in clock ticks since boot. `say` tells the user a sentence.
        """
        self._outputs = {os.path.realpath(path) for path in outputs}
        self._logs = {os.path.realpath(path) for path in logs} - self._outputs
        self._since = since
        self._began = time.monotonic()
        self._ends_at = self._began + patience() if ends_at is None else ends_at
        self._say = say
        self._told: set[ProcessIdentity] = set()
        self._pause = _FIRST_PAUSE
        self.failure = ""
        self.is_waiting = True
        self.held: Sequence[ProcessIdentity] = ()  # ended now because they only held the log
        self.due = self._began

    def look(self, left: Sequence[ProcessIdentity]) -> Sequence[ProcessIdentity]:
        """The processes to end now, of those that are `left`; `is_waiting`: whether others stay.

        To be called again at `due`.
        """
        moment = time.monotonic()
        self.held = ()
        found = sort_out(left, self._outputs, self._logs, self._since)
        self.due = moment + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if found.writing and moment >= self._ends_at:
            seconds = moment - self._began
            self.failure = f"{names(found.writing)} still wrote {seconds:.0f} s after its end"
            self.is_waiting = False
            return left
        if found.writing and moment >= self._began + _TOLD_AFTER:
            self._tell(found.writing, "waiting for {}, which still writes")
        self.is_waiting = bool(found.writing or found.holding)
        if found.holding and moment >= self._began + HOLD:
            self._tell(found.holding, "ending {}, which holds only the log after the end")
            self.is_waiting, self.held = bool(found.writing), found.holding
            return [*found.ending, *found.holding]
        return found.ending

    def _tell(self, processes: Sequence[ProcessIdentity], text: str) -> None:
        if not self._told.issuperset(processes):
            self._told.update(processes)
            self._say(text.format(names(processes)))


def sort_out(
    left: Sequence[ProcessIdentity],
    outputs: Collection[str],
    logs: Collection[str],
    since: int,
) -> Left:
    """What is to become of the processes that a command left; see `OwnPipeline`.

    Waited for are those that have an output open for writing, those that read a pipe whose writers
    are gone or waited for, and their descendants.
    """
    files = {process.pid: _Files.of(process.pid) for process in left}
    parents = {pid: each.parent for pid, each in files.items()}
    foreign = _foreign_pipes(files, since)
    writing = {pid for pid, each in files.items() if each.writes_below(outputs)}

    def feeders(pid: int) -> set[int]:
        """Who writes what a process reads; not itself."""
        pipes = files[pid].read - foreign
        return {other for other, each in files.items() if each.written & pipes} - {pid}

    def is_writing(pid: int) -> bool:
        own = files[pid]
        pipes = own.read - foreign - own.written
        ends = [{o for o, each in files.items() if pipe in each.written} for pipe in pipes]
        return parents[pid] in writing or any(writers <= writing for writers in ends)

    while more := {pid for pid in files if is_writing(pid)} - writing:
        writing |= more
    # A shell that was forked for `>(...)` just now still has both ends of its pipe.
    holding = {
        pid
        for pid, each in files.items()
        if each.written & set(logs) or (each.is_forked_only and each.read & each.written)
    } - writing
    while (
        more := {pid for other in writing | holding for pid in feeders(other)} - writing - holding
    ):
        holding |= more
    rest = files.keys() - writing - holding
    # A reader goes on when its writer is gone, and may then be one of the pipeline.
    blocked = {pid for pid in rest | holding if feeders(pid) - writing}
    held, ending = holding - blocked, rest - blocked
    if not (writing or held or ending):
        held, ending = set(), set(files)  # they wait for each other
    return Left(*([each for each in left if each.pid in pids] for pids in (writing, held, ending)))


def names(processes: Iterable[ProcessIdentity]) -> str:
    """The names and numbers of processes, for people: `sort (4711), gzip (4712)`."""
    said = []
    for process in processes:
        name = "a process"
        with suppress(OSError):
            name = (PROC / f"{process.pid}/comm").read_text(errors="replace").strip()
        said.append(f"{name} ({process.pid})")
    return ", ".join(said)


@dataclass(frozen=True)
class _Files:
    """What a process has open: the pipes that it reads, and what it writes (paths, and pipes)."""

    parent: int
    is_forked_only: bool
    read: set[str]
    written: set[str]

    @classmethod
    def of(cls, pid: int) -> _Files:
        """Without what this process is not permitted to see."""
        parent, flags = 0, 0
        read: set[str] = set()
        written: set[str] = set()
        directory = f"{PROC}/{pid}/fd"
        with suppress(OSError):
            fields = stat_fields(f"{PROC}/{pid}")
            parent, flags = int(fields[1]), int(fields[6])
            for name in os.listdir(directory):
                with suppress(OSError):  # closed meanwhile
                    target = os.readlink(f"{directory}/{name}")
                    # The mode of the link says for what the file is open.
                    mode = os.lstat(f"{directory}/{name}").st_mode
                    if mode & stat.S_IRUSR and target.startswith("pipe:"):
                        read.add(target)
                    if mode & stat.S_IWUSR:
                        written.add(target)
        return cls(parent, bool(flags & _FORKED_ONLY), read, written)

    def writes_below(self, outputs: Collection[str]) -> bool:
        return any(
            path == output or path.startswith(f"{output}/")
            for path in self.written
            for output in outputs
        )


def _foreign_pipes(files: dict[int, _Files], since: int) -> set[str]:
    """The pipes read by these processes that do not belong to their command alone.

    This process has them, or a process that started since writes to them.
    """
    pipes = {pipe for each in files.values() for pipe in each.read}
    if not pipes:
        return set()
    own = _Files.of(os.getpid())
    others = [
        _Files.of(entry.pid).written
        for entry in all_entries()
        if entry.start >= since and entry.pid not in files
    ]
    return pipes & set().union(own.read, own.written, *others)
