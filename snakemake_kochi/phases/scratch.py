"""Private directories of a phase, below KOCHI_ROOT and deleted afterwards, whatever happens."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import list_names, make_directory, read_json
from snakemake_kochi.paths import SUBMODULES
from snakemake_kochi.processes import ProcessIdentity, this_node

_NAME = re.compile(
    r"(?P<host>[0-9a-f]{8})-(?P<boot>[0-9a-f]{8})-(?P<namespace>[0-9a-f]+)"
    r"-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}"
)


@contextmanager
def scratch_directory(workspaces: Path) -> Iterator[Path]:
    """A new empty directory for the calling process, in a directory that is made if necessary.

    Its name identifies its process for good. So the next phase removes what a killed process left,
    where it can see that process, or after the next boot of that host.
    """
    parent = make_directory(workspaces)
    _sweep(parent)
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    words = (*_here(), str(own.pid), str(own.start), secrets.token_hex(4))
    directory = make_directory(parent / "-".join(words))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def give_repository(git_directory: str | None, copy: Path) -> None:
    """Give a copy of the project a `.git` of its own, in which git answers as in the working tree
    (see `snapshot.keep_repository`), and one to each submodule in it. None: no `.git` at all."""
    _remove_repository(copy)
    if git_directory is None:
        return
    shutil.copytree(git_directory, copy / ".git")
    for path, inner in _submodules(Path(git_directory)).items():
        if (copy / path).is_dir() and (copy / path).resolve().is_relative_to(copy.resolve()):
            give_repository(inner, copy / path)


def _remove_repository(copy: Path) -> None:
    own = copy / ".git"
    if own.is_symlink() or own.is_file():
        own.unlink()
        return
    for path in _submodules(own):
        if (copy / path).resolve().is_relative_to(copy.resolve()):
            _remove_repository(copy / path)
    shutil.rmtree(own, ignore_errors=True)


def _submodules(repository: Path) -> dict[str, str]:
    """The kept `.git` of each submodule, by its path."""
    # A script may have done anything to its copy.
    with suppress(FileNotFoundError, NotADirectoryError, DamagedFileError):
        return read_json(repository / SUBMODULES)
    return {}


def _here() -> tuple[str, str, str]:
    """This host, its boot and the pid namespace, each short: scripts create sockets in there, whose
    paths may have 107 characters."""
    node = this_node()
    host = hashlib.sha256(f"{node.host}\0{node.machine}".encode()).hexdigest()[:8]
    boot = node.boot.replace("-", "")[:8].ljust(8, "0")
    return host, boot, f"{int(re.sub(r'[^0-9]', '', node.namespace)):x}"


def _sweep(parent: Path) -> None:
    # The next phase handles what cannot be read or removed now.
    with suppress(OSError):
        for entry in list_names(parent):
            if _is_forsaken(entry):
                shutil.rmtree(parent / entry, ignore_errors=True)


def _is_forsaken(entry: str) -> bool:
    """Whether no process can be left to which a directory of that name belongs."""
    found = _NAME.fullmatch(entry)
    host, boot, namespace = _here()
    if found is None or found["host"] != host:
        return False
    if found["boot"] != boot:
        # As in Node.has_rebooted_since: only ids tell two hosts of one name apart.
        return this_node().machine != "" and "00000000" not in (found["boot"], boot)
    if found["namespace"] != namespace:
        # A container of this host: its process ids mean nothing here.
        return False
    return not ProcessIdentity(int(found["pid"]), int(found["start"])).is_alive()
