"""The name under which a machine's results are published: the name of their branch and directory.

Everyone's own computer is the machine `local`. To keep the results of colleagues apart, those of
`local` are published under the names of user and host ("ada-laptop"), and those of any other
machine under its own name. A name is fixed once something was published:
.git/kochi/published/<machine>   one line, the name
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import (
    answered,
    is_name,
    list_names,
    write_atomically,
    write_exclusively,
)
from snakemake_kochi.git import run_git

MERGED = "kochi_artifacts"
LOCAL = "local"
_LONGEST = 60


def branch_called(name: str) -> str:
    """The branch of the results that are published under a name.

    Raises KochiError if git forbids the name.
    """
    if ".." in name or name.endswith((".", ".lock")) or not is_name(name) or "@{" in name:
        raise KochiError(
            f"{name!r} cannot be used: it becomes part of the name of a git branch",
            "Choose letters, digits and ._- , no two dots in a row, no dot or '.lock' at the end.",
        )
    return f"{MERGED}_{name}"


def published_name(repository: Path, machine: str) -> str:
    """The noted name, else the default name. Raises GitError."""
    return _name_of(_notes(_own_directory(repository)), machine, names_of(repository))


def fix_name(own_directory: Path, machine: str, names: Collection[str]) -> str:
    """As `published_name`, and note the name: the host may have another name tomorrow.

    `own_directory` is the repository's own, `names` the result of `names_of`. If several hosts note
    a name, the first name counts.
    """
    notes = _notes(own_directory)
    name = _name_of(notes, machine, names)
    if _noted(notes / machine) != name:
        with suppress(OSError):  # a colleague's repository: the name is computed each time
            if not _note_first(notes / machine, name):
                # A client of NFS may have reported an existing file as missing.
                if noted := _noted(notes / machine):
                    return noted
                _note(notes / machine, name)  # its content is not a name
    return name


def fix_published_name(repository: Path, machine: str) -> str:
    """As `fix_name`. Call it where a run begins: its jobs may run on hosts with other names.

    Raises GitError.
    """
    return fix_name(_own_directory(repository), machine, names_of(repository))


def choose_name(repository: Path, machine: str, name: str) -> None:
    """Publish a machine's results under a name from now on.

    Raises KochiError for an invalid name, for a name of another machine, and if results under the
    previous name are not merged yet.
    """
    branch_called(name)
    notes = _notes(_own_directory(repository))
    for other in list_names(notes):
        if other != machine and _noted(notes / other) == name:
            raise KochiError(f"the results of machine {other} are published as '{name}' already")
    previous = _name_of(notes, machine, names_of(repository))
    if previous != name and _has_unmerged(repository, previous):
        raise KochiError(
            f"branch {branch_called(previous)} has results that are not in {MERGED} yet",
            "Type: kochi artifact sync",
        )
    _note(notes / machine, name)


def default_name(person: str, host: str) -> str:
    """A name such as "ada-laptop", from those of user and computer."""
    words = [re.sub(r"[^a-z0-9_]+", "-", word.lower()).strip("-") for word in (person, host)]
    return "-".join(word for word in words if word)[:_LONGEST].strip("-") or LOCAL


def names_of(repository: Path) -> list[str]:
    """All names under which branches of this repository publish something."""
    prefix = f"refs/heads/{MERGED}_"
    listed = run_git(repository, "for-each-ref", "--format=%(refname)", f"{prefix}*")
    return [ref.removeprefix(prefix) for ref in listed.decode().splitlines()]


def names_elsewhere(repository: Path) -> list[str]:
    """The names under which remote-tracking branches publish something."""
    refs = f"refs/remotes/*/{MERGED}_*"
    listed = run_git(repository, "for-each-ref", "--format=%(refname)", refs)
    return [ref.partition(f"/{MERGED}_")[2] for ref in listed.decode().splitlines()]


def refs_elsewhere(repository: Path, name: str) -> Iterator[tuple[str, str]]:
    """The remote-tracking branches of a name, as (ref, commit).

    The newest is first; of two with the same age, the one of `origin`.
    """
    listed = run_git(
        repository,
        *("for-each-ref", "--sort=-committerdate"),
        "--format=%(refname) %(objectname) %(committerdate:unix)",
        f"refs/remotes/*/{name}",
    )
    rows = [tuple(line.split(" ")) for line in listed.decode().splitlines()]
    ordered = sorted(rows, key=lambda row: (-int(row[2]), row[0] != f"refs/remotes/origin/{name}"))
    yield from ((ref, commit) for ref, commit, _ in ordered)


def _own_directory(repository: Path) -> Path:
    words = ("rev-parse", "--path-format=absolute", "--git-common-dir")
    return Path(os.fsdecode(run_git(repository, *words).removesuffix(b"\n")))


def _notes(own_directory: Path) -> Path:
    return own_directory / "kochi" / "published"


def _name_of(notes: Path, machine: str, names: Collection[str]) -> str:
    if noted := _noted(notes / machine):
        return noted
    # Kochi, and earlier releases, published under this name.
    if machine != LOCAL or LOCAL in names:
        return machine
    try:
        person = getpass.getuser()
    except (KeyError, OSError):
        person = ""
    return default_name(person, socket.gethostname().partition(".")[0])


def _noted(file: Path) -> str:
    try:
        name = answered(file.read_text).strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
    return name if is_name(name) else ""


def _note_first(file: Path, name: str) -> bool:
    """Note a name; False if a note exists already."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return write_exclusively(file, f"{name}\n".encode())


def _note(file: Path, name: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, f"{name}\n".encode())


def _has_unmerged(repository: Path, name: str) -> bool:
    if name not in names_of(repository):
        return False
    merged = run_git(repository, "for-each-ref", f"refs/heads/{MERGED}").strip()
    but = (f"^refs/heads/{MERGED}",) if merged else ()
    words = ("rev-list", "--max-count=1", f"refs/heads/{branch_called(name)}", *but)
    return bool(run_git(repository, *words))
