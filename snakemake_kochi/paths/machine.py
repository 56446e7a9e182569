"""The paths of a machine, which all projects share, and of its locks."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.files import name_of, safe_name
from snakemake_kochi.paths.queue import LaunchPaths
from snakemake_kochi.tickets.names import Layout


@dataclass(frozen=True)
class TrialPaths:
    """Test files of `kochi doctor`, here and on another node; removed afterwards."""

    directory: Path

    def lock(self, name: str) -> Path:
        return self.directory / f"lock-{name}"

    def message(self, name: str) -> Path:
        return self.directory / f"{name}.json"

    @property
    def wakeup(self) -> Path:
        return self.directory / "wakeup"

    @property
    def other_directory(self) -> Path:
        return self.directory / "other"

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


@dataclass(frozen=True)
class MachinePaths:
    """The paths that all projects share on one machine: queues, jobs, workers."""

    name: str
    directory: Path

    @property
    def layout(self) -> Layout:
        """Runs, queues and workers."""
        return Layout(str(self.directory))

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
    def queues(self) -> Path:
        return self.directory / "queues"

    @property
    def workers(self) -> Path:
        return self.directory / "workers"

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

    def queue(self, name: str) -> str:
        """The name, if a queue can have it. Raises KochiError."""
        return name_of("queue", name)

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
