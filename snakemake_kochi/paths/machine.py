"""The paths of a machine, which all projects share, and of its locks."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

from snakemake_kochi.files import name_of, safe_name
from snakemake_kochi.tickets.names import Layout

AnyPath = TypeVar("AnyPath", bound=PurePath, covariant=True)


class _HasDirectory(Protocol[AnyPath]):
    @property
    def directory(self) -> AnyPath: ...


class Below:
    """A path with a fixed name in the `directory` of the object whose attribute it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: _HasDirectory[AnyPath], owner: Any = None) -> AnyPath:
        return paths.directory / self._name


@dataclass(frozen=True)
class TrialPaths:
    """Test files of `kochi doctor`, here and on another node; removed afterwards."""

    directory: Path
    wakeup = Below("wakeup")
    other_directory = Below("other")
    document = Below("document.json")  # replaced repeatedly while other processes read it

    def lock(self, name: str) -> Path:
        return self.directory / f"lock-{name}"

    def message(self, name: str) -> Path:
        return self.directory / f"{name}.json"


@dataclass(frozen=True)
class ProjectLockPaths:
    """The locks of one project on one machine, in the directory of the machine's locks."""

    directory: Path
    committer = Below("committer")
    promises = Below("promises")

    def install(self, dependency: str, recipe: str) -> Path:
        """Held while an installation of a recipe is made and becomes the current one."""
        names = name_of("dependency", dependency), name_of("recipe", recipe)
        return self.directory.joinpath("installs", *names)

    def build(self, digest: str) -> Path:
        return self.directory / "builds" / name_of("build", digest)

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
    # Held while a process checks for another launched run and launches its own.
    launches = Below("launches")

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
class LoginPaths:
    """An ssh server of one worker: its keys, its configuration, and who asks for it."""

    directory: Path
    asked = Below("asked")  # until the worker has seen that a person wants to log in
    answer = Below("answer.json")  # where the server listens, or why there is none
    user_key = Below("user_key")
    public_key = Below("user_key.pub")  # the only one that the server accepts
    host_key = Below("host_key")
    public_host_key = Below("host_key.pub")
    known_hosts = Below("known_hosts")  # the only host key that the client accepts
    server_configuration = Below("sshd_config")
    log = Below("log")

    def new(self, nonce: str) -> LoginPaths:
        """Where the keys are made, before they are renamed to this directory."""
        return LoginPaths(self.directory.with_name(f".{self.directory.name}-{nonce}"))


@dataclass(frozen=True)
class LaunchPaths:
    """A launched run, which goes on without a terminal."""

    directory: Path
    launch = Below("launch.json")
    process = Below("process.json")
    alive = Below("alive")  # a counter: the heartbeat of the supervisor
    output = Below("output")
    log = Below("log.json")  # Snakemake's log of the run
    end = Below("end.json")
    # Exists when the scheduler said that the time of the run is nearly over.
    time_up = Below("time-up.json")
    gone = Below("gone.json")  # exists when the scheduler has said that the run is gone

    def stop(self, number: int) -> Path:
        """Exists when somebody on another host has told the run to stop for the n-th time."""
        return self.directory / f"stop-{number}.json"


@dataclass(frozen=True)
class MachinePaths:
    """The paths that all projects share on one machine: queues, jobs, workers."""

    name: str
    directory: Path
    found = Below("found.yaml")  # a kochi.yaml with what the machine's scheduler says of itself
    # Which locks all processes of the machine use; exists from the first use on.
    lock_settings = Below("locks.json")
    queues = Below("queues")
    workers = Below("workers")
    allocations = Below("allocations")
    launches = Below("launches")
    all_facts = Below("facts")
    settings_of_workers = Below("worker-settings")
    paused = Below("paused")  # the batches whose jobs no worker starts
    # Empty; exists since `kochi doctor --allocations` found nothing wrong between nodes.
    tested = Below("tested")
    # Empty; its modification time is that of the last clean-up that a run has started.
    cleaned = Below("cleaned")

    @property
    def layout(self) -> Layout:
        """Runs, queues and workers."""
        return Layout(str(self.directory))

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

    def facts(self, host: str, digest: str) -> Path:
        """The output of the commands of facts on a node; may be deleted at any time."""
        return self.all_facts / safe_name(host) / f"{digest}.json"

    def worker_settings(self, digest: str) -> Path:
        """The settings of all workers with equal settings that are started without a number."""
        return self.settings_of_workers / f"{digest[:20]}.json"

    def paused_batch(self, digest: str) -> Path:
        return self.paused / f"{name_of('paused batch', digest)}.json"
