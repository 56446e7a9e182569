"""What is known of the tasks of a list: TASKS.farm/, which one run writes at a time."""

from __future__ import annotations

import os
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.base import files
from snakemake_kochi.errors import KochiError
from snakemake_kochi.farm.tasks import Task, digest_of
from snakemake_kochi.files import write_atomically
from snakemake_kochi.ownership import check_ours

MOST_LOGS = 500  # files of failed tasks
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
SUCCESS = "success"


@dataclass(frozen=True, slots=True)
class Ended:
    """One end of a task. `job`: the name of its ticket."""

    id: int
    digest: str
    state: str
    seconds: float
    memory_mb: int
    attempt: int
    job: str
    reason: str

    @classmethod
    def parse(cls, line: bytes) -> Ended:
        """Raises ValueError for a line that a kill has torn."""
        number, digest, state, seconds, memory, attempt, job, reason = line.decode().split("\t")
        rest = float(seconds), int(memory), int(attempt), job, reason
        return cls(int(number), digest, state, *rest)

    def __str__(self) -> str:
        values = (self.id, self.digest, self.state, f"{self.seconds:.3f}", self.memory_mb)
        reason = _CONTROL.sub(" ", self.reason)
        return "\t".join(map(str, (*values, self.attempt, self.job, reason)))

    @property
    def is_success(self) -> bool:
        return self.state == SUCCESS


@dataclass
class Standing:
    """The tasks by what became of them. `left` have not ended; `gone`: ends of removed lines."""

    finished: list[tuple[Task, bytes]] = field(default_factory=list)
    failed: list[tuple[Task, bytes]] = field(default_factory=list)
    left: list[Task] = field(default_factory=list)
    gone: int = 0


class State:
    """The directory of a list. The last end of a task counts, and a success for good."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = str(directory / "ended.tsv")
        self._lines: dict[bytes, bytes] = {}  # by id and digest
        self._jobs: set[bytes] = set()  # those with an end here
        self._is_torn = False  # by a kill, at its end

    def prepare(self) -> None:
        """Make the directory, for a run. Raises KochiError."""
        try:
            self.directory.mkdir(0o700, exist_ok=True)
            check_ours(self.directory)
            os.close(files.open_end(self._path))
        except OSError as error:
            raise KochiError(
                f"{self.directory} cannot be made: {error.strerror}",
                "Name a directory of yours: --workdir DIRECTORY",
            ) from error

    def read(self) -> State:
        """Raises OSError; another user's file is refused by KochiError."""
        self._lines.clear()
        self._jobs.clear()
        try:
            check_ours(self.directory)
            data = files.read(self._path)
        except FileNotFoundError:
            return self
        self._is_torn = not data.endswith(b"\n") and data != b""
        for line in data.split(b"\n"):
            self._take(line)
        return self

    def _take(self, line: bytes) -> None:
        fields = line.split(b"\t", 7)
        if len(fields) < 8:
            return
        key = b"\t".join(fields[:2])
        self._jobs.add(fields[6].rpartition(b".a")[0])
        before = self._lines.get(key)
        if before is None or before.split(b"\t", 3)[2] != SUCCESS.encode():
            self._lines[key] = line

    def has(self, run: int, job: int) -> bool:
        return b"%d.%d" % (run, job) in self._jobs

    def note(self, ends: Sequence[Ended]) -> None:
        """Append ends. Raises KochiError if the directory was deleted, and OSError."""
        text = "".join(f"{end}\n" for end in ends).encode("utf-8", "backslashreplace")
        try:
            files.append(self._path, b"\n" * self._is_torn + text)
        except FileNotFoundError as error:
            raise KochiError(
                f"{self._path} was deleted while tasks needed it",
                "Check whether a task removed it, and type the same command again.",
            ) from error
        self._is_torn = False
        for line in text.split(b"\n"):
            self._take(line)

    def forget(self, ends: Iterable[bytes]) -> None:
        """Their tasks are to run again."""
        for line in ends:
            del self._lines[b"\t".join(line.split(b"\t", 2)[:2])]

    def standing(self, tasks: Sequence[Task]) -> Standing:
        """Ends belong to lines by id and text, then by the text alone: a line may have moved."""
        found, lines = Standing(), dict(self._lines)
        known: dict[int, bytes] = {}
        moved: list[Task] = []
        for task in tasks:
            if (line := lines.pop(_key(task), None)) is not None:
                known[task.id] = line
            elif not task.has_place:
                moved.append(task)
        if lines and moved:
            by_text: dict[bytes, deque[bytes]] = defaultdict(deque)
            for key, line in lines.items():
                by_text[key.partition(b"\t")[2]].append(line)
            for task in moved:
                if candidates := by_text.get(task.digest.encode()):
                    known[task.id] = candidates.popleft()
        success = b"\t%s\t" % SUCCESS.encode()
        for task in tasks:
            end = known.get(task.id)
            if end is None:
                found.left.append(task)
            else:
                (found.finished if success in end else found.failed).append((task, end))
        found.gone = len(self._lines) - len(known)
        return found

    def seconds(self) -> dict[str, float]:
        """How long tasks took, by the digests of their texts."""
        ends = map(Ended.parse, self._lines.values())
        return {end.digest: end.seconds for end in ends if end.is_success}

    def write_lists(self, standing: Standing) -> None:
        """The files of which users know the names. Raises OSError."""
        lists: dict[str, Collection[Task]] = {
            "finished": [task for task, _ in standing.finished],
            "failed": [task for task, _ in standing.failed],
            "toprocess": standing.left,
        }
        for name, tasks in lists.items():
            text = "".join(f"{task.id} {task.text}\n" for task in tasks)
            write_atomically(self.directory / name, text.encode("utf-8", "surrogateescape"))

    def keep_log(self, task: int, content: bytes) -> None:
        """What a failed task printed. Raises OSError."""
        logs = self.directory / "logs"
        logs.mkdir(0o700, exist_ok=True)
        path = logs / f"log_{task}"
        if path.exists() or len(os.listdir(logs)) < MOST_LOGS:
            write_atomically(path, content)


def _key(task: Task) -> bytes:
    return f"{task.id}\t{digest_of(task.text)}".encode()
