"""The paths of this package on a machine behind a login host, where `kochi machine setup` puts it.

KOCHI_ROOT there is often known to a shell there only. Then `root` is empty, and the paths are
relative to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import ClassVar


@dataclass(frozen=True)
class InstalledPaths:
    """remote/ below a KOCHI_ROOT: the environments of this package, and what they are made of."""

    LINKS: ClassVar[str] = "python-*"  # the pattern of `current`

    root: PurePosixPath = field(default_factory=PurePosixPath)

    @property
    def directory(self) -> PurePosixPath:
        return self.root / "remote"

    def current(self, identity: str) -> PurePosixPath:
        """A symbolic link to the environment of one version of this package."""
        return self.directory / f"python-{identity}"

    @property
    def environments(self) -> PurePosixPath:
        """The environments; each stays at its path as long as it exists."""
        return self.directory / "pythons"

    @property
    def wheels(self) -> PurePosixPath:
        return self.directory / "wheels"

    @property
    def interpreters(self) -> PurePosixPath:
        """The Pythons that came from elsewhere, for environments."""
        return self.directory / "interpreters"


@dataclass(frozen=True)
class EnvironmentPaths:
    """One of these environments, or of the interpreters."""

    directory: Path

    @property
    def used(self) -> Path:
        """A file whose time says when it was last used."""
        return self.directory / "used"
