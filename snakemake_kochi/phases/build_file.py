"""The file that says which build to use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically

BUILD_VERSION = 1


@dataclass(frozen=True)
class Build:
    """A finished build: its digest, and the directory that holds sources and products."""

    digest: str
    tree: Path


def write_build(path: Path, build: Build) -> None:
    """Write which build to use as `{"version", "digest", "tree"}`: the same bytes for the same
    build, so that finding it again makes no run stale."""
    make_directory(path.parent)
    data = {"version": BUILD_VERSION, "digest": build.digest, "tree": str(build.tree)}
    write_atomically(path, to_json(data))


def read_build(path: Path) -> Build:
    """Read what `write_build` wrote. Raises DamagedFileError."""
    data = read_json(path, BUILD_VERSION)
    return Build(data["digest"], Path(data["tree"]))
