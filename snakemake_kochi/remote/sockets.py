"""Where the control sockets of ssh are: in a directory of this user alone, with a short path."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
from pathlib import Path

from snakemake_kochi.remote.refusal import RemoteError

# Characters that ssh's configuration does not interpret. A socket's path has 107 characters, and
# ssh adds 17 to it while it makes the socket.
_PLAIN = re.compile(r"/[A-Za-z0-9_/.+-]{1,50}")
_RUNTIME = "XDG_RUNTIME_DIR"


def socket_path(configuration: str) -> Path:
    """The path of the socket of a connection, which is described by what `ssh -G` says about it.

    Whoever changes the configuration gets another connection. Raises RemoteError when another user
    could reach the socket.
    """
    # The same words may mean other keys for another home.
    about = f"{configuration}\0{os.environ.get('HOME', '')}"
    digest = hashlib.sha256(os.fsencode(about)).hexdigest()[:16]
    return _directory() / f"ssh-{digest}"


def _directory() -> Path:
    given = os.environ.get(_RUNTIME, "")
    if _PLAIN.fullmatch(given) and os.path.isdir(given):
        return _private(Path(given) / "kochi")
    return _private(Path(f"/tmp/kochi-{os.geteuid()}"))


def _private(directory: Path) -> Path:
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError as error:
        raise RemoteError(
            f"no directory for connections: {directory}: {error.strerror}",
            f"Free some space there, or set ${_RUNTIME} to another directory.",
        ) from error
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or found.st_mode & 0o077:
        raise RemoteError(
            f"{directory} is not a directory that only you can read: who opens a connection there "
            "would log in as you",
            f"Type: chmod 700 {directory}\nIf it is not yours, set ${_RUNTIME} to a directory of "
            "your own.",
        )
    return directory


def answers(path: Path) -> bool:
    """Whether a process listens on a socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True
