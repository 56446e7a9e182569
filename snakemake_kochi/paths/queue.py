"""The paths of a queue, a job, a worker, a controller and a launch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.files import make_directory
from snakemake_kochi.ownership import check_ours

# How the name of a result begins that is not published yet, in the directory of its job.
DRAFT = ".result-"
SHARD = 256  # entries per directory: listing one costs the same however many jobs there are


@dataclass(frozen=True)
class QueuePaths:
    """One queue: an ordered set of tickets on one machine."""

    name: str
    directory: Path

    @property
    def waiting(self) -> Path:
        return self.directory / "waiting"

    @staticmethod
    def shard_name(job: int) -> str:
        return f"{job // SHARD:08d}"

    @staticmethod
    def ticket_name(job: int, attempt: int) -> str:
        # Padded, so that the names of a shard sort as their numbers do: first come, first served.
        return f"{job:010d}-{attempt}.json"

    def waiting_shard(self, job: int) -> Path:
        """The directory of tickets of its shard that came one by one."""
        return self.waiting / self.shard_name(job)

    def waiting_ticket(self, job: int, attempt: int) -> Path:
        """The file of a ticket that goes back to the queue, or comes alone."""
        return self.waiting_shard(job) / self.ticket_name(job, attempt)

    @classmethod
    def submitted_shard(cls, first: int, last: int) -> str:
        """The name of the directory for the tickets of one submission that are of one shard."""
        # Padded, so that the names of all directories sort as their tickets do.
        return f"{cls.shard_name(first)}-{first:010d}-{last:010d}"

    @property
    def submissions(self) -> Path:
        """The directory in which tickets are written before they wait."""
        return self.directory / "submissions"

    def submission(self, name: str) -> Path:
        return self.submissions / name

    @property
    def running(self) -> Path:
        return self.directory / "running"

    def running_ticket(self, job: int, attempt: int, worker: int) -> Path:
        return self.running / f"{job:010d}-{attempt}-{worker}.json"

    @property
    def damaged(self) -> Path:
        return self.directory / "damaged"

    def damaged_ticket(self, name: str, nonce: str) -> Path:
        return self.damaged / f"{name[:200]}.{nonce}"

    @property
    def subscribers(self) -> Path:
        return self.directory / "subscribers"

    def subscription(self, worker: int) -> Path:
        """Empty; exists while that worker serves this queue, so that its FIFO is notified."""
        return self.subscribers / str(worker)

    def removed(self, nonce: str) -> Path:
        """The path to which a queue moves when it is removed.

        The dot keeps it out of every listing.
        """
        return self.directory.with_name(f".{self.name[:64]}-{nonce}")

    def make(self) -> QueuePaths:
        """Make its directories. Raises OthersError when another user has made one of them."""
        for directory in (self.directory, self.waiting, self.running, self.subscribers):
            # Nearly always it is there, and that is all that is asked.
            try:
                check_ours(directory)
            except FileNotFoundError:
                check_ours(make_directory(directory))
        return self


@dataclass(frozen=True)
class JobPaths:
    """The files of one job after its ticket was claimed; after its end, a pack may have them."""

    directory: Path

    @property
    def number(self) -> int:
        return int(self.directory.name)

    @property
    def ticket(self) -> Path:
        return self.directory / "ticket.json"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def result(self) -> Path:
        return self.directory / "result.json"

    @property
    def cancel(self) -> Path:
        return self.directory / "cancel"

    @property
    def terminal(self) -> Path:
        """Where the terminal of a job of `kochi interact` is."""
        return self.directory / "terminal.json"

    def attempt(self, number: int) -> Path:
        """What executes it; if it counts, this file becomes the result as well."""
        return self.directory / f"attempt-{number}.json"

    def ended(self, number: int) -> Path:
        """Exists when that attempt has ended and its ticket went back to the queue."""
        return self.directory / f"ended-{number}.json"

    def draft(self, nonce: str) -> Path:
        """A result of which no attempt has a file, before the link to `result` makes it count."""
        return self.directory / f"{DRAFT}{nonce}.json"

    def late_result(self, nonce: str) -> Path:
        return self.directory / f"late-{nonce}.json"

    def late_results(self, names: Collection[str]) -> list[Path]:
        """The late results among the names of its files."""
        late = (name for name in names if name.startswith("late-") and name.endswith(".json"))
        return [self.directory / name for name in sorted(late)]


@dataclass(frozen=True)
class PackGroupPaths:
    """The packs of 256 shards, and their index. Each name has a nonce, and is never used again."""

    directory: Path

    def pack(self, shard: int, nonce: str) -> Path:
        """An archive (ZIP) of the files of ended jobs of that shard."""
        return self.directory / f"{shard:08d}-{nonce}.zip"

    @staticmethod
    def shard_of(name: str) -> int | None:
        """The shard of the pack with that file name; None for another file."""
        shard, _, rest = name.partition("-")
        return int(shard) if shard.isdecimal() and rest.endswith(".zip") else None

    def index(self, nonce: str) -> Path:
        """Which jobs of which name, queue, directory and state are in these packs."""
        return self.directory / f"index-{nonce}.jsonl"

    @staticmethod
    def is_index(name: str) -> bool:
        return name.startswith("index-") and name.endswith(".jsonl")


@dataclass(frozen=True)
class LoginPaths:
    """An ssh server of one worker: its keys, its configuration, and who asks for it."""

    directory: Path

    @property
    def asked(self) -> Path:
        """Exists until the worker has seen that a person wants to log in."""
        return self.directory / "asked"

    @property
    def answer(self) -> Path:
        """Where the server listens, or why there is none; the server writes it."""
        return self.directory / "answer.json"

    @property
    def user_key(self) -> Path:
        return self.directory / "user_key"

    @property
    def public_key(self) -> Path:
        """The only key that the server accepts."""
        return self.directory / "user_key.pub"

    @property
    def host_key(self) -> Path:
        return self.directory / "host_key"

    @property
    def public_host_key(self) -> Path:
        return self.directory / "host_key.pub"

    @property
    def known_hosts(self) -> Path:
        """The only host key that the client accepts."""
        return self.directory / "known_hosts"

    @property
    def server_configuration(self) -> Path:
        return self.directory / "sshd_config"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def new(self, nonce: str) -> LoginPaths:
        """Where the keys are made, before they are renamed to this directory."""
        return LoginPaths(self.directory.with_name(f".{self.directory.name}-{nonce}"))


@dataclass(frozen=True)
class WorkerPaths:
    directory: Path

    @property
    def state(self) -> Path:
        return self.directory / "worker.json"

    @property
    def queues(self) -> Path:
        return self.directory / "queues.json"

    @property
    def settings(self) -> Path:
        """How the worker is started.

        The process that starts the worker writes this file, if the worker has a number by then.
        """
        return self.directory / "settings.json"

    @property
    def wakeup(self) -> Path:
        return self.directory / "wakeup"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def zygote_log(self, number: int) -> Path:
        """The output of a zygote, a process that has parsed a workflow for the worker's jobs.

        The next zygote with that number overwrites it.
        """
        return self.directory / f"zygote-{number}.log"

    @property
    def presumed_dead(self) -> Path:
        """Exists when an observer on another node presumed the worker dead.

        The worker must not go on.
        """
        return self.directory / "presumed-dead.json"

    @property
    def release(self) -> Path:
        """Exists when a person has released the worker; says how it must leave."""
        return self.directory / "release.json"

    @property
    def requested(self) -> Path:
        """Exists when a person has requested the worker; names its allocation."""
        return self.directory / "asked.json"

    @property
    def login(self) -> LoginPaths:
        """Exists when a person wanted to log in on the worker's node."""
        return LoginPaths(self.directory / "login")

    @property
    def hosts(self) -> Path:
        """The nodes of its allocation, as mpirun reads them; written before it has a job."""
        return self.directory / "hosts"

    @property
    def probe(self) -> Path:
        """Written and removed by the worker, to test whether it can write."""
        return self.directory / "probe"


@dataclass(frozen=True)
class ControllerPaths:
    directory: Path

    @property
    def state(self) -> Path:
        return self.directory / "controller.json"

    @property
    def wakeup(self) -> Path:
        return self.directory / "wakeup"

    @property
    def inbox(self) -> Path:
        return self.directory / "inbox"

    def delivery(self, job: int, nonce: str) -> Path:
        return self.inbox / f"{job}-{nonce}.json"

    @property
    def delivered(self) -> Path:
        """What was read of the deliveries: its adopter needs to know what it may have lost."""
        return self.directory / "delivered"

    @property
    def read_jobs(self) -> Path:
        """The jobs whose deliveries were read, a line with the number for each."""
        return self.delivered / "jobs"

    def delivered_file(self, name: str, job: int) -> Path:
        return self.delivered / f"{job // SHARD:08d}" / name

    def delivered_files(self) -> list[Path]:
        """The deliveries that were moved when they were read, because the disk was full.

        Earlier releases moved all of them, some to one directory.
        """
        return sorted({*self.delivered.glob("*.json"), *self.delivered.glob("*/*.json")})

    @property
    def outputs(self) -> Path:
        """The files that its run may write; exists before the state file does."""
        return self.directory / "outputs.json"

    @property
    def gone(self) -> Path:
        """Exists when a person said that the controller is gone."""
        return self.directory / "gone"

    def adopter(self, number: int) -> Path:
        """The number-th adopter: the controller that adopted the jobs of this dead one."""
        return self.directory / f"adopter-{number}.json"


@dataclass(frozen=True)
class LaunchPaths:
    """A launched run, which goes on without a terminal."""

    directory: Path

    @property
    def launch(self) -> Path:
        return self.directory / "launch.json"

    @property
    def process(self) -> Path:
        return self.directory / "process.json"

    @property
    def output(self) -> Path:
        return self.directory / "output"

    @property
    def log(self) -> Path:
        """The path of Snakemake's log of the run."""
        return self.directory / "log.json"

    @property
    def end(self) -> Path:
        return self.directory / "end.json"

    @property
    def time_up(self) -> Path:
        """Exists when the scheduler said that the time of the run is nearly over."""
        return self.directory / "time-up.json"

    def stop(self, number: int) -> Path:
        """Exists when somebody on another host has told the run to stop for the n-th time."""
        return self.directory / f"stop-{number}.json"

    @property
    def gone(self) -> Path:
        """Exists when a process learned from the scheduler that the run is gone."""
        return self.directory / "gone.json"
