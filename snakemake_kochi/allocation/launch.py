"""What an allocation runs: a worker."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.paths import MachinePaths, Root


@dataclass(frozen=True)
class Launch:
    """How workers of a controller are started: for which queues, and that they leave after
    `idle_timeout` seconds without a job; `setup`: a text for bash that comes first; `grace`: the
    seconds that jobs have to end."""

    root: Root
    machine: MachinePaths
    controller: str
    queues: tuple[str, ...]
    idle_timeout: float
    setup: str = ""
    grace: float = 5.0

    def command(self) -> list[str]:
        """The worker, as a command; more options may follow."""
        # -P: a queue.py in the user's directory must not be imported in place of the library.
        command = [sys.executable, "-P", "-m", "snakemake_kochi.worker"]
        command += ["--root", str(self.root.directory), "--machine", self.machine.name]
        for queue in self.queues:
            command += ["--queue", queue]
        # Jobs of another run would be put back and done twice when this run ends.
        command += ["--controller", self.controller, "--stay"]
        command += ["--idle-timeout", f"{self.idle_timeout:g}", "--grace", f"{self.grace:g}"]
        return command

    def script(self, allocation: str, cores: str | None) -> str:
        """A script for bash that becomes the worker: the signals for its shell are for that. The
        scheduler's name for the allocation, and the number of cores in it, are words for bash;
        without the latter, the worker has those that it may run on."""
        worker = f"exec {shlex.join(self.command())} --allocation {allocation}"
        if cores is not None:
            worker += f" --cores {cores}"
        return "\n".join(["#!/bin/bash", *filter(None, [self.setup]), worker, ""])

    def log(self, allocation: str) -> Path:
        """Where the output of an allocation goes that is not its jobs'."""
        return self.machine.allocation_log(self.controller, allocation)
