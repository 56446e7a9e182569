"""The paths of a project: its snapshots, installations, builds and results."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.paths.machine import MachinePaths
from snakemake_kochi.paths.names import name_of

# The file in a `.git` kept for copies that names the kept `.git` directories of its submodules.
SUBMODULES = "kochi-submodules.json"


@dataclass(frozen=True)
class InstallPaths:
    """One installation of one recipe, which stays in its own prefix."""

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
    """One build: a source tree with the files that were built in it."""

    directory: Path

    @property
    def tree(self) -> Path:
        return self.directory / "tree"

    @property
    def log(self) -> Path:
        """The output of the build script."""
        return self.directory / "log"

    @property
    def manifest(self) -> Path:
        return self.directory / "manifest.json"


@dataclass(frozen=True)
class ProjectPaths:
    """The files of one project, named by the path of its repository.

    So two repositories with the same directory name share nothing.
    """

    directory: Path

    def machine(self, name: str) -> MachinePaths:
        """The paths of a machine of the same KOCHI_ROOT."""
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
        """The part of a freeze that one batch needs, in a directory beside the freeze."""
        return freeze.with_suffix("") / f"{name_of('batch freeze', digest)}.json"

    def repository(self, digest: str) -> Path:
        """The `.git` from which copies of a snapshot get their own."""
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
        """The log of the last installation that was tried, whether it worked or not."""
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
        """Journal entries of attempts that were given up; a later attempt has made them again."""
        return self.directory / "artifacts" / name_of("machine", machine) / "late"

    def agreement(self, machine: str) -> Path:
        """The commit up to which the branch of results is known to have all results."""
        return self.directory / "artifacts" / name_of("machine", machine) / "agreed.json"

    def disagreement(self, machine: str) -> Path:
        """Empty; says that the branch of results may lack some results."""
        return self.directory / "artifacts" / name_of("machine", machine) / "disagreed"

    def discarded(self, machine: str) -> Path:
        """The results in working directories that must not be committed again."""
        return self.directory / "artifacts" / name_of("machine", machine) / "discarded.json"

    def replaced(self, machine: str) -> Path:
        """The newer results that were replaced, one file per commit, until a person is told."""
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
    """The files of one machine's rules below the working directory of Snakemake."""

    directory: Path
    machine: str

    @property
    def results(self) -> Path:
        """Artifacts, tables and plots."""
        return self.directory / "results" / self.machine

    @property
    def state(self) -> Path:
        """Beside Snakemake's own state: which installation, build or run is current."""
        return self.directory / ".snakemake" / "kochi" / self.machine

    @staticmethod
    def remembered(file: Path) -> Path:
        """A copy of a file that represents an installation or a build, beside that file.

        The copy stays when the file is deleted, because Snakemake does not know it.
        """
        return file.with_name("known.json")

    @property
    def records(self) -> Path:
        """A directory for each run, with a file `record.json`."""
        return self.state / "records"
