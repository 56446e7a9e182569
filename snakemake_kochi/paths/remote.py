"""The paths on a machine behind a login host: this package, and projects that were sent there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import ClassVar

from snakemake_kochi.files import name_of, safe_name
from snakemake_kochi.paths.machine import Below

_STATE, _SOURCES = "sent", "sources"
# Names the directory of a project that another computer sent.
SENT_VARIABLE = "KOCHI_SENT"
# Names the file that says that this command is about to read its files.
USE_VARIABLE = "KOCHI_SENT_USE"


@dataclass(frozen=True)
class InstalledPaths:
    """remote/ below a KOCHI_ROOT: the environments of this package, and what they are made of.

    KOCHI_ROOT there is often known to a shell there only. Then `root` is empty, and the paths are
    relative to it.
    """

    LINKS: ClassVar[str] = "python-*"  # the pattern of `current`

    root: PurePosixPath = field(default_factory=PurePosixPath)
    environments = Below("pythons")  # each stays at its path as long as it exists
    wheels = Below("wheels")
    interpreters = Below("interpreters")  # Pythons that came from elsewhere, for environments

    @property
    def directory(self) -> PurePosixPath:
        return self.root / "remote"

    def current(self, identity: str) -> PurePosixPath:
        """A symbolic link to the environment of one version of this package."""
        return self.directory / f"python-{identity}"


@dataclass(frozen=True)
class EnvironmentPaths:
    """One of these environments, or of the interpreters."""

    directory: Path
    used = Below("used")  # its time says when it was last used


@dataclass(frozen=True)
class SentPaths:
    """remote/projects/NAME-ID/ below a KOCHI_ROOT; `directory` may be relative to that.

    NAME: the name of the project's directory; ID: a digest of where that directory is.
    """

    directory: Path
    state = Below(_STATE)  # what is known about the files that were sent

    @classmethod
    def of(cls, root: Path, project: Path, owner: str) -> SentPaths:
        """The place of a project in a KOCHI_ROOT; `owner` says on which computer the project is."""
        digest = hashlib.sha256(os.fsencode(f"{owner}\0{project.resolve()}")).hexdigest()[:10]
        readable = safe_name(project.resolve().name) or "root"
        # The other directories beside the project.
        if readable in (_STATE, _SOURCES):
            readable += "_"
        return cls(root / "remote" / "projects" / f"{readable}-{digest}")

    @classmethod
    def without_project(cls, root: Path, owner: str) -> SentPaths:
        """The place of commands that come from a computer, and from no project there."""
        digest = hashlib.sha256(os.fsencode(owner)).hexdigest()[:10]
        return cls(root / "remote" / "projects" / f"none-{digest}")

    @classmethod
    def all_below(cls, root: Path) -> Iterator[SentPaths]:
        """All projects that were sent to a KOCHI_ROOT."""
        found = (root / "remote" / "projects").glob("*")
        yield from (cls(path) for path in sorted(found) if path.is_dir())

    @property
    def root(self) -> Path:
        """The KOCHI_ROOT."""
        return self.directory.parents[2]

    @property
    def project(self) -> Path:
        """The project itself, a git repository."""
        return self.directory / self.directory.name.rpartition("-")[0]

    @staticmethod
    def name_of_source(text: str) -> str:
        """Where, in this directory, a local source of a recipe is; `text`: as in kochi.yaml."""
        digest = hashlib.sha256(os.fsencode(text)).hexdigest()[:10]
        readable = safe_name(os.path.basename(os.path.normpath(text))) or "source"
        return f"{_SOURCES}/{digest}/{readable}"

    @property
    def uses(self) -> Path:
        """The commands that are about to read the files."""
        return self.state / "uses"

    def use(self, token: str) -> Path:
        return self.uses / f"{name_of('use', token)}.json"

    @classmethod
    def own_use(cls) -> Path | None:
        """The file that says that this command is about to read the files of a project, if any."""
        place, token = os.environ.get(SENT_VARIABLE), os.environ.get(USE_VARIABLE)
        return cls(Path(place)).use(token) if place and token else None

    def index(self, place: str) -> Path:
        """Which files were written to a place in this directory, for git."""
        return self.state / f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:10]}.index"

    @property
    def machines(self) -> list[Path]:
        """Machines for all projects, of the computer from which the project comes."""
        return sorted(self.state.glob("machines-*.yaml"))

    def machine_file(self, number: int) -> Path:
        return self.state / f"machines-{number}.yaml"

    def arriving(self, token: str) -> Path:
        """Texts of files with machines, on their way to one command without a project."""
        return self.state / f"{name_of('arriving', token)}.arriving"

    @property
    def configuration(self) -> Path:
        """The kochi.yaml, if it is not a file of the project."""
        return self.state / "kochi.yaml"

    @staticmethod
    def note(project: Path) -> Path:
        """What was sent, in the repository of a project that was sent."""
        return project / ".git" / "kochi" / "sent.json"
