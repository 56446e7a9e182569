"""The paths of a machine, which all projects share, and of its locks."""

from __future__ import annotations

import binascii
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.files import name_of, safe_name
from snakemake_kochi.paths.queue import (
    SHARD,
    ControllerPaths,
    JobPaths,
    LaunchPaths,
    PackGroupPaths,
    QueuePaths,
    WorkerPaths,
)

QUEUE_LOCKS = 64


@dataclass(frozen=True)
class TrialPaths:
    """Test files of `kochi doctor`, here and on another node; removed afterwards."""

    directory: Path

    def lock(self, name: str) -> Path:
        return self.directory / f"lock-{name}"

    def message(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    def link(self, name: str) -> Path:
        return self.directory / f"link-{name}"

    @property
    def wakeup(self) -> Path:
        return self.directory / "wakeup"

    @property
    def other_directory(self) -> Path:
        return self.directory / "other"

    @property
    def listed_directory(self) -> Path:
        """A directory in which names are made while its time is watched."""
        return self.directory / "listed"

    @property
    def document(self) -> Path:
        """Replaced repeatedly while other processes read it."""
        return self.directory / "document.json"


@dataclass(frozen=True)
class ProjectLockPaths:
    """The locks of one project on one machine, in the directory of the machine's locks."""

    directory: Path

    def install(self, dependency: str, recipe: str) -> Path:
        """Held while an installation of a recipe is made and becomes the current one."""
        return (
            self.directory
            / "installs"
            / name_of("dependency", dependency)
            / name_of("recipe", recipe)
        )

    def build(self, digest: str) -> Path:
        return self.directory / "builds" / name_of("build", digest)

    @property
    def committer(self) -> Path:
        return self.directory / "committer"

    @property
    def promises(self) -> Path:
        return self.directory / "promises"

    def promise(self, nonce: str) -> Path:
        """Held by one process that will commit what other processes have journaled."""
        return self.promises / nonce


@dataclass(frozen=True)
class LockPaths:
    """The lock files of a machine.

    They are few, made once and never removed. If a process unlinked a lock, a second process could
    lock another file of the same name.
    """

    directory: Path

    @property
    def ids(self) -> Path:
        return self.directory / "ids"

    def queue(self, name: str) -> Path:
        """Queues share locks: each run has a queue of its own, and its lock would stay for ever."""
        number = binascii.crc32(name.encode()) % QUEUE_LOCKS
        return self.directory / f"queue-{number:02d}"

    @property
    def packing(self) -> Path:
        """Held by the process that packs the files of ended jobs."""
        return self.directory / "packing"

    @property
    def layout(self) -> Path:
        """Held while the machine's files are migrated from an earlier layout."""
        return self.directory / "layout"

    @property
    def launches(self) -> Path:
        """Held while a process checks for another launched run and launches its own."""
        return self.directory / "launches"

    def project(self, directory: Path) -> ProjectLockPaths:
        """`directory`: that of the project's files, `ProjectPaths.directory`."""
        return ProjectLockPaths(self.directory / "projects" / directory.name)

    def sent(self, name: str) -> Path:
        """Held while a project that another computer sent is unpacked; `name`: of its directory."""
        return self.directory / "sent" / name

    def settled(self, nonce: str) -> Path:
        """Exists if this is the settled directory itself.

        A directory of the same name on another node lacks this file.
        """
        return self.directory / f"settled-{nonce}"

    def trial(self, nonce: str) -> TrialPaths:
        return TrialPaths(self.directory / f".trial-{nonce}")

    def probe(self, host: str) -> Path:
        """A lock that protects nothing; processes of that node test locking with it."""
        return self.directory / f"probe-{safe_name(host)}"


@dataclass(frozen=True)
class MachinePaths:
    """The paths that all projects share on one machine: queues, jobs, workers."""

    name: str
    directory: Path

    @property
    def found(self) -> Path:
        """A kochi.yaml with what the machine's scheduler says of itself."""
        return self.directory / "found.yaml"

    @property
    def lock_settings(self) -> Path:
        """Which locks all processes of the machine use; exists from the first use on."""
        return self.directory / "locks.json"

    @property
    def locks(self) -> LockPaths:
        """The default directory of the locks, if kochi.yaml has no `lock_dir`."""
        return LockPaths(self.directory / "locks")

    def locks_in(self, lock_dir: Path) -> LockPaths:
        """The locks in a directory that other users and other machines may use, too."""
        digest = hashlib.sha256(os.fsencode(self.directory.resolve())).hexdigest()[:10]
        return LockPaths(lock_dir / f"kochi-{os.geteuid()}-{digest}")

    def trial(self, nonce: str) -> TrialPaths:
        return TrialPaths(self.directory / f".trial-{nonce}")

    @property
    def ids(self) -> Path:
        return self.directory / "ids.json"

    def number_ranges(self, kind: str) -> Path:
        """The ranges of job or worker numbers that were taken."""
        return self.directory / "numbers" / kind

    def number_range(self, kind: str, first: int) -> Path:
        return self.number_ranges(kind) / f"{first // SHARD:08d}" / f"{first}.json"

    def number_floor(self, kind: str) -> Path:
        """The number below which ranges were deleted, and no number is free."""
        return self.number_ranges(kind) / "floor.json"

    @property
    def queues(self) -> Path:
        return self.directory / "queues"

    @property
    def jobs(self) -> Path:
        return self.directory / "jobs"

    @property
    def workers(self) -> Path:
        return self.directory / "workers"

    @property
    def controllers(self) -> Path:
        return self.directory / "controllers"

    @property
    def runs(self) -> Path:
        return self.directory / "runs"

    def run(self, controller: str) -> Path:
        """The record of a controller's run; it stays when the controller has ended."""
        return self.runs / f"{name_of('controller', controller)}.json"

    @property
    def allocations(self) -> Path:
        return self.directory / "allocations"

    @property
    def launches(self) -> Path:
        return self.directory / "launches"

    def launch(self, identity: str) -> LaunchPaths:
        return LaunchPaths(self.launches / name_of("launch", identity))

    def launch_names(self) -> list[str]:
        return [path.name for path in self.launches.glob("*") if path.is_dir()]

    def queue(self, name: str) -> QueuePaths:
        return QueuePaths(name, self.queues / name_of("queue", name))

    def job(self, number: int) -> JobPaths:
        return JobPaths(self.directory.joinpath("jobs", f"{number // SHARD:08d}", str(number)))

    @property
    def packs(self) -> Path:
        """The packs: archives with the files of jobs that have ended."""
        return self.directory / "packs"

    def pack_group(self, shard: int) -> PackGroupPaths:
        """The packs of the 256 shards to which this one belongs."""
        return PackGroupPaths(self.packs / f"{shard // SHARD:08d}")

    @property
    def packed(self) -> Path:
        """What the last packer did; its time is also that of its start by a submission."""
        return self.directory / "packed"

    def allocation_log(self, controller: str | None, allocation: str) -> Path:
        """The output of a controller's allocation, or of one of a person's (None), besides the log
        of its worker.

        `allocation` may be the placeholder that the scheduler replaces with the allocation's name.
        """
        name = name_of("controller", controller) if controller else "alloc"
        return self.allocations / f"{name}-{allocation}.log"

    def allocation_note(self, controller: str, allocation: str) -> Path:
        """The time and the purpose of a controller's allocation request."""
        name = f"{name_of('controller', controller)}-{safe_name(allocation)}.json"
        return self.allocations / name

    def allocation_notes(self, controller: str) -> list[Path]:
        return sorted(self.allocations.glob(f"{name_of('controller', controller)}-*.json"))

    @property
    def all_facts(self) -> Path:
        return self.directory / "facts"

    def facts(self, host: str, digest: str) -> Path:
        """The output of the commands of facts on a node; may be deleted at any time."""
        return self.all_facts / safe_name(host) / f"{digest}.json"

    def cpu_leases(self, host: str) -> Path:
        """A file with one byte per CPU of that node; the workers there lock these bytes."""
        return self.directory / "nodes" / f"{safe_name(host)}.cpus"

    def worker(self, number: int) -> WorkerPaths:
        return WorkerPaths(self.workers / str(number))

    def worker_settings(self, digest: str) -> Path:
        """The settings of all workers with equal settings that are started without a number."""
        return self.settings_of_workers / f"{digest[:20]}.json"

    @property
    def settings_of_workers(self) -> Path:
        return self.directory / "worker-settings"

    @property
    def paused(self) -> Path:
        """The batches whose jobs no worker starts."""
        return self.directory / "paused"

    def paused_batch(self, digest: str) -> Path:
        return self.paused / f"{name_of('paused batch', digest)}.json"

    @property
    def tested(self) -> Path:
        """Empty; exists since `kochi doctor --allocations` found nothing wrong between nodes."""
        return self.directory / "tested"

    @property
    def cleaned(self) -> Path:
        """Empty; its modification time is that of the last clean-up that a run has started."""
        return self.directory / "cleaned"

    def controller(self, identity: str) -> ControllerPaths:
        return ControllerPaths(self.controllers / name_of("controller", identity))
