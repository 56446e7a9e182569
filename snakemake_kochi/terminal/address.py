"""Where the terminal of a job is: a small file of the job, which its terminal host writes.

The host listens on a Unix domain socket in a directory of the node's own storage that only this
user can enter, and answers no process of another user.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import read_json, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node
from snakemake_kochi.tickets.history import JobId, key_of


def terminal_of(machine: MachinePaths, job: JobId) -> Path:
    return Path(machine.layout.run(key_of(job)[0]).terminal)


_VERSION = 1
_LONGEST = 107  # bytes of a socket's name, see unix(7)
_STORAGE = Path("/tmp")
_UCRED = struct.Struct("3i")  # struct ucred, see unix(7): pid, uid, gid


@dataclass(frozen=True)
class Address:
    """The terminal of one attempt of a job. `keep`: it outlives its clients. `port`: a TCP port of
    the node on which its program may listen; 0 if that has no network."""

    attempt: int
    worker: int
    node: Node
    socket: str
    keep: bool
    port: int

    def save(self, path: Path) -> None:
        data = {"version": _VERSION, **asdict(self)}
        write_atomically(path, to_json(data))


def read_address(path: Path) -> Address | None:
    """The terminal of a job; None if it has none yet. Raises DamagedFileError and OSError."""
    try:
        data = read_json(path, _VERSION, is_ours=True)
    except FileNotFoundError:
        return None
    try:
        return Address(
            attempt=int(data["attempt"]),
            worker=int(data["worker"]),
            node=Node.from_dict(data["node"]),
            socket=str(data["socket"]),
            keep=bool(data["keep"]),
            port=int(data["port"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{path}: {error}") from error


def listen_at(path: Path) -> socket.socket:
    """A socket that listens at a path. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _reachable(path) as short:
        listener.bind(short)
    os.chmod(path, 0o600)
    listener.listen()
    return listener


def connect_to(path: Path) -> socket.socket:
    """A connection to the socket at a path. Raises OSError, also if another user listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _reachable(path) as short:
            connection.connect(short)
        if peer_user(connection) != os.geteuid():
            raise PermissionError(f"{path}: another user listens there")
    except BaseException:
        connection.close()
        raise
    return connection


def peer_user(connection: socket.socket) -> int:
    """The user at the other end of a Unix domain socket."""
    _, user, _ = _UCRED.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return int(user)


def accept_own(listener: socket.socket) -> socket.socket | None:
    """The next connection, if it is one of this user."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    # The directory keeps others out; the kernel's word is asked all the same.
    if peer_user(connection) != os.geteuid():
        connection.close()
        return None
    return connection


@contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """A short name of a path: that of a socket may have 107 characters, and $TMPDIR is longer in
    some allocations. Else its own: what deletes old files in /tmp spares a socket in use, which it
    knows by the name."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@contextmanager
def socket_directory(storages: Sequence[Path] | None = None) -> Iterator[Path]:
    """A new directory that no other user may enter, deleted afterwards.

    It is in the first of `storages` that works, by default $TMPDIR and /tmp. Raises OSError.
    """
    *others, last = _storages() if storages is None else storages
    for storage in others:
        with suppress(OSError):
            directory = _private(storage)
            break
    else:
        directory = _private(last)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _storages() -> list[Path]:
    given = os.environ.get("TMPDIR", "")
    return [Path(given), _STORAGE] if given.startswith("/") else [_STORAGE]


def _private(storage: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"kochi-{os.geteuid()}-", dir=storage))
