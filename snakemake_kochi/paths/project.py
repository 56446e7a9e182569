"""The files of a project: below KOCHI_ROOT, and in the directory in which its runs work."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.files import list_names, name_of
from snakemake_kochi.paths.machine import Below, MachinePaths

# The file in a `.git` kept for copies that names the kept `.git` directories of its submodules.
SUBMODULES = "kochi-submodules.json"


@dataclass(frozen=True)
class InstallPaths:
    """One installation of one recipe, which stays in its own prefix."""

    directory: Path
    prefix = Below("prefix")
    source = Below("source")
    manifest = Below("manifest.json")
    log = Below("log")


@dataclass(frozen=True)
class BuildPaths:
    """One build: a source tree with the files that were built in it, and the script's output."""

    directory: Path
    tree = Below("tree")
    log = Below("log")
    manifest = Below("manifest.json")


@dataclass(frozen=True)
class ProjectPaths:
    """The files of one project, named by the path of its repository.

    So two repositories with the same directory name share nothing.
    """

    directory: Path
    store = Below("store.git")
    freeze_directory = Below("freezes")
    reruns = Below("reruns")  # those whose process has not ended yet, or was killed
    repositories = Below("repositories")

    def machine(self, name: str) -> MachinePaths:
        """The paths of a machine of the same KOCHI_ROOT."""
        machines = self.directory.parent.parent / "machines"
        return MachinePaths(name, machines / name_of("machine", name))

    def freeze(self, digest: str) -> Path:
        return self.freeze_directory / f"{name_of('freeze', digest)}.json"

    @staticmethod
    def parts_of_freeze(freeze: Path) -> Path:
        """The directory with the parts of a freeze that batches need."""
        return freeze.with_suffix("")

    @staticmethod
    def batch_freeze(freeze: Path, digest: str) -> Path:
        """The part of a freeze that one batch needs, in a directory beside the freeze."""
        return ProjectPaths.parts_of_freeze(freeze) / f"{name_of('batch freeze', digest)}.json"

    def rerun(self, digest: str) -> Path:
        return self.reruns / f"{name_of('rerun', digest)}.json"

    def repository(self, digest: str) -> Path:
        """The `.git` from which copies of a snapshot get their own."""
        return self.repositories / name_of("repository", digest)

    def _of_machine(self, part: str, machine: str) -> Path:
        return self.directory / part / name_of("machine", machine)

    def builds(self, machine: str) -> Path:
        return self._of_machine("builds", machine)

    def recipes(self, machine: str) -> list[Path]:
        """The directories of the recipes that were installed, each with its installations."""
        found = self._of_machine("installs", machine).glob("*/*")
        return sorted(path for path in found if path.is_dir())

    def machines_of_root(self) -> list[str]:
        """All machines of the KOCHI_ROOT, whose jobs may read freezes of the project."""
        found = (self.directory.parent.parent / "machines").glob("*")
        return sorted(each.name for each in found if each.is_dir())

    def machines(self) -> list[str]:
        """The machines on which the project has files."""
        parts = ("installs", "builds", "prepared", "artifacts", "workspaces")
        return sorted({each.name for part in parts for each in (self.directory / part).glob("*")})

    def freezes(self) -> list[Path]:
        return sorted(self.freeze_directory.glob("*.json"))

    def recipe(self, machine: str, dependency: str, recipe: str) -> Path:
        names = name_of("dependency", dependency), name_of("recipe", recipe)
        return self._of_machine("installs", machine).joinpath(*names)

    def install(self, machine: str, dependency: str, recipe: str, digest: str) -> InstallPaths:
        return InstallPaths(self.recipe(machine, dependency, recipe) / name_of("install", digest))

    def current_install(self, machine: str, dependency: str, recipe: str) -> Path:
        """A file with the name of the installation in use, replaced by one rename."""
        return self.recipe(machine, dependency, recipe) / "current"

    def newest_install_log(self, machine: str, dependency: str, recipe: str) -> Path | None:
        """The log of the last installation that was tried, whether it worked or not."""
        logs = self.recipe(machine, dependency, recipe).glob("*/log")
        return max(logs, key=lambda log: log.stat().st_mtime_ns, default=None)

    def build(self, machine: str, digest: str) -> BuildPaths:
        return BuildPaths(self.builds(machine) / name_of("build", digest))

    def all_prepared(self, machine: str) -> Path:
        return self._of_machine("prepared", machine)

    def prepared(self, machine: str, digest: str) -> BuildPaths:
        """What a `prepare` script has made; its `tree` is $KOCHI_PREPARED."""
        return BuildPaths(self.all_prepared(machine) / name_of("preparation", digest))

    def workspaces(self, machine: str) -> Path:
        return self._of_machine("workspaces", machine)

    def _artifacts(self, machine: str) -> Path:
        return self._of_machine("artifacts", machine)

    def journal(self, machine: str) -> Path:
        return self._artifacts(machine) / "journal"

    def damaged_results(self, machine: str) -> Path:
        """Journal entries that cannot be committed, kept for a person to look at."""
        return self._artifacts(machine) / "damaged"

    def begun(self, machine: str) -> Path:
        """The records of attempts that have begun, each until it is journaled."""
        return self._artifacts(machine) / "begun"

    def late_results(self, machine: str) -> Path:
        """Journal entries of attempts that were given up; a later attempt has made them again."""
        return self._artifacts(machine) / "late"

    def agreement(self, machine: str) -> Path:
        """The commit up to which the branch of results is known to have all results."""
        return self._artifacts(machine) / "agreed.json"

    def disagreement(self, machine: str) -> Path:
        """Empty; says that the branch of results may lack some results."""
        return self._artifacts(machine) / "disagreed"

    def discarded(self, machine: str) -> Path:
        """The results in working directories that must not be committed again."""
        return self._artifacts(machine) / "discarded.json"

    def replaced(self, machine: str) -> Path:
        """The newer results that were replaced, one file per commit, until a person is told."""
        return self._artifacts(machine) / "replaced"

    def working_directory(self, machine: str, directory: Path) -> Path:
        """Says that Snakemake was run in a directory, which has results."""
        digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
        return self.working_directories(machine) / f"{digest}.json"

    def working_directories(self, machine: str) -> Path:
        return self._artifacts(machine) / "directories"

    def committed(self, machine: str) -> Path:
        """Empty; its modification time is that of the newest commit of results."""
        return self._artifacts(machine) / "committed"


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
        """A copy of a file that represents an installation, beside that file.

        The copy stays when the file is deleted, because Snakemake does not know it.
        """
        return file.with_name("known.json")

    @property
    def records(self) -> Path:
        """A directory for each run, with a file `record.json`."""
        return self.state / "records"

    @staticmethod
    def record_aside(record: Path) -> Path:
        """A record that is restored, until Snakemake knows that its result is finished."""
        return record.with_name("restored.json")

    @property
    def restored(self) -> Path:
        """Which of the results were restored from a branch, a file for each time."""
        return self.state / "restored"

    @property
    def restored_sources(self) -> Path:
        """The sources of recipes that restored results used."""
        return self.state / "sources.json"

    @property
    def own_records(self) -> Path:
        """The part of `records` for jobs of users' own rules."""
        return self.records / ".rules"

    def own_record(self, digest: str) -> Path:
        return self.own_records / name_of("record", digest) / "record.json"

    @staticmethod
    def machines_in(directory: Path) -> list[str]:
        """The machines with records of jobs of users' own rules in a working directory."""
        found = (directory / ".snakemake" / "kochi").glob("*/records/.rules")
        return sorted(path.parent.parent.name for path in found)

    @property
    def own_jobs(self) -> Path:
        """Notes of runs about the jobs of users' own rules, until their artifacts are kept."""
        return self.state / "own-jobs"

    @staticmethod
    def all_own_jobs(directory: Path) -> Iterator[Path]:
        """The notes in a working directory, of all machines. Raises OSError."""
        # With a glob, a directory that cannot be read now would seem to have none.
        for machine in list_names(directory / ".snakemake" / "kochi"):
            place = WorkingPaths(directory, machine).own_jobs
            yield from (place / name for name in list_names(place) if name.endswith(".jsonl"))

    def artifact(self, record: Mapping[str, Any], dest: str) -> Path:
        """Where the file is that a record calls `dest`: below `results`, or, of a user's own rule,
        below the working directory."""
        return (self.directory if record.get("rule") else self.results) / dest
