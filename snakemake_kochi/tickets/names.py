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


class QueuePaths:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.waiting = f"{directory}/waiting"
        self.running = f"{directory}/running"
        self.lock = f"{directory}/lock"

    def serving(self, worker: str) -> str:
        """A mark: this worker is to be woken for tickets of this queue."""
        return f"{self.directory}/{SERVING}{worker}"


class RunPaths:
    """`own`, `own.<adopter>`, `hand` or `ended` is the token: its name says who owns the run."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.facts = f"{directory}/run.json"
        self.alive = f"{directory}/alive"
        self.journal = f"{directory}/jobs.jsonl"
        self.inbox = f"{directory}/inbox"
        self.logs = f"{directory}/logs"
        self.folded = f"{directory}/folded"  # logs of ended jobs, up to 256 in a file
        self.wake = f"{directory}/{WAKE}"
        self.terminal = f"{directory}/terminal.json"  # of a job by hand: see terminal/address.py
        # What its workers on its computer print before they have a log.
        self.workers = f"{directory}/workers"

    def log(self, name: Name) -> str:
        """The output of one attempt."""
        return f"{self.logs}/{name.job}.a{name.attempt}"

    def token(self, name: str) -> str:
        return f"{self.directory}/{name}"


class WorkerPaths:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.facts = f"{directory}/worker.json"
        self.alive = f"{directory}/alive"
        self.dead = f"{directory}/dead"
        self.wake = f"{directory}/{WAKE}"
        self.left = f"{directory}/left"
        self.release = f"{directory}/release"
        self.log = f"{directory}/log"
        # How it is started, and that a person has requested it, with its allocation: written by who
        # starts it, if it has a number by then.
        self.settings = f"{directory}/settings.json"
        self.asked = f"{directory}/asked.json"
        self.hosts = f"{directory}/hosts"  # of its allocation, and the slots of each, for mpirun
        # Why a job that it has claimed does not begin, for people; an empty line: none waits.
        self.waits = f"{directory}/waits"
        self.login = f"{directory}/{LOGIN}"  # of its ssh server: see terminal/login.py
        # Exists until the worker has seen that a person wants to log in.
        self.login_asked = f"{self.login}/asked"

    def server_log(self, server: str) -> str:
        """What a server prints from which it forks jobs: zygote, phase, benchmark."""
        return f"{self.directory}/{server}.log"

    def serve(self, queue: str) -> str:
        return f"{self.directory}/{SERVE}{queue}"

    def cancel(self, name: Name) -> str:
        return f"{self.directory}/{CANCEL}{name}"


class Layout:
    """Everything below one machine's directory of KOCHI_ROOT."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.runs = f"{directory}/runs"
        self.queues = f"{directory}/queues"
        self.workers = f"{directory}/workers"
        self.history = f"{directory}/history"  # what is left of ended jobs by hand

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


def wake_workers(layout: Layout, queue: str) -> None:
    """Wake the workers of a queue that are on this computer, as far as is known."""
    with suppress(OSError):
        for mark in files.names(layout.queue(queue).directory):
            if mark.startswith(SERVING):
                wake(layout.worker(mark.removeprefix(SERVING)).wake)
