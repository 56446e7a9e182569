"""What is known of the tasks of a list: TASKS.farm/, which one run writes at a time."""

from __future__ import annotations

import os
import tarfile
from collections import defaultdict, deque, namedtuple
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from snakemake_kochi.base import files
from snakemake_kochi.errors import KochiError, told
from snakemake_kochi.executor.ends import SUCCESS
from snakemake_kochi.farm.tasks import Task
from snakemake_kochi.files import write_atomically
from snakemake_kochi.ownership import OthersError, check_ours
from snakemake_kochi.queue.runs import read_run
from snakemake_kochi.tickets.history import log_of
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import Layout, Name, numbers_in

MOST_LOGS = 500  # files of failed tasks
_AGAIN = b"again"  # in place of a state: the ends before it do not count
_SUCCESS = f"\t{SUCCESS}\t".encode()  # no other column of a line can be it


# One end of a task, a line of ended.tsv. `job`: the name of its ticket.
Ended = namedtuple("Ended", "id digest state seconds memory_mb attempt job reason")


def parsed(line: bytes) -> Ended:
    kinds = (int, str, str, float, int, int, str, str)
    texts = line.decode("utf-8", "replace").split("\t")
    return Ended(*(kind(text) for kind, text in zip(kinds, texts, strict=True)))


@dataclass
class Standing:
    """The tasks by what became of them. `left` have not ended; `gone`: ends of removed lines."""

    finished: list[tuple[Task, bytes]] = field(default_factory=list)
    failed: list[tuple[Task, bytes]] = field(default_factory=list)
    left: list[Task] = field(default_factory=list)
    gone: int = 0


class State:
    """A list and its directory. The last end of a task counts, and a success until it is to run
    again."""

    def __init__(self, directory: Path, name: str, tasks: list[Task]) -> None:
        self.directory = directory = Path(os.path.realpath(directory))
        self.name, self.tasks = name, tasks
        self._path, self._root = str(directory / "ended.tsv"), directory / "root"
        self._logs = directory / "logs"
        self._lines: dict[bytes, bytes] = {}  # by id and digest
        self._jobs: set[bytes] = set()  # those with an end here
        self._is_torn = False  # by a kill, at its end

    def prepare(self, machine: Path) -> None:
        """Make the directory, for runs below this directory of KOCHI_ROOT. Raises KochiError."""
        try:
            self.directory.mkdir(0o700, exist_ok=True)
            self._check()
            os.close(files.open_end(self._path))
            if not self._root.exists():
                write_atomically(self._root, os.fsencode(machine))
        except (OSError, OthersError) as error:
            text = told(error) if isinstance(error, OSError) else str(error)
            raise KochiError(f"{text}. Name a directory of yours: --workdir DIRECTORY") from error
        if (before := self.layout.directory) != str(machine):
            raise KochiError(
                f"{self.directory} belongs to runs below {before}, and this one is below {machine}",
                f"Set KOCHI_ROOT or -m as before. If no farm runs there, type: rm {self._root}",
            )

    def _check(self) -> None:
        """Raises OSError; KochiError for another user's directory, or that of another program."""
        check_ours(self.directory)
        names = {*os.listdir(self.directory)}
        if names & {"toprocess", "finished"} and not names & {"root", "ended.tsv"}:
            text = f"{self.directory} was begun by another program"
            raise KochiError(f"{text}. Name a directory of yours: --workdir DIRECTORY")

    @property
    def layout(self) -> Layout:
        """Of the runs. Raises OSError if there was none."""
        return Layout(os.fsdecode(self._root.read_bytes()))

    def running(self) -> str:
        """Which farm works on the list now, for people; "" if none does."""
        with suppress(OSError):
            for number in reversed(numbers_in(listing(self.layout.runs))):
                run = read_run(self.layout, number)
                if run and run.directory == str(self.directory) and run.state == "running":
                    return f"run {number}, {run.who}"
        return ""

    def read(self) -> None:
        """Raises OSError, and KochiError as `_check`."""
        self._lines, self._jobs, data = {}, set(), b""
        with suppress(FileNotFoundError):
            self._check()
            data = files.read(self._path)
        self._is_torn = data[-1:] not in (b"", b"\n")
        for line in data.split(b"\n"):
            self._take(line)

    def _take(self, line: bytes) -> None:
        fields = line.split(b"\t", 7)
        if len(fields) < 8:
            return
        key = b"\t".join(fields[:2])
        self._jobs.add(fields[6].rpartition(b".a")[0])
        if fields[2] == _AGAIN:
            self._lines.pop(key, None)
        elif _SUCCESS not in self._lines.get(key, b""):
            self._lines[key] = line

    def has(self, job: Name) -> bool:
        return b"%d.%d" % job.key in self._jobs

    def note(self, ends: Sequence[Ended]) -> None:
        """Append ends. Raises KochiError if the directory was deleted, and OSError."""
        text = "".join("\t".join(map(str, end)) + "\n" for end in ends).encode(errors="replace")
        begin, self._is_torn = b"\n" * self._is_torn, True
        try:
            files.append(self._path, begin + text)
        except FileNotFoundError as error:
            raise KochiError(
                f"{self._path} was deleted while tasks needed it",
                "Check whether a task removed it, and type the same command again.",
            ) from error
        self._is_torn = False
        for line in text.split(b"\n"):
            self._take(line)

    def forget(self, numbers: Collection[int]) -> None:
        """Note that tasks are to run again, by default the failed ones. Raises as `note`."""
        standing = self.standing()
        if unknown := {*numbers} - {task.id for task in self.tasks}:
            raise KochiError(f"--retry: there is no task {min(unknown)}")
        found = (*standing.failed, *(standing.finished if numbers else ()))
        ends = [parsed(line) for task, line in found if not numbers or task.id in numbers]
        empty = _AGAIN.decode(), 0.0, 0, 0, "", "--retry"
        self.note([Ended(end.id, end.digest, *empty) for end in ends])

    def standing(self) -> Standing:
        """Ends belong to lines by id and text, then by the text alone: a line may have moved."""
        found, others = Standing(), dict(self._lines)
        keys = [(task, b"%d\t%s" % (task.id, task.digest.encode())) for task in self.tasks]
        known = {task.id: others.pop(key) for task, key in keys if key in others}
        by_text: dict[bytes, deque[bytes]] = defaultdict(deque)
        for key, line in others.items():
            by_text[key.partition(b"\t")[2]].append(line)
        for task, key in keys:
            end = known.get(task.id)
            if end is None and (moved := by_text.get(key.partition(b"\t")[2])):
                end = None if task.has_place else moved.popleft()
            if end is None:
                found.left.append(task)
            else:
                (found.finished if _SUCCESS in end else found.failed).append((task, end))
        found.gone = len(self._lines) - len(found.finished) - len(found.failed)
        return found

    def seconds(self) -> dict[str, float]:
        """How long tasks took, by the digests of their texts."""
        ends = (parsed(line) for line in self._lines.values() if _SUCCESS in line)
        return {end.digest: end.seconds for end in ends}

    def write_lists(self, standing: Standing) -> None:
        """The files of which users know the names. Raises OSError."""
        ended = {"finished": standing.finished, "failed": standing.failed}
        lists = {name: [task for task, _ in found] for name, found in ended.items()}
        for name, tasks in (*lists.items(), ("toprocess", standing.left)):
            text = "".join(f"{task.id} {task.text}\n" for task in tasks)
            write_atomically(self.directory / name, text.encode("utf-8", "surrogateescape"))
        with suppress(OSError):
            self._write_logs(standing)

    def keep_log(self, task: int, job: Name) -> None:
        """What a failed task printed. Raises OSError."""
        self._logs.mkdir(0o700, exist_ok=True)
        path = self._logs / f"log_{task}"
        if path.exists() or len(os.listdir(self._logs)) < MOST_LOGS:
            write_atomically(path, _log(self.layout, job) or b"")

    def _write_logs(self, standing: Standing) -> None:
        """Of the tasks that are failed now: lists are edited, and a farm may have been killed."""
        layout, ends = self.layout, {task.id: end for task, end in standing.failed[:MOST_LOGS]}
        for path in {*self._logs.glob("log_*")} - {self._logs / f"log_{task}" for task in ends}:
            path.unlink()
        for task, end in ends.items():
            path, content = self._logs / f"log_{task}", _log(layout, Name.parse(parsed(end).job))
            if content is not None and not (path.exists() and path.read_bytes() == content):
                self._logs.mkdir(0o700, exist_ok=True)
                write_atomically(path, content)

    def write_archive(self, standing: Standing) -> Path:
        """What all tasks printed, as far as it was not cleaned up. Raises KochiError, OSError."""
        path, draft = self.directory / "logs.tar", self.directory / "logs.tar.new"
        if not os.path.isdir((layout := self.layout).directory):
            why = "its directory was deleted, or its file system is away"
            raise KochiError(f"{layout.directory} has the logs, and cannot be read: {why}")
        with tarfile.open(draft, "w") as archive:
            for task, end in (*standing.finished, *standing.failed):
                if (content := _log(layout, Name.parse(parsed(end).job))) is not None:
                    member = tarfile.TarInfo(f"logs/log_{task.id}")
                    member.size = len(content)
                    archive.addfile(member, BytesIO(content))
        return draft.replace(path)


def _log(layout: Layout, job: Name | None) -> bytes | None:
    return None if job is None else log_of(layout.run(job.run), job)
