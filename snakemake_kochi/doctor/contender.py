"""A second process of this node, which tries to take a lock that this one holds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from snakemake_kochi.errors import KochiError
from snakemake_kochi.locks.lock import Kind, LockBusyError, advice, hold

# Seconds after which the process ends, whether or not its parent still exists.
_LIFETIME = 300


@contextlib.contextmanager
def contender(path: Path, kind: Kind, patience: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Start another process of this node; yield a call that has it try to take a lock.

    Each call makes it try once, for `patience` seconds, and returns whether it got the lock. Use
    this before taking the lock in the calling process. The call raises KochiError when the lock is
    refused, and ChildProcessError when the process was ended.
    """
    ours, theirs = socket.socketpair()
    # The fork comes before there is a lock, or a thread that renews a lease: the child must have
    # neither.
    if os.fork() == 0:
        ours.close()
        _contend(path, kind, patience, theirs)
    theirs.close()

    def contend() -> bool:
        ours.sendall(b"!")
        if not (answer := ours.recv(4096)):
            raise ChildProcessError("the second process was ended")
        outcome, message = json.loads(answer)
        if outcome == "refused":
            raise KochiError(message, advice(kind))
        return bool(outcome == "admitted")

    with ours:
        yield contend


def _contend(path: Path, kind: Kind, patience: float, connection: socket.socket) -> NoReturn:
    try:
        signal.alarm(_LIFETIME)
        while connection.recv(1):
            connection.sendall(json.dumps(_try_once(path, kind, patience)).encode())
    finally:
        os._exit(0)


def _try_once(path: Path, kind: Kind, patience: float) -> tuple[str, str]:
    try:
        with hold(path, kind, patience=patience):
            return "admitted", ""
    except LockBusyError:
        return "excluded", ""
    except KochiError as error:
        return "refused", error.message
