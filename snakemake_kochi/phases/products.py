"""What phases leave for each other: installations, builds, reasons of failures; and the private
directories in which they work.

An install set lists the recipes that a job uses as they were installed, a build file says which
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
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import DamagedFileError, KochiError, PhaseError
from snakemake_kochi.files import (
    list_names,
    make_directory,
    random_word,
    read_json,
    remove_tree,
    to_json,
    write_atomically,
)
from snakemake_kochi.paths import SUBMODULES
from snakemake_kochi.processes import ProcessIdentity, is_over, node_words

VERSION = 1
LAST_LINES = 10
# Why a job fails that nothing needs but jobs which can never run: these have reasons of their own.
NEEDLESS = "not begun, because all that needs it fails"
_encode = json.JSONEncoder(sort_keys=True, ensure_ascii=True).encode
# The process that made it, a random number, and the builds that it uses.
_SCRATCH = re.compile(
    r"(?P<host>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-(?P<namespace>[0-9a-f]+)"
    r"-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}(?P<builds>(?:\.[^.]+)*)"
)


def digest_of(description: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a description's JSON, keys sorted."""
    return hashlib.sha256(_encode(description).encode("ascii")).hexdigest()[:16]


def _write(path: Path, data: Mapping[str, Any]) -> None:
    make_directory(path.parent)
    write_atomically(path, to_json({"version": VERSION, **data}))


# ---- installations and builds


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
    """Join install sets, dependencies first, each dependency once. Raises PhaseError if two of them
    contain different installations of one."""
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
    try:
        return tuple(map(Install.of, read_json(path, VERSION)["installs"]))
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{path}: not an install manifest ({error})") from error


@dataclass(frozen=True)
class Build:
    """A finished build: its digest, and the directory with sources and products."""

    digest: str
    tree: Path


def write_build(path: Path, build: Build) -> None:
    """Write `{"version", "digest", "tree"}`: the same bytes for the same build, so that finding it
    again makes no run stale."""
    _write(path, {"digest": build.digest, "tree": str(build.tree)})


def read_build(path: Path) -> Build:
    """Read what `write_build` wrote. Raises DamagedFileError."""
    data = read_json(path, VERSION)
    return Build(data["digest"], Path(data["tree"]))


# ---- failures


@dataclass(frozen=True)
class Failure:
    """Why a phase failed, and the last lines that it printed.

    `told`: its run has ended. `stopped`: its script ended as after a signal that a worker or a
    person sends, and the run has not called it a failure yet: it may have been interrupted itself.
    `job`: its job in a queue, as a person names it; None under another executor.
    """

    reason: str
    output: tuple[str, ...] = ()
    told: bool = False
    stopped: bool = False
    job: int | str | None = None


def is_of_our_rules(output: str) -> bool:
    """Whether an output of a job is one of those beside which failures are noted."""
    return "/.snakemake/kochi/" in f"/{output}"


def _failed(output: Path) -> Path:
    return output.with_name(f"{output.name}.failed")


def forget_failure(output: Path) -> None:
    """Call when the phase begins."""
    with suppress(OSError):
        _failed(output).unlink(missing_ok=True)


def note_failure(output: Path, error: KochiError) -> None:
    """The run has failed even if this cannot be written."""
    text = os.environ.get("KOCHI_JOB_ID", "0")
    job = text if "." in text else int(text) or None
    failure = Failure(error.message, job=job)
    if isinstance(error, PhaseError):
        failure = Failure(error.reason, error.output, stopped=error.was_stopped, job=job)
    write_failure(output, failure)


def write_failure(output: Path, failure: Failure) -> None:
    """As `note_failure`."""
    with suppress(OSError):
        _write(_failed(output), asdict(failure))


def read_failure(output: Path) -> Failure | None:
    """The noted failure, None if there is none."""
    try:
        data = read_json(_failed(output), VERSION)
        said = {field.name: data[field.name] for field in fields(Failure)}
        return Failure(**{**said, "output": tuple(map(str, data["output"]))})
    except (OSError, DamagedFileError, KeyError, TypeError):
        return None


# ---- private directories


class CopyError(PhaseError):
    """A tree could not be copied: the disk is full, or it was deleted just now."""


@contextmanager
def scratch_directory(workspaces: Path, uses: Sequence[Build] = ()) -> Iterator[Path]:
    """A new empty directory for the calling process, in a directory that is made if necessary. It
    is deleted afterwards.

    Its name identifies its process for good. So the next phase removes what a killed process left,
    where it can see that process, or after the next boot of that host. It also says which builds
    the process `uses`, and what `prepare` scripts have made: programs may load libraries from there
    as long as the directory exists.
    """
    parent = make_directory(workspaces)
    with suppress(OSError):  # the next phase handles what cannot be read or removed now
        for entry in list_names(parent):
            if is_forsaken(entry):
                remove_tree(parent / entry)
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    words = "-".join((*node_words(), str(own.pid), str(own.start), random_word()))
    directory = make_directory(parent / ".".join([words, *(build.digest for build in uses)]))
    try:
        yield directory
    finally:
        remove_tree(directory)


def builds_in_use(workspaces: Path) -> set[str]:
    """The digests of the builds that living processes use, and of what `prepare` scripts have made
    for them. Raises OSError if they are not known now."""
    entries = filter(None, map(_SCRATCH.fullmatch, list_names(workspaces)))
    living = (entry for entry in entries if not is_forsaken(entry[0]))
    return {digest for entry in living for digest in entry["builds"].split(".") if digest}


def host_of_scratch(entry: str) -> str | None:
    """The host of the process to which a directory of that name belongs, as `host_key` has it."""
    found = _SCRATCH.fullmatch(entry)
    return None if found is None else found["host"]


def is_forsaken(entry: str) -> bool:
    """Whether no process can be left to which a directory of that name belongs; False also where
    that cannot be known from here."""
    if (found := _SCRATCH.fullmatch(entry)) is None:
        return False
    process = ProcessIdentity(int(found["pid"]), int(found["start"]))
    return is_over(found.group("host", "boot", "namespace"), process)


def copy_tree(tree: Path, directory: Path) -> None:
    """Make a private copy of a directory. Raises CopyError."""
    # cp shares blocks where the filesystem can; with hard links, a run that edits a file in place
    # would change the build.
    command = ["cp", "-a", "--reflink=auto", "--", str(tree), str(directory)]
    copied = subprocess.run(command, capture_output=True, check=False)
    if copied.returncode != 0:
        # It has a line for each file; on a full disk they all say the same.
        said = copied.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise CopyError(f"could not copy {tree} to {directory}: {said}")


def give_repository(git_directory: str | None, copy: Path) -> None:
    """Give a copy of the project a `.git` of its own, in which git answers as in the working tree
    (see `snapshot.keep_repository`), and one to each submodule in it. None: no `.git` at all.

    Raises PhaseError if it cannot be copied, on a full disk for example."""
    own = copy / ".git"
    if own.is_symlink() or own.is_file():
        own.unlink()
    elif own.is_dir():
        for path in _submodules(own, copy):
            give_repository(None, copy / path)
        remove_tree(own)
    if git_directory is not None:
        copy_tree(Path(git_directory), own)
        for path, inner in _submodules(Path(git_directory), copy).items():
            if (copy / path).is_dir():
                give_repository(inner, copy / path)


def _submodules(repository: Path, copy: Path) -> dict[str, str]:
    """The kept `.git` of each submodule, by its path, which is in the copy."""
    # A script may have done anything to its copy.
    with suppress(FileNotFoundError, NotADirectoryError, DamagedFileError):
        top, found = copy.resolve(), read_json(repository / SUBMODULES)
        return {path: o for path, o in found.items() if (copy / path).resolve().is_relative_to(top)}
    return {}
