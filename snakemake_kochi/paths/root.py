"""KOCHI_ROOT: its path, whether it can be used, and the paths of the projects in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import (
    NO_ROOM,
    expand_path,
    make_directory,
    name_of,
    safe_name,
)
from snakemake_kochi.ownership import OthersError, examine
from snakemake_kochi.paths.machine import MachinePaths
from snakemake_kochi.paths.project import ProjectPaths

_ROOT_VARIABLE = "$KOCHI_ROOT"
_FOR_ALL_NODES = "a directory that you may write to and that all nodes of a cluster see"


@dataclass(frozen=True)
class Root:
    """KOCHI_ROOT. `said_at` says to people where it is set; None for the default."""

    directory: Path
    said_at: str | None = field(default=_ROOT_VARIABLE, compare=False)

    @classmethod
    def find(
        cls,
        configured: str | None = None,
        environment: Mapping[str, str] = os.environ,
        where: str = "the machine's kochi_root",
    ) -> Root:
        """The machine's `kochi_root`, which is set at `where`, else $KOCHI_ROOT, else ~/.kochi.

        Raises KochiError for a relative path, and for a variable that is not set: each working
        directory would have a root of its own.
        """
        given = environment.get("KOCHI_ROOT")
        what = where if configured else "KOCHI_ROOT"
        chosen = expand_path(configured or given or "~/.kochi", what, environment)
        return cls(chosen, where if configured else _ROOT_VARIABLE if given else None)

    def secure(self, directory: Path) -> list[str]:
        """Make sure that this user wrote the content of a directory below KOCHI_ROOT.

        The directory is made if it is missing. Returns sentences about other users who could have
        written there (see `ownership.examine`). Raises KochiError.
        """
        with self.explaining():
            doubts, is_complete = self._examine(directory)
            if not is_complete:
                make_directory(directory)
                # Another process may have been faster.
                doubts, _ = self._examine(directory)
        return doubts

    def _examine(self, directory: Path) -> tuple[list[str], bool]:
        try:
            return examine(self.directory, directory)
        except OthersError as error:
            message = f"KOCHI_ROOT {self.directory} cannot be used: {error.message}, "
            message += "whose jobs would run as you"
            wanted = "a directory that only you may write to, below directories of only you or root"
            raise KochiError(message, error.hint or self._advice(wanted)) from error

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn an OSError at a path here or above into a KochiError.

        The error says where KOCHI_ROOT is set, and what to do.
        """
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
            return KochiError(message, "Free some space there and try again.")
        return KochiError(message, self._advice(_FOR_ALL_NODES))

    def unseen(self, node: str, why: str) -> KochiError:
        """The error when another node has other content, or none, at this path.

        `why` says how that is known.
        """
        said = f"{node} does not see it, or cannot write there: {why}"
        message = f"KOCHI_ROOT {self.directory} cannot be used: {said}"
        return KochiError(message, self._advice(_FOR_ALL_NODES))

    def _advice(self, wanted: str) -> str:
        if self.said_at not in (None, _ROOT_VARIABLE):
            return f"Change {self.said_at} to {wanted}."
        whose = "This is the default" if self.said_at is None else f"It is set by {self.said_at}"
        return f"{whose}. Choose {wanted}, and type: export KOCHI_ROOT=DIRECTORY"

    def machine(self, name: str) -> MachinePaths:
        return MachinePaths(name, self.directory / "machines" / name_of("machine", name))

    def machine_of_host(self, host: str) -> Path:
        """The file with the name of the machine to which the scheduler of a host belongs."""
        return self.directory / "hosts" / (safe_name(host) or "host") / "machine"

    def told_on_host(self, host: str) -> Path:
        """Exists when a person was told that jobs run on a host by default."""
        return self.machine_of_host(host).with_name("told")

    def project(self, repository: Path) -> ProjectPaths:
        real = repository.resolve()
        digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:10]
        readable = safe_name(real.name) or "root"
        return ProjectPaths(self.directory / "projects" / f"{readable}-{digest}")

    def projects(self) -> list[ProjectPaths]:
        """The projects with files in KOCHI_ROOT, by the name of their directory."""
        found = (self.directory / "projects").glob("*")
        return [ProjectPaths(path) for path in sorted(found) if path.is_dir()]

    def machines(self) -> list[MachinePaths]:
        """The machines with files in KOCHI_ROOT, by name."""
        found = (self.directory / "machines").glob("*")
        return [MachinePaths(path.name, path) for path in sorted(found) if path.is_dir()]

    @property
    def configuration(self) -> Path:
        """The user's machines for all projects.

        Outside of any repository, this is their kochi.yaml.
        """
        return self.directory / "conf.yaml"

    def has_configuration(self) -> bool:
        """Whether the configuration exists.

        Raises KochiError when another user could have written it, because its scripts are executed.
        """
        if not self.configuration.is_file():
            return False
        self.secure(self.directory)
        return True


_ASIDE = ".aside-"
_REMOVED = ".removed-"


def aside_path(path: Path, nonce: str) -> Path:
    """The path to which something moves until it is certain that it is deleted."""
    return path.with_name(f"{_ASIDE}{nonce}-{path.name}")


def original_path(path: Path) -> Path | None:
    """The path from which something moved aside; None for any other path."""
    name = path.name.removeprefix(_ASIDE).partition("-")[2]
    return path.with_name(name) if path.name.startswith(_ASIDE) and name else None


def removed_path(path: Path, nonce: str) -> Path:
    """The path under which something is deleted."""
    return path.with_name(f"{_REMOVED}{nonce}-{path.name}")


def is_being_removed(path: Path) -> bool:
    return path.name.startswith(_REMOVED)
