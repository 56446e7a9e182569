"""Runs, as `kochi trace` and `kochi clean` see them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from snakemake_kochi.base import files
from snakemake_kochi.errors import NameNotFoundError, nearest
from snakemake_kochi.files import is_there
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue.views import layout_of
from snakemake_kochi.tickets.moving import listing
from snakemake_kochi.tickets.names import Layout, numbers_in
from snakemake_kochi.tickets.run import ENDED, OWN

# Seconds without a heartbeat after which nobody expects another one; the clock of the file server
# may differ by minutes.
_SILENT = 600.0
_MOST_NAMED = 5


@dataclass(frozen=True)
class RunView:
    """A run, as it was at one moment. One that was killed has ended when another one, which took
    over from it, has closed it."""

    number: int
    directory: str
    state: Literal["running", "ended", "killed"]
    started: str
    ended: str | None
    node: Node
    process: ProcessIdentity

    @property
    def controller(self) -> str:
        return str(self.number)

    @property
    def is_process_gone(self) -> bool:
        """Whether its process has certainly ended."""
        return self.process.has_ended(self.node)


def read_run(layout: Layout, number: int) -> RunView | None:
    """None for a job by hand, and if there is none, or its file is damaged. Raises OSError."""
    paths = layout.run(number)
    with suppress(FileNotFoundError, KeyError, TypeError, ValueError):
        data = files.parse(files.read(paths.facts))  # first: it tells whether there is such a run
        texts = listing(paths.directory)
        if not data["directory"]:
            return None
        facts: dict[str, Any] = data["facts"]
        node = Node.from_dict(facts["node"])
        process = ProcessIdentity.from_dict(facts["process"])
        # The token was renamed last.
        ended = os.stat(paths.directory).st_mtime if ENDED in texts else None
        run = RunView(
            number,
            data["directory"],
            "running" if OWN in texts else "killed" if ended is None else "ended",
            facts["started"],
            None if ended is None else datetime.fromtimestamp(ended, UTC).isoformat(),
            *(node, process),
        )
        is_silent = time.time() - os.stat(paths.alive).st_mtime > _SILENT
        if run.state == "running" and (
            run.is_process_gone or (is_silent and not this_node().can_see(node))
        ):
            return replace(run, state="killed")
        return run
    return None


def list_runs(machine: MachinePaths, directory: str | None = None) -> Iterator[RunView]:
    """All runs, or those in one directory; the newest first."""
    layout = layout_of(machine)
    if not is_there(machine.directory):
        return
    for number in reversed(numbers_in(listing(layout.runs))):
        run = read_run(layout, number)
        if run is not None and directory in (None, run.directory):
            yield run


def find_run(machine: MachinePaths, number: str) -> RunView:
    """Raises NameNotFoundError."""
    found = read_run(layout_of(machine), int(number)) if number.isdecimal() else None
    if found is not None:
        return found
    known = (run.controller for run, _ in zip(list_runs(machine), range(_MOST_NAMED), strict=False))
    raise NameNotFoundError(
        f"there is no run {number} on machine {machine.name}; {nearest(number, known)}",
        "List them with: kochi trace --list",
    )
