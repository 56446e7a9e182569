"""Private directories of phases, below KOCHI_ROOT: who uses them, and copies of the project there.

They are deleted afterwards, whatever happens.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.files import (
    copy_small_tree,
    list_names,
    make_directory,
    random_word,
    read_json,
    remove_tree,
)
from snakemake_kochi.paths import SUBMODULES
from snakemake_kochi.phases.products import Build
from snakemake_kochi.processes import ProcessIdentity, is_over, node_words

# The process that made it, a random number, and the builds that it uses.
_NAME = re.compile(
    r"(?P<host>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-(?P<namespace>[0-9a-f]+)"
    r"-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}(?P<builds>(?:\.[^.]+)*)"
)


class CopyError(PhaseError):
    """A tree could not be copied: the disk is full, or it was deleted just now."""


@contextmanager
def scratch_directory(workspaces: Path, uses: Sequence[Build] = ()) -> Iterator[Path]:
    """A new empty directory for the calling process, in a directory that is made if necessary.

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
    words = (*node_words(), str(own.pid), str(own.start), random_word())
    name = ".".join(["-".join(words), *(build.digest for build in uses)])
    directory = make_directory(parent / name)
    try:
        yield directory
    finally:
        remove_tree(directory)


def builds_in_use(workspaces: Path) -> set[str]:
    """The digests of the builds that living processes use, and of what `prepare` scripts have made
    for them. Raises OSError if they are not known now."""
    entries = filter(None, map(_NAME.fullmatch, list_names(workspaces)))
    living = (entry for entry in entries if not is_forsaken(entry[0]))
    return {digest for entry in living for digest in entry["builds"].split(".") if digest}


def host_of_scratch(entry: str) -> str | None:
    """The host of the process to which a directory of that name belongs, as `host_key` has it."""
    found = _NAME.fullmatch(entry)
    return None if found is None else found["host"]


def is_forsaken(entry: str) -> bool:
    """Whether no process can be left to which a directory of that name belongs.

    False also where that cannot be known from here.
    """
    found = _NAME.fullmatch(entry)
    if found is None:
        return False
    process = ProcessIdentity(int(found["pid"]), int(found["start"]))
    return is_over(found.group("host", "boot", "namespace"), process)


def copy_tree(tree: Path, directory: Path) -> None:
    """Make a private copy of a directory. Raises CopyError."""
    if copy_small_tree(tree, directory):
        return
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
    _remove_repository(copy)
    if git_directory is None:
        return
    copy_tree(Path(git_directory), copy / ".git")
    for path, inner in _submodules(Path(git_directory), copy).items():
        if (copy / path).is_dir():
            give_repository(inner, copy / path)


def _remove_repository(copy: Path) -> None:
    own = copy / ".git"
    if not os.path.lexists(own):
        return  # as in most builds
    if own.is_symlink() or own.is_file():
        own.unlink()
        return
    for path in _submodules(own, copy):
        _remove_repository(copy / path)
    remove_tree(own)


def _submodules(repository: Path, copy: Path) -> dict[str, str]:
    """The kept `.git` of each submodule, by its path, which is in the copy."""
    # A script may have done anything to its copy.
    with suppress(FileNotFoundError, NotADirectoryError, DamagedFileError):
        top, found = copy.resolve(), read_json(repository / SUBMODULES)
        return {path: o for path, o in found.items() if (copy / path).resolve().is_relative_to(top)}
    return {}
