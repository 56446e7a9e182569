"""What the name of a ticket says, and where everything is below a machine's directory.

<run>.<job>.a<attempt>.l<losses>                     it waits
<run>.<job>.a<attempt>.l<losses>@<worker>            it is held
<run>.<job>.a<attempt>.l<losses>@<worker>=<state>    it has ended
<job>.a<attempt>.l<losses>                           it waits in the directory of its submission
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from snakemake_kochi.base import files
from snakemake_kochi.base.wake import wake
from snakemake_kochi.files import random_word

WAKE = "wake"  # a FIFO: who listens on it looks at once; see base.wake
SERVING = "serving."
LOGIN = "login"
# What the names of orders to a worker begin with.
CANCEL = "cancel."
SERVE = "serve."  # a queue, besides those of its beginning
_NAME = re.compile(r"(\d+)\.(\d+)\.a(\d+)\.l(\d+)(?:@([\w-]+)(?:=(\w+))?)?")
_SHARD = re.compile(r"(\d+)\.(\d+)-(\d+)")


@dataclass(frozen=True, order=True)
class Name:
    """A ticket: `worker` holds it, and it has ended with `state`, or "" for either."""

    run: int
    job: int
    attempt: int = 1
    losses: int = 0
    worker: str = ""
    state: str = ""

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """None for another file."""
        if (match := _NAME.fullmatch(text)) is None:
            return None
        run, job, attempt, losses = map(int, match.group(1, 2, 3, 4))
        return cls(run, job, attempt, losses, match[5] or "", match[6] or "")

    @classmethod
    def parse_all(cls, texts: Iterable[str]) -> list[Name]:
        """Without other files."""
        return [name for text in texts if (name := cls.parse(text)) is not None]

    def __str__(self) -> str:
        text = f"{self.run}.{self.in_shard}"
        return (
            text
            + (f"@{self.worker}" if self.worker else "")
            + (f"={self.state}" if self.state else "")
        )

    @property
    def in_shard(self) -> str:
        return f"{self.job}.a{self.attempt}.l{self.losses}"

    @property
    def key(self) -> tuple[int, int]:
        """The job: it has one end."""
        return self.run, self.job

    def held_by(self, worker: str) -> Name:
        return Name(self.run, self.job, self.attempt, self.losses, worker, self.state)

    def checked(self) -> Name:
        """Raises ValueError for a worker or a state that no name can have."""
        if Name.parse(str(self)) != self:
            raise ValueError(f"{self}: a worker is letters, digits, _ and -, a state without -")
        return self

    def ended(self, state: str, by: str = "") -> Name:
        return replace(self, worker=by or self.worker, state=state).checked()

    def waiting(self, losses: int) -> Name:
        """The next attempt: a name is used once."""
        return replace(self, attempt=self.attempt + 1, losses=losses, worker="", state="")


@dataclass(frozen=True, order=True)
class Shard:
    """The directory of the tickets `first` to `last` of one submission."""

    run: int
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Shard | None:
        match = _SHARD.fullmatch(text)
        return None if match is None else cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.run}.{self.first}-{self.last}"


@dataclass(frozen=True)
class QueuePaths:
    directory: str

    @property
    def waiting(self) -> str:
        return f"{self.directory}/waiting"

    @property
    def running(self) -> str:
        return f"{self.directory}/running"

    @property
    def lock(self) -> str:
        return f"{self.directory}/lock"

    def serving(self, worker: str) -> str:
        """A mark: this worker is to be woken for tickets of this queue."""
        return f"{self.directory}/{SERVING}{worker}"


@dataclass(frozen=True)
class RunPaths:
    """`own`, `own.<adopter>`, `hand` or `ended` is the token: its name says who owns the run."""

    directory: str

    @property
    def facts(self) -> str:
        return f"{self.directory}/run.json"

    @property
    def alive(self) -> str:
        return f"{self.directory}/alive"

    @property
    def journal(self) -> str:
        return f"{self.directory}/jobs.jsonl"

    @property
    def inbox(self) -> str:
        return f"{self.directory}/inbox"

    @property
    def folded(self) -> str:
        """Logs of ended jobs, up to 256 in a file."""
        return f"{self.directory}/folded"

    @property
    def logs(self) -> str:
        return f"{self.directory}/logs"

    @property
    def wake(self) -> str:
        return f"{self.directory}/{WAKE}"

    @property
    def terminal(self) -> str:
        """Where the terminal of a job by hand is, if it has one: see terminal/address.py."""
        return f"{self.directory}/terminal.json"

    @property
    def workers(self) -> str:
        """What its workers on this computer print before they have a log."""
        return f"{self.directory}/workers"

    def log(self, name: Name) -> str:
        """The output of one attempt."""
        return f"{self.logs}/{name.job}.a{name.attempt}"

    def token(self, name: str) -> str:
        return f"{self.directory}/{name}"


@dataclass(frozen=True)
class WorkerPaths:
    directory: str

    @property
    def facts(self) -> str:
        return f"{self.directory}/worker.json"

    @property
    def alive(self) -> str:
        return f"{self.directory}/alive"

    @property
    def dead(self) -> str:
        return f"{self.directory}/dead"

    @property
    def wake(self) -> str:
        return f"{self.directory}/{WAKE}"

    @property
    def left(self) -> str:
        return f"{self.directory}/left"

    @property
    def release(self) -> str:
        return f"{self.directory}/release"

    @property
    def log(self) -> str:
        return f"{self.directory}/log"

    @property
    def settings(self) -> str:
        """How it is started; written by who starts it, if it has a number by then."""
        return f"{self.directory}/settings.json"

    @property
    def asked(self) -> str:
        """Exists when a person has requested it; names its allocation."""
        return f"{self.directory}/asked.json"

    @property
    def hosts(self) -> str:
        """The hosts of its allocation, and the slots of each, for mpirun."""
        return f"{self.directory}/hosts"

    @property
    def waits(self) -> str:
        """Why a job that it has claimed does not begin, for people; an empty line: none waits."""
        return f"{self.directory}/waits"

    def server_log(self, server: str) -> str:
        """What a server prints from which it forks jobs: zygote, phase, benchmark."""
        return f"{self.directory}/{server}.log"

    def serve(self, queue: str) -> str:
        return f"{self.directory}/{SERVE}{queue}"

    @property
    def login(self) -> str:
        """The directory of its ssh server: see terminal/login.py."""
        return f"{self.directory}/{LOGIN}"

    @property
    def login_asked(self) -> str:
        """Exists until the worker has seen that a person wants to log in."""
        return f"{self.login}/asked"

    def cancel(self, name: Name) -> str:
        return f"{self.directory}/{CANCEL}{name}"


@dataclass(frozen=True)
class Layout:
    """Everything below one machine's directory of KOCHI_ROOT."""

    directory: str

    @property
    def runs(self) -> str:
        return f"{self.directory}/runs"

    @property
    def queues(self) -> str:
        return f"{self.directory}/queues"

    @property
    def workers(self) -> str:
        return f"{self.directory}/workers"

    @property
    def history(self) -> str:
        """What is left of ended jobs by hand."""
        return f"{self.directory}/history"

    def run(self, number: int) -> RunPaths:
        return RunPaths(f"{self.runs}/{number}")

    def queue(self, name: str) -> QueuePaths:
        return QueuePaths(f"{self.queues}/{name}")

    def worker(self, name: str | int) -> WorkerPaths:
        return WorkerPaths(f"{self.workers}/{name}")


def numbers_in(texts: Iterable[str]) -> list[int]:
    """The runs or the workers in a listing, ascending; without other files."""
    return sorted(int(text) for text in texts if text.isdecimal())


def nonce() -> str:
    return random_word(6)


def make_queue(layout: Layout, queue: str) -> None:
    """Make its directories, if they are not there. Raises OSError."""
    for name in ("waiting", "running"):
        files.make_below(layout.directory, "queues", queue, name)


def wakes_of(layout: Layout, queue: str) -> list[str]:
    """What wakes the workers that serve a queue, as far as is known."""
    directory = layout.queue(queue).directory
    with suppress(OSError):
        marks = (text for text in files.names(directory) if text.startswith(SERVING))
        return [layout.worker(mark.removeprefix(SERVING)).wake for mark in marks]
    return []


def wake_workers(layout: Layout, queue: str) -> None:
    """Wake the workers of a queue that are on this computer."""
    for path in wakes_of(layout, queue):
        wake(path)
