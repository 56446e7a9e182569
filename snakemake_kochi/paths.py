"""Every path below KOCHI_ROOT, in one place. No other module joins one.

KOCHI_ROOT/                              0700
  machines/<machine>/
    ids.json                             the next job and worker number
    numbers/<kind>/<shard>/<first>.json  a range of them that somebody has taken
    found.yaml                           what its scheduler told of it
    locks.json, locks/                   where the locks are and of which kind; the locks
    locks/projects/<name>-<digest>/      installs/, builds/, promises/, committer
    queues/<queue>/                      waiting/<shard>/, running/, damaged/, subscribers/
    jobs/<shard>/<job>/                  ticket.json, attempt-<n>.json, log, result.json, cancel
    workers/<worker>/                    worker.json, queues.json, wakeup, log
    controllers/<controller>/            controller.json, outputs.json, wakeup, inbox/, delivered/,
                                         adopter-<n>.json, gone
    runs/<controller>.json               which jobs and workers its run had
    allocations/                         <controller>-<allocation>.json and .log
    launches/<launch>/                   launch.json, process.json, output, end.json, gone.json
    nodes/<host>.cpus                    bytes are locked for the CPUs that jobs there have
  projects/<name>-<digest>/
    store.git                            snapshots
    freezes/<digest>.json                what a run was frozen to
    freezes/<digest>/<batch>.json        what of it the runs of one batch need
    repositories/<digest>/               the `.git` of copies of a snapshot
    installs/<machine>/<dependency>/<recipe>/<digest>/
    builds/<machine>/<digest>/           source tree with what was built in it
    artifacts/<machine>/                 journal/, damaged/, late/, directories/, committed,
                                         agreed.json, disagreed, discarded.json,
                                         replaced/
    workspaces/<machine>/                private copies in which runs happen
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import NO_ROOM, expand_user, is_name, make_directory
from snakemake_kochi.ownership import OthersError, check_ours, examine

QUEUE_LOCKS = 64
SHARD = 256  # entries per directory: listing one costs the same however many jobs there are


def _name(kind: str, name: str) -> str:
    if not is_name(name):
        raise KochiError(
            f"{kind} name {name!r} cannot be used: it becomes part of a path",
            "Use 1 to 128 letters, digits and any of ._+@=- , not starting with a dot or dash.",
        )
    return name


def _safe(host: str) -> str:
    # A host's name is not ours to refuse.
    return "".join(c if is_name("x" + c) else "_" for c in host)[:64]


# In a `.git` that is kept for copies: where those of its submodules are.
SUBMODULES = "kochi-submodules.json"


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


@dataclass(frozen=True)
class TrialPaths:
    """Where `kochi doctor` tries things out, here and from another node; removed afterwards."""

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
    def document(self) -> Path:
        """Replaced again and again while others read it."""
        return self.directory / "document.json"


@dataclass(frozen=True)
class ProjectLockPaths:
    """The locks of one project on one machine, with those of the machine."""

    directory: Path

    def install(self, dependency: str, recipe: str) -> Path:
        """Held while an installation of a recipe is made and becomes the current one."""
        return (
            self.directory / "installs" / _name("dependency", dependency) / _name("recipe", recipe)
        )

    def build(self, digest: str) -> Path:
        return self.directory / "builds" / _name("build", digest)

    @property
    def committer(self) -> Path:
        return self.directory / "committer"

    @property
    def promises(self) -> Path:
        return self.directory / "promises"

    def promise(self, nonce: str) -> Path:
        """Held by one process that will commit what others have journaled."""
        return self.promises / nonce


@dataclass(frozen=True)
class LockPaths:
    """The files that are locked. They are few, made once and never removed: who unlinks a lock lets
    a second process lock another file of the same name."""

    directory: Path

    @property
    def ids(self) -> Path:
        return self.directory / "ids"

    def queue(self, name: str) -> Path:
        """Queues share locks: each run has a queue of its own, whose lock would stay for ever."""
        number = zlib.crc32(name.encode()) % QUEUE_LOCKS
        return self.directory / f"queue-{number:02d}"

    @property
    def layout(self) -> Path:
        """Held while the machine's files are migrated from an earlier layout."""
        return self.directory / "layout"

    @property
    def launches(self) -> Path:
        """Held while one looks whether another runs, and launches its own."""
        return self.directory / "launches"

    def project(self, project: ProjectPaths) -> ProjectLockPaths:
        return ProjectLockPaths(self.directory / "projects" / project.directory.name)

    def settled(self, nonce: str) -> Path:
        """There if this is the very directory that was settled, and not one on another node."""
        return self.directory / f"settled-{nonce}"

    def trial(self, nonce: str) -> TrialPaths:
        return TrialPaths(self.directory / f".trial-{nonce}")

    def probe(self, host: str) -> Path:
        """A lock of nobody's, for processes of that node to try out locking with."""
        return self.directory / f"probe-{_safe(host)}"


@dataclass(frozen=True)
class MachinePaths:
    """What all projects share on one machine: queues, jobs, workers."""

    name: str
    directory: Path

    @property
    def found(self) -> Path:
        """A kochi.yaml with what its scheduler told of it."""
        return self.directory / "found.yaml"

    @property
    def lock_settings(self) -> Path:
        """Which locks all processes of the machine use; there from the first use on."""
        return self.directory / "locks.json"

    @property
    def locks(self) -> LockPaths:
        """Where the locks are unless kochi.yaml has a `lock_dir`."""
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
        """The ranges of numbers for jobs, or workers, that were taken."""
        return self.directory / "numbers" / kind

    def number_range(self, kind: str, first: int) -> Path:
        return self.number_ranges(kind) / f"{first // SHARD:08d}" / f"{first}.json"

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
        """What is kept of the run of a controller; it stays when the controller has ended."""
        return self.runs / f"{_name('controller', controller)}.json"

    @property
    def allocations(self) -> Path:
        return self.directory / "allocations"

    @property
    def launches(self) -> Path:
        return self.directory / "launches"

    def launch(self, identity: str) -> LaunchPaths:
        return LaunchPaths(self.launches / _name("launch", identity))

    def launch_names(self) -> list[str]:
        return [path.name for path in self.launches.glob("*") if path.is_dir()]

    def queue(self, name: str) -> QueuePaths:
        return QueuePaths(name, self.queues / _name("queue", name))

    def job(self, number: int) -> JobPaths:
        return JobPaths(self.jobs / f"{number // SHARD:08d}" / str(number))

    @property
    def job_logs(self) -> Path:
        """Where the logs of all jobs are, for people."""
        return JobPaths(self.jobs / "*" / "JOB").log

    def allocation_log(self, controller: str, allocation: str) -> Path:
        """What an allocation of a controller said, besides its worker's log; `allocation` may be
        what the scheduler puts its name in place of."""
        return self.allocations / f"{_name('controller', controller)}-{allocation}.log"

    def allocation_note(self, controller: str, allocation: str) -> Path:
        """What was asked for with an allocation of a controller, and when."""
        name = f"{_name('controller', controller)}-{_safe(allocation)}.json"
        return self.allocations / name

    def allocation_notes(self, controller: str) -> list[Path]:
        return sorted(self.allocations.glob(f"{_name('controller', controller)}-*.json"))

    def cpu_leases(self, host: str) -> Path:
        """Whose bytes are locked by the workers of that node: one for each CPU."""
        return self.directory / "nodes" / f"{_safe(host)}.cpus"

    def worker(self, number: int) -> WorkerPaths:
        return WorkerPaths(self.workers / str(number))

    def worker_settings(self, digest: str) -> Path:
        """The settings of all workers that are started with equal ones, and without a number."""
        return self.directory / "worker-settings" / f"{digest[:20]}.json"

    def controller(self, identity: str) -> ControllerPaths:
        return ControllerPaths(self.controllers / _name("controller", identity))


@dataclass(frozen=True)
class InstallPaths:
    """One installation of one recipe, in a prefix of its own for good."""

    directory: Path

    @property
    def prefix(self) -> Path:
        return self.directory / "prefix"

    @property
    def source(self) -> Path:
        return self.directory / "source"

    @property
    def manifest(self) -> Path:
        return self.directory / "manifest.json"

    @property
    def record(self) -> Path:
        return self.directory / "record.json"

    @property
    def log(self) -> Path:
        return self.directory / "log"


@dataclass(frozen=True)
class BuildPaths:
    """One build: a source tree with what was built in it."""

    directory: Path

    @property
    def tree(self) -> Path:
        return self.directory / "tree"

    @property
    def log(self) -> Path:
        """What the build script printed."""
        return self.directory / "log"

    @property
    def manifest(self) -> Path:
        return self.directory / "manifest.json"


@dataclass(frozen=True)
class ProjectPaths:
    """What one project keeps, by the place of its repository: two repositories of the same
    directory name share nothing."""

    directory: Path

    def machine(self, name: str) -> MachinePaths:
        """A machine of the same KOCHI_ROOT."""
        return Root(self.directory.parent.parent).machine(name)

    @property
    def store(self) -> Path:
        return self.directory / "store.git"

    def freeze(self, digest: str) -> Path:
        return self.directory / "freezes" / f"{_name('freeze', digest)}.json"

    @staticmethod
    def batch_freeze(freeze: Path, digest: str) -> Path:
        """What one batch needs of a freeze, by the place of that."""
        return freeze.with_suffix("") / f"{_name('batch freeze', digest)}.json"

    def repository(self, digest: str) -> Path:
        """The `.git` that copies of a snapshot get a copy of."""
        return self.directory / "repositories" / _name("repository", digest)

    def freezes(self) -> list[Path]:
        return sorted((self.directory / "freezes").glob("*.json"))

    def recipe(self, machine: str, dependency: str, recipe: str) -> Path:
        return (
            self.directory
            / "installs"
            / _name("machine", machine)
            / _name("dependency", dependency)
            / _name("recipe", recipe)
        )

    def install(self, machine: str, dependency: str, recipe: str, digest: str) -> InstallPaths:
        return InstallPaths(self.recipe(machine, dependency, recipe) / _name("install", digest))

    def current_install(self, machine: str, dependency: str, recipe: str) -> Path:
        """A symbolic link to the installation in use, switched by one rename."""
        return self.recipe(machine, dependency, recipe) / "current"

    def newest_install_log(self, machine: str, dependency: str, recipe: str) -> Path | None:
        """The log of the installation that was tried last, whether it worked or not."""
        logs = self.recipe(machine, dependency, recipe).glob("*/log")
        return max(logs, key=lambda log: log.stat().st_mtime_ns, default=None)

    def build(self, machine: str, digest: str) -> BuildPaths:
        return BuildPaths(
            self.directory / "builds" / _name("machine", machine) / _name("build", digest)
        )

    def journal(self, machine: str) -> Path:
        return self.directory / "artifacts" / _name("machine", machine) / "journal"

    def damaged_results(self, machine: str) -> Path:
        """Journal entries that cannot be committed, kept for a person to look at."""
        return self.directory / "artifacts" / _name("machine", machine) / "damaged"

    def late_results(self, machine: str) -> Path:
        """Journal entries of attempts that were given up; a later one has made them again."""
        return self.directory / "artifacts" / _name("machine", machine) / "late"

    def agreement(self, machine: str) -> Path:
        """Up to which commit the branch of results is known to have all of them."""
        return self.directory / "artifacts" / _name("machine", machine) / "agreed.json"

    def disagreement(self, machine: str) -> Path:
        """Empty; says that the branch of results may lack some."""
        return self.directory / "artifacts" / _name("machine", machine) / "disagreed"

    def discarded(self, machine: str) -> Path:
        """Which results in working directories are not to be committed again."""
        return self.directory / "artifacts" / _name("machine", machine) / "discarded.json"

    def replaced(self, machine: str) -> Path:
        """Which newer results were replaced, until somebody is told, a file for each commit."""
        return self.directory / "artifacts" / _name("machine", machine) / "replaced"

    def working_directory(self, machine: str, directory: Path) -> Path:
        """Says that Snakemake was run in a directory, which has results."""
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        return self.working_directories(machine) / f"{digest}.json"

    def working_directories(self, machine: str) -> Path:
        return self.directory / "artifacts" / _name("machine", machine) / "directories"

    def committed(self, machine: str) -> Path:
        """Empty; its modification time is that of the newest commit of results."""
        return self.directory / "artifacts" / _name("machine", machine) / "committed"

    def workspaces(self, machine: str) -> Path:
        return self.directory / "workspaces" / _name("machine", machine)


@dataclass(frozen=True)
class WorkingPaths:
    """What the rules of one machine write below the working directory of Snakemake."""

    directory: Path
    machine: str

    @property
    def results(self) -> Path:
        """Artifacts, tables and plots."""
        return self.directory / "results" / self.machine

    @property
    def state(self) -> Path:
        """Beside Snakemake's own state: what only says which installation, build or run is
        current."""
        return self.directory / ".snakemake" / "kochi" / self.machine

    @staticmethod
    def remembered(file: Path) -> Path:
        """Beside a file that stands for an installation or a build, and the same: it stays when
        that is deleted, for Snakemake does not know it."""
        return file.with_name("known.json")

    @property
    def records(self) -> Path:
        """A directory for each run, with a file `record.json`."""
        return self.state / "records"


_ROOT_VARIABLE = "$KOCHI_ROOT"
_FOR_ALL_NODES = "a directory that you may write to, and that all nodes of a cluster see"


@dataclass(frozen=True)
class Root:
    """KOCHI_ROOT. `said_at`: where it is said, for people; None if it is the default."""

    directory: Path
    said_at: str | None = field(default=_ROOT_VARIABLE, compare=False)

    @classmethod
    def find(
        cls,
        configured: str | None = None,
        environment: Mapping[str, str] = os.environ,
        where: str = "the machine's kochi_root",
    ) -> Root:
        """The machine's `kochi_root`, which is said at `where`, else $KOCHI_ROOT, else ~/.kochi."""
        given = environment.get("KOCHI_ROOT")
        what = "the machine's kochi_root" if configured else "KOCHI_ROOT"
        chosen = expand_user(os.path.expandvars(configured or given or "~/.kochi"), what)
        said_at = where if configured else _ROOT_VARIABLE if given else None
        return cls(chosen.absolute(), said_at)

    def secure(self, directory: Path) -> list[str]:
        """Make sure that what is in a directory below KOCHI_ROOT was put there by this user; make
        it if it is missing.

        Returns sentences about others who could (see `ownership.examine`).
        Raises KochiError.
        """
        with self.explaining():
            doubts, is_complete = self._examine(directory)
            if not is_complete:
                make_directory(directory)
                # Somebody may have been faster.
                doubts, _ = self._examine(directory)
        return doubts

    def _examine(self, directory: Path) -> tuple[list[str], bool]:
        try:
            return examine(self.directory, directory)
        except OthersError as error:
            message = f"KOCHI_ROOT {self.directory} cannot be used: {error.message}, "
            message += "whose jobs would run as you"
            wanted = "a directory that only you, and on its way only root, may write to"
            raise KochiError(message, error.hint or self._advice(wanted)) from error

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """An OSError at a path here or above becomes a KochiError: where it is said, what to do."""
        try:
            yield
        except OSError as error:
            if (explained := self._explained(error)) is None:
                raise
            raise explained from error

    def _explained(self, error: OSError) -> KochiError | None:
        if not isinstance(error.filename, str):
            return None
        path, own = Path(error.filename), self.directory
        if not path.is_relative_to(own) and not own.is_relative_to(path):
            return None
        message = f"KOCHI_ROOT {own} cannot be used: {path}: {error.strerror}"
        if error.errno in NO_ROOM:
            return KochiError(message, "Make room there, and type the same again.")
        return KochiError(message, self._advice(_FOR_ALL_NODES))

    def unseen(self, node: str, why: str) -> KochiError:
        """To be raised where another node has something else, or nothing, at this path. `why`: by
        what that is known."""
        message = f"KOCHI_ROOT {self.directory} cannot be used: {node} does not see it: {why}"
        return KochiError(message, self._advice(_FOR_ALL_NODES))

    def _advice(self, wanted: str) -> str:
        if self.said_at not in (None, _ROOT_VARIABLE):
            return f"Change {self.said_at} to {wanted}."
        whose = "It is the default" if self.said_at is None else f"It is that of {self.said_at}"
        return f"{whose}. Type, with {wanted}: export KOCHI_ROOT=DIRECTORY"

    def machine(self, name: str) -> MachinePaths:
        return MachinePaths(name, self.directory / "machines" / _name("machine", name))

    def project(self, repository: Path) -> ProjectPaths:
        real = repository.resolve()
        digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:10]
        readable = "".join(c if is_name("x" + c) else "_" for c in real.name)[:64]
        return ProjectPaths(self.directory / "projects" / f"{readable or 'root'}-{digest}")

    def projects(self) -> list[ProjectPaths]:
        """Those that keep something here, by the name of their directory."""
        found = (self.directory / "projects").glob("*")
        return [ProjectPaths(path) for path in sorted(found) if path.is_dir()]

    @property
    def configuration(self) -> Path:
        """The user's machines for all projects; outside of any repository, their kochi.yaml."""
        return self.directory / "conf.yaml"

    def has_configuration(self) -> bool:
        """Whether there is one. Raises KochiError when somebody else could have written it: it has
        scripts that are executed."""
        if not self.configuration.is_file():
            return False
        self.secure(self.directory)
        return True
