"""Private directories of a phase, below KOCHI_ROOT and gone afterwards, whatever happens."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snakemake_kochi.files import make_directory
from snakemake_kochi.processes import ProcessIdentity, this_node

_NAME = re.compile(r"(?P<boot>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}")


@contextmanager
def scratch_directory(workspaces: Path) -> Iterator[Path]:
    """A new empty directory for the calling process, in one that is made if need be.

    Its name tells the process it belongs to, so that what a killed one left is removed by the next
    phase on this node.
    """
    parent = make_directory(workspaces)
    _sweep(parent)
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    directory = parent / f"{_boot()}-{own.pid}-{own.start}-{secrets.token_hex(4)}"
    make_directory(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _boot() -> str:
    """Names this boot of this node: elsewhere the process's number means nothing."""
    return this_node().boot.replace("-", "")[:8].ljust(8, "0")


def _sweep(parent: Path) -> None:
    for entry in os.listdir(parent):
        match = _NAME.fullmatch(entry)
        if match is None or match["boot"] != _boot():
            continue
        if not ProcessIdentity(int(match["pid"]), int(match["start"])).is_alive():
            shutil.rmtree(parent / entry, ignore_errors=True)
