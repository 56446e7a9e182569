"""The paths of a queue, a job, a worker, a controller and a launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.files import make_directory
from snakemake_kochi.ownership import check_ours
from snakemake_kochi.paths.names import SHARD


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
        return self.waiting / self.shard_name(job)

    def waiting_ticket(self, job: int, attempt: int) -> Path:
        return self.waiting_shard(job) / self.ticket_name(job, attempt)

    @property
    def submissions(self) -> Path:
        """Where tickets are written before they wait."""
        return self.directory / "submissions"

    def submission(self, nonce: str) -> Path:
        return self.submissions / nonce

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
        """Empty; exists while that worker serves this queue and wants to be notified."""
        return self.subscribers / str(worker)

    def removed(self, nonce: str) -> Path:
        """Where a queue goes to be removed; the dot keeps it out of every listing."""
        return self.directory.with_name(f".{self.name[:64]}-{nonce}")

    def make(self) -> QueuePaths:
        """Make its directories. Raises OthersError when somebody else has made one of them."""
        for directory in (self.waiting, self.running, self.subscribers):
            make_directory(directory)
        for directory in (self.directory, self.waiting, self.running, self.subscribers):
            check_ours(directory)
        return self


@dataclass(frozen=True)
class JobPaths:
    """What is kept of one job after it was claimed."""

    directory: Path

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

    def attempt(self, number: int) -> Path:
        return self.directory / f"attempt-{number}.json"

    def ended(self, number: int) -> Path:
        """There when that attempt ended and its ticket went back to the queue."""
        return self.directory / f"ended-{number}.json"

    def late_result(self, nonce: str) -> Path:
        return self.directory / f"late-{nonce}.json"

    def late_results(self) -> list[Path]:
        return sorted(self.directory.glob("late-*.json"))


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
        """How it is started; written by who starts it, if it had a number by then."""
        return self.directory / "settings.json"

    @property
    def wakeup(self) -> Path:
        return self.directory / "wakeup"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def zygote_log(self, number: int) -> Path:
        """What a process said that has parsed a workflow for the worker's jobs; written anew by the
        next one of that number."""
        return self.directory / f"zygote-{number}.log"

    @property
    def presumed_dead(self) -> Path:
        """There when an observer on another node presumed the worker dead; it must not go on."""
        return self.directory / "presumed-dead.json"

    @property
    def release(self) -> Path:
        """There when a person wants the worker to leave, and how."""
        return self.directory / "release.json"

    @property
    def asked(self) -> Path:
        """There when a person has asked a scheduler for the worker, with that of its allocation."""
        return self.directory / "asked.json"

    @property
    def hosts(self) -> Path:
        """The nodes of its allocation, as mpirun reads them; written before it has a job."""
        return self.directory / "hosts"

    @property
    def probe(self) -> Path:
        """Written and removed by the worker, to see whether it can."""
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
        """Deliveries that were read; they tell the adopter what this controller may have lost."""
        return self.directory / "delivered"

    def delivered_file(self, name: str, job: int) -> Path:
        return self.delivered / f"{job // SHARD:08d}" / name

    def delivered_files(self) -> list[Path]:
        """All of them; an earlier release had them in one directory."""
        return sorted({*self.delivered.glob("*.json"), *self.delivered.glob("*/*.json")})

    @property
    def outputs(self) -> Path:
        """Which files its run may write; there before the state is."""
        return self.directory / "outputs.json"

    @property
    def gone(self) -> Path:
        """There when a person said that it is no more."""
        return self.directory / "gone"

    def adopter(self, number: int) -> Path:
        """Names the controller that adopted the jobs of this dead one, as the number-th."""
        return self.directory / f"adopter-{number}.json"


@dataclass(frozen=True)
class LaunchPaths:
    """A run that goes on without a terminal."""

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
        """Where Snakemake's log of it is."""
        return self.directory / "log.json"

    @property
    def end(self) -> Path:
        return self.directory / "end.json"

    @property
    def time_up(self) -> Path:
        """There when its scheduler said that its time is nearly over."""
        return self.directory / "time-up.json"

    @property
    def gone(self) -> Path:
        """There when somebody learned from the scheduler that it is no more."""
        return self.directory / "gone.json"
