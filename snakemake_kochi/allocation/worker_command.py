"""The command that starts a worker in an allocation."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.schedulers.environment import node_for_bash
from snakemake_kochi.worker.settings import WorkerSettings, save_settings, start_command

# The longest line with the name of a node, in bytes.
_LONGEST = 512
_ON_NODE = "on node "


@dataclass(frozen=True)
class WorkerCommand:
    """The start of the workers of alike allocations; see `WorkerScript`.

    `setup` is a text for bash that comes first. `first_worker` is the number of the first worker,
    if they were given numbers.
    """

    settings: WorkerSettings
    setup: str = ""
    first_worker: int | None = None

    def script(
        self, allocation: str, cores: str | None, output: Path | None = None, index: str = "0"
    ) -> str:
        """A script for bash that becomes the worker, which gets the signals for the script's shell.

        The call writes the settings that the script names; raises OSError. `allocation`, the
        scheduler's name for the allocation, and `cores`, the number of cores in it, are words for
        bash. Without `cores`, the worker has the cores that it may run on. `index`: which of the
        workers it is, as arithmetic of bash, from 0. `output`: a file for the script's output, if
        the scheduler has none.
        """
        first = [] if output is None else [f"exec >{shlex.quote(str(output))} 2>&1"]
        # The first line of the log: if a worker could not be started, it is the only one.
        first.append(f'echo "{_ON_NODE}{node_for_bash()}"')
        command = shlex.join(start_command(save_settings(self.settings)))
        worker = f"exec {command} --allocation {allocation}"
        if self.first_worker is not None:
            worker += f" --worker $(({self.first_worker} + {index}))"
        if cores is not None:
            worker += f" --cores {cores}"
        return "\n".join(["#!/bin/bash", *filter(None, [*first, self.setup]), worker, ""])

    @property
    def grace(self) -> float:
        return self.settings.grace

    @property
    def machine(self) -> MachinePaths:
        return self.settings.paths

    def log(self, allocation: str) -> Path:
        """The file for an allocation's output other than that of its jobs."""
        return self.machine.allocation_log(self.settings.controller or "alloc", allocation)


def node_of(log: Path) -> str:
    """The node, in its scheduler's words, on which the script began that wrote this log.

    "" if it is not known. The script is a `WorkerCommand.script`.
    """
    with contextlib.suppress(OSError), log.open("rb") as stream:
        first = stream.readline(_LONGEST).decode(errors="replace").strip()
        if first.startswith(_ON_NODE):
            return first.removeprefix(_ON_NODE)
    return ""
