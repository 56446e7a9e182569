"""The recipes a job uses as they were installed: from manifests, dependencies first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically

MANIFEST_VERSION = 1


@dataclass(frozen=True)
class Install:
    """One recipe in the prefix it was installed to.

    `digest` names what determined it; `source` is where its code came from: {} or
    {"git", "commit"} or {"mirror", "tree", "base"}. Nothing here depends on when it was installed,
    so that installing the same again makes nothing stale.
    """

    dependency: str
    recipe: str
    digest: str
    prefix: str
    source: Mapping[str, str]
    activate_script: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """What a dependant was built against."""
        return self.digest, self.activate_script


def merge(sets: Iterable[Sequence[Install]]) -> tuple[Install, ...]:
    """Put several install sets together, dependencies first, each dependency once.

    Raises PhaseError when two of them hold different installations of one dependency.
    """
    merged: dict[str, Install] = {}
    for installs in sets:
        for install in installs:
            other = merged.setdefault(install.dependency, install)
            if other != install:
                raise PhaseError(
                    f"two installations of {install.dependency} in one job: "
                    f"{other.recipe} in {other.prefix} and {install.recipe} in {install.prefix}",
                    "Run snakemake again: what was built on the older one is stale now.",
                )
    return tuple(merged.values())


def write_manifest(path: Path, machine: str, installs: Sequence[Install]) -> None:
    """Write an install set as `{"version", "machine", "installs": [...]}`, the last one being the
    recipe itself, the others what it depends on."""
    data = {
        "version": MANIFEST_VERSION,
        "machine": machine,
        "installs": [asdict(install) for install in installs],
    }
    make_directory(path.parent)
    write_atomically(path, to_json(data))


def read_manifest(path: Path) -> tuple[Install, ...]:
    """Read what `write_manifest` wrote. Raises DamagedFileError."""
    data = read_json(path, MANIFEST_VERSION)
    try:
        return tuple(_install(entry) for entry in data["installs"])
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{path}: not an install manifest ({error})") from error


def _install(entry: dict[str, Any]) -> Install:
    return Install(**entry)
