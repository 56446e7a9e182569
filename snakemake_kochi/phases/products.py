"""Files that a phase leaves for the phases after it, and for the end of the run.

An install set lists the recipes that a job uses as they were installed. A build file says which
build to use. Installations and builds are named by a digest of what determines them.

A failed phase leaves OUTPUT.failed beside the place of its output (JSON: "version" and the keys of
`Failure`), until the phase begins again. Snakemake does not pass on why a job failed, and under
some executors the output of a job is on the terminal only. For a job that fails before its phase
begins, the main process writes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import make_directory, read_json, to_json, write_atomically

VERSION = 1
MANIFEST_VERSION = BUILD_VERSION = 1
DIGEST_LENGTH = 16
LAST_LINES = 10
_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=True).encode


def digest_of(description: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a description's JSON, keys sorted."""
    text = _encode(description)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:DIGEST_LENGTH]


@dataclass(frozen=True)
class Install:
    """One recipe in the prefix of its installation.

    `digest` names what determined it; `source` is the origin of its code: {} or {"git", "commit"}
    or {"mirror", "tree", "base"}. Nothing here depends on the time of the installation, so that
    installing the same again makes nothing stale.
    """

    dependency: str
    recipe: str
    digest: str
    prefix: str
    source: Mapping[str, str]
    activate_script: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Install:
        """From a record that has these keys, and maybe others."""
        return cls(**{field.name: record[field.name] for field in fields(cls)})

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What dependants were built against: their variables have the names."""
        return self.dependency, self.recipe, self.digest, self.activate_script


def merge(sets: Iterable[Sequence[Install]]) -> tuple[Install, ...]:
    """Join several install sets, dependencies first, each dependency once.

    Raises PhaseError when two of them contain different installations of one dependency.
    """
    merged: dict[str, Install] = {}
    for install in (each for installs in sets for each in installs):
        other = merged.setdefault(install.dependency, install)
        if other != install:
            raise PhaseError(
                f"two installations of {install.dependency} in one job: "
                f"{other.recipe} in {other.prefix} and {install.recipe} in {install.prefix}",
                "Run snakemake again: what was built on the older one is stale now.",
            )
    return tuple(merged.values())


def write_manifest(path: Path, machine: str, installs: Sequence[Install]) -> None:
    """Write an install set as `{"version", "machine", "installs": [...]}`, with the recipe last,
    after its dependencies."""
    _write(path, {"machine": machine, "installs": [asdict(install) for install in installs]})


def read_manifest(path: Path) -> tuple[Install, ...]:
    """Read what `write_manifest` wrote. Raises DamagedFileError."""
    data = read_json(path, MANIFEST_VERSION)
    try:
        return tuple(map(Install.of, data["installs"]))
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{path}: not an install manifest ({error})") from error


@dataclass(frozen=True)
class Build:
    """A finished build: its digest, and the directory with sources and products."""

    digest: str
    tree: Path


def write_build(path: Path, build: Build) -> None:
    """Write which build to use as `{"version", "digest", "tree"}`.

    The same build gives the same bytes, so that finding it again makes no run stale.
    """
    _write(path, {"digest": build.digest, "tree": str(build.tree)})


def read_build(path: Path) -> Build:
    """Read what `write_build` wrote. Raises DamagedFileError."""
    data = read_json(path, BUILD_VERSION)
    return Build(data["digest"], Path(data["tree"]))


def _write(path: Path, data: Mapping[str, Any]) -> None:
    make_directory(path.parent)
    write_atomically(path, to_json({"version": VERSION, **data}))


# Why a job fails that nothing needs but jobs which can never run: these have reasons of their own.
NEEDLESS = "not begun, because all that needs it fails"


@dataclass(frozen=True)
class Failure:
    """Why a phase failed, and the last lines that it printed.

    `told`: its run has ended. `stopped`: its script ended as after a signal that a worker or a
    person sends, and the run has not called it a failure yet: it may have been interrupted itself.
    `job`: its job in a queue, None under another executor.
    """

    reason: str
    output: tuple[str, ...] = ()
    told: bool = False
    stopped: bool = False
    job: int | None = None


def is_of_our_rules(output: str) -> bool:
    """Whether an output of a job is one of those beside which failures are noted."""
    return "/.snakemake/kochi/" in f"/{output}"


def forget_failure(output: Path) -> None:
    """Call when the phase begins."""
    with suppress(OSError):
        _beside(output).unlink(missing_ok=True)


def note_failure(output: Path, error: KochiError) -> None:
    """The run has failed even if this cannot be written."""
    job = int(os.environ.get("KOCHI_JOB_ID", "0")) or None
    if isinstance(error, PhaseError):
        failure = Failure(error.reason, error.output, stopped=error.was_stopped, job=job)
    else:
        failure = Failure(error.message, job=job)
    write_failure(output, failure)


def write_failure(output: Path, failure: Failure) -> None:
    """As `note_failure`."""
    with suppress(OSError):
        _write(_beside(output), asdict(failure))


def read_failure(output: Path) -> Failure | None:
    """The noted failure, None if there is none."""
    try:
        data = read_json(_beside(output), VERSION)
        said = {field.name: data[field.name] for field in fields(Failure)}
        return Failure(**{**said, "output": tuple(map(str, data["output"]))})
    except (OSError, DamagedFileError, KeyError, TypeError):
        return None


def _beside(output: Path) -> Path:
    return output.with_name(f"{output.name}.failed")
