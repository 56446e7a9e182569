"""The paths of a project: its snapshots, installations, builds and results."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.paths.machine import MachinePaths
from snakemake_kochi.paths.names import name_of

# In a `.git` that is kept for copies: where those of its submodules are.
SUBMODULES = "kochi-submodules.json"


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
        return MachinePaths(
            name, self.directory.parent.parent / "machines" / name_of("machine", name)
        )

    @property
    def store(self) -> Path:
        return self.directory / "store.git"

    def freeze(self, digest: str) -> Path:
        return self.directory / "freezes" / f"{name_of('freeze', digest)}.json"

    @staticmethod
    def batch_freeze(freeze: Path, digest: str) -> Path:
        """What one batch needs of a freeze, by the place of that."""
        return freeze.with_suffix("") / f"{name_of('batch freeze', digest)}.json"

    def repository(self, digest: str) -> Path:
        """The `.git` that copies of a snapshot get a copy of."""
        return self.directory / "repositories" / name_of("repository", digest)

    def freezes(self) -> list[Path]:
        return sorted((self.directory / "freezes").glob("*.json"))

    def recipe(self, machine: str, dependency: str, recipe: str) -> Path:
        return (
            self.directory
            / "installs"
            / name_of("machine", machine)
            / name_of("dependency", dependency)
            / name_of("recipe", recipe)
        )

    def install(self, machine: str, dependency: str, recipe: str, digest: str) -> InstallPaths:
        return InstallPaths(self.recipe(machine, dependency, recipe) / name_of("install", digest))

    def current_install(self, machine: str, dependency: str, recipe: str) -> Path:
        """A symbolic link to the installation in use, switched by one rename."""
        return self.recipe(machine, dependency, recipe) / "current"

    def newest_install_log(self, machine: str, dependency: str, recipe: str) -> Path | None:
        """The log of the installation that was tried last, whether it worked or not."""
        logs = self.recipe(machine, dependency, recipe).glob("*/log")
        return max(logs, key=lambda log: log.stat().st_mtime_ns, default=None)

    def build(self, machine: str, digest: str) -> BuildPaths:
        return BuildPaths(
            self.directory / "builds" / name_of("machine", machine) / name_of("build", digest)
        )

    def journal(self, machine: str) -> Path:
        return self.directory / "artifacts" / name_of("machine", machine) / "journal"

    def damaged_results(self, machine: str) -> Path:
        """Journal entries that cannot be committed, kept for a person to look at."""
        return self.directory / "artifacts" / name_of("machine", machine) / "damaged"

    def late_results(self, machine: str) -> Path:
        """Journal entries of attempts that were given up; a later one has made them again."""
        return self.directory / "artifacts" / name_of("machine", machine) / "late"

    def agreement(self, machine: str) -> Path:
        """Up to which commit the branch of results is known to have all of them."""
        return self.directory / "artifacts" / name_of("machine", machine) / "agreed.json"

    def disagreement(self, machine: str) -> Path:
        """Empty; says that the branch of results may lack some."""
        return self.directory / "artifacts" / name_of("machine", machine) / "disagreed"

    def discarded(self, machine: str) -> Path:
        """Which results in working directories are not to be committed again."""
        return self.directory / "artifacts" / name_of("machine", machine) / "discarded.json"

    def replaced(self, machine: str) -> Path:
        """Which newer results were replaced, until somebody is told, a file for each commit."""
        return self.directory / "artifacts" / name_of("machine", machine) / "replaced"

    def working_directory(self, machine: str, directory: Path) -> Path:
        """Says that Snakemake was run in a directory, which has results."""
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        return self.working_directories(machine) / f"{digest}.json"

    def working_directories(self, machine: str) -> Path:
        return self.directory / "artifacts" / name_of("machine", machine) / "directories"

    def committed(self, machine: str) -> Path:
        """Empty; its modification time is that of the newest commit of results."""
        return self.directory / "artifacts" / name_of("machine", machine) / "committed"

    def workspaces(self, machine: str) -> Path:
        return self.directory / "workspaces" / name_of("machine", machine)


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
