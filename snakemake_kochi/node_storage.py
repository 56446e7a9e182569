"""Directories on a node's own storage that jobs of one user share, until nothing holds them.

SCRATCH_DIR/kochi-<number of the user>/            mode 0700
  lock                                             held while holders come, and for removals
  <host>-<boot>-<namespace>-<allocation>-<digest>/
    lock                                           held while the directory is filled
    holders/<pid>-<start>                          processes while which it stays
    holders/worker                                 on another node than <host>: a worker that leads
                                                   jobs on several nodes, while which it stays
    data-<nonce>/                                  what jobs find
    manifest.json                                  says which data are complete

The locks are flocks: a node's own storage has them, and a killed process loses them. The storage
may be a directory in which everybody may write, such as /tmp.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import (
    is_there,
    list_names,
    make_directory,
    random_word,
    read_json,
    safe_name,
    to_json,
    write_atomically,
)
from snakemake_kochi.ownership import OthersError, examine
from snakemake_kochi.processes import ProcessIdentity, is_over, node_words

_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})-([0-9a-f]+)-.+")
_HOLDER = re.compile(r"(\d+)-(\d+)")
_REMOVED = ".removed-"
_WORKER = "worker"  # among the holders


class StorageError(KochiError):
    """A directory for scratch data cannot be used on this node."""


@dataclass(frozen=True)
class Place:
    """One directory with data, see the module."""

    directory: Path

    @property
    def manifest(self) -> Path:
        return self.directory / "manifest.json"

    @property
    def holders(self) -> Path:
        return self.directory / "holders"

    def data(self, name: str) -> Path:
        return self.directory / name

    def new_data(self, called: str = "") -> Path:
        """An empty directory for data, instead of those that a killed process has left."""
        for name in list_names(self.directory):
            if name.startswith("data-"):
                shutil.rmtree(self.directory / name, ignore_errors=True)
        return make_directory(self.directory / (called or f"data-{random_word()}"))

    @contextmanager
    def filling(self) -> Iterator[None]:
        """While no other process fills it. Waits as long as one does."""
        with _locked(self.directory / "lock"):
            yield


def default_directory() -> Path:
    """$TMPDIR, or /tmp."""
    given = os.environ.get("TMPDIR", "")
    return Path(given) if given.startswith("/") else Path("/tmp")


def own_directory(storage: Path) -> Path:
    """Where the directories of this user are in a directory for scratch data."""
    return storage / f"kochi-{os.geteuid()}"


def hold(storage: Path, allocation: str, digest: str, holder: ProcessIdentity) -> Place:
    """The place of some data; it stays as long as the holder, or another one, lives.

    Raises StorageError if it cannot be used, and if another user could change the data;
    OSError, too.
    """
    top = _own_top(storage)
    name = "-".join((*node_words(), safe_name(allocation) or "node", digest))
    place = Place(top / name)
    with _holding(place):
        (place.holders / _name_of(holder)).touch(0o600)
    return place


def hold_for_worker(place: Place, worker: Mapping[str, str]) -> None:
    """Have a place with the name of one on another node on this node, too.

    It stays until it is removed, or another process comes that finds the `worker` gone: its file
    "state" is missing or says "left", or its file "presumed_dead" exists. Raises as `hold`.
    """
    _own_top(place.directory.parent.parent)
    with _holding(place):
        write_atomically(place.holders / _WORKER, to_json(dict(worker)))


def is_held_by_processes(place: Place) -> bool:
    """Whether a place is one of `hold`: on another node, both have one storage."""
    return any(_HOLDER.fullmatch(name) for name in list_names(place.holders))


def remove(place: Place) -> None:
    """Remove a place of `hold_for_worker`. What cannot be removed now is left to the next call."""
    top = place.directory.parent
    with suppress(OSError):
        with _locked(top / "lock"):
            _move_aside(place.directory)
        _delete(top)


def _own_top(storage: Path) -> Path:
    """The directory of this user in a directory for scratch data; made if it is missing."""
    top = own_directory(storage)
    if not storage.is_dir():
        raise StorageError(f"{storage} is not a directory on this node")
    if not os.access(storage, os.W_OK | os.X_OK):
        raise StorageError(f"{storage} is not writable on this node")
    # Not followed, should somebody have put a link there.
    with suppress(FileExistsError):
        os.mkdir(top, 0o700)
    try:
        if not os.path.isdir(top) or os.path.islink(top):
            raise OthersError(f"{top} is not a directory")
        examine(top, top)
    except OthersError as error:
        raise StorageError(f"{storage} cannot be used: {error.message}", error.hint) from error
    return top


@contextmanager
def _holding(place: Place) -> Iterator[None]:
    """While a holder is noted in a place, which is made if it is missing."""
    top = place.directory.parent
    with _locked(top / "lock"):
        if is_new := not place.directory.is_dir():
            _sweep(top, ())
        make_directory(place.holders)
        yield
    if is_new:
        # Now: what killed processes have left may fill the storage.
        _delete(top)


def take_over(
    storage: Path, leaving: ProcessIdentity, successor: ProcessIdentity
) -> Sequence[Place]:
    """The places that only `leaving` holds; from now on `successor` holds them, too.

    There are none if they cannot be examined.
    """
    top, found = own_directory(storage), list[Place]()
    with suppress(OSError):
        if not _is_ours(top):
            return found
        with _locked(top / "lock"):
            for name in list_names(top):
                words, place = _NAME.fullmatch(name), Place(top / name)
                if not words or not (place.holders / _name_of(leaving)).exists():
                    continue
                if not _is_held(place.directory, words.groups(), (leaving,)):
                    (place.holders / _name_of(successor)).touch(0o600)
                    found.append(place)
    return found


def sweep(storage: Path, *leaving: ProcessIdentity) -> None:
    """Remove the data that no living process holds; those that are `leaving` do not count any more.

    What cannot be removed now is left to the next call.
    """
    top = own_directory(storage)
    with suppress(OSError):
        if not _is_ours(top):
            return
        with _locked(top / "lock"):
            _sweep(top, leaving)
        _delete(top)


def _is_ours(top: Path) -> bool:
    """Whether this user has made a directory. Raises OSError."""
    found = os.lstat(top)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _name_of(holder: ProcessIdentity) -> str:
    return f"{holder.pid}-{holder.start}"


def _sweep(top: Path, leaving: Collection[ProcessIdentity]) -> None:
    for name in list_names(top):
        if (found := _NAME.fullmatch(name)) and not _is_held(top / name, found.groups(), leaving):
            # By one call: a process that comes now makes the place anew.
            with suppress(OSError):
                _move_aside(top / name)


def _move_aside(place: Path) -> None:
    os.rename(place, place.with_name(f"{_REMOVED}{random_word()}"))


def _delete(top: Path) -> None:
    for name in list_names(top):
        if name.startswith(_REMOVED):
            shutil.rmtree(top / name, ignore_errors=True)


def _is_held(place: Path, node: tuple[str, ...], leaving: Collection[ProcessIdentity]) -> bool:
    for name in list_names(place / "holders"):
        if found := _HOLDER.fullmatch(name):
            process = ProcessIdentity(int(found[1]), int(found[2]))
            if process not in leaving and not is_over(node, process):
                return True
    if (place / "holders" / _WORKER).exists() and node[0] != node_words()[0]:
        return not _is_gone(place / "holders" / _WORKER)
    # Of another host, or of a container whose processes are not seen here.
    return not is_over(node, None)


def _is_gone(holder: Path) -> bool:
    """Whether a worker on another node has certainly ended; see `hold_for_worker`."""
    with suppress(OSError, DamagedFileError, KeyError):
        worker = read_json(holder, is_ours=True)
        try:
            state = read_json(Path(worker["state"]))["state"]
        except FileNotFoundError:
            return True
        return state == "left" or is_there(Path(worker["presumed_dead"]))
    return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
