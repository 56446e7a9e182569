"""Where the socket of a terminal is: a directory on the node's own storage, for this user only."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from snakemake_kochi.node_storage import StorageError, default_directory, hold
from snakemake_kochi.processes import ProcessIdentity

_STORAGE = Path("/tmp")


@contextmanager
def socket_directory(
    holder: ProcessIdentity, storages: Sequence[Path] | None = None
) -> Iterator[Path]:
    """A new directory that no other user may enter. It is deleted afterwards, and by the next
    holder if this one was killed.

    By default it is in $TMPDIR, or in /tmp. Raises OSError.
    """
    directory = _make(holder, (default_directory(), _STORAGE) if storages is None else storages)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make(holder: ProcessIdentity, storages: Sequence[Path]) -> Path:
    for storage in storages:
        try:
            return hold(storage, "terminal", secrets.token_hex(8), holder).directory
        except (StorageError, OSError):
            continue
    # In a directory for everybody, somebody else may have taken the name of ours. A name that
    # nobody can know is left; if this process is killed, so is the directory.
    return Path(tempfile.mkdtemp(prefix=f"kochi-{os.geteuid()}-", dir=storages[-1]))
