"""The names of `tickets.ticket`, for this package and those that go with it; tickets as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from snakemake_kochi.files import read_json
from snakemake_kochi.tickets.ticket import (
    VERSION,
    Benchmark,
    Kind,
    Resources,
    ShellJob,
    Ticket,
    now,
)

__all__ = [
    "VERSION",
    "Benchmark",
    "Kind",
    "Resources",
    "ShellJob",
    "Ticket",
    "now",
    "read_ticket",
]


def read_ticket(path: Path, read: Callable[..., dict[str, Any]] = read_json) -> Ticket:
    """Read a ticket's file; with `Packs.read_json`, that of a job which may have ended long ago.

    Raises FileNotFoundError. Raises DamagedFileError when the file is damaged, or was written by a
    newer version or by another user.
    """
    return Ticket.from_dict(read(path, VERSION, is_ours=True), path)
