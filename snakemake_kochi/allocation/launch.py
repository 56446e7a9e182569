"""What an allocation runs: a worker."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import Kind
from snakemake_kochi.schedulers.native import node_for_bash

# Tries, a second apart, to see on a node what was made a moment ago on another one.
_LOOKS = 10
# Bytes of a line with the name of a node.
_LONGEST = 512
_ON_NODE = "on node "


@dataclass(frozen=True)
class Launch:
    """How workers of a controller are started: for which queues, and that they leave after
    `idle_timeout` seconds without a job; `setup`: a text for bash that comes first; `grace`: the
    seconds that jobs have to end; `cancel_waiting`: the command that cancels all allocations of the
    controller that have not begun, for the worker that sees that it is dead; `memory_mb`: what it
    hands out to jobs, where the allocation has more; `seconds`: for how long that is asked for;
    `preferred`: the kinds of jobs that it is for, and begins before others.

    `first`: the number of the first of the workers, if they were given numbers.

    Without a controller they run everybody's jobs, and show their output; they stay for ever if
    `stay` says so, and leave when the queues are empty if it does not."""

    root: Root
    machine: MachinePaths
    controller: str | None
    queues: tuple[str, ...]
    idle_timeout: float | None = None
    setup: str = ""
    grace: float = 5.0
    stay: bool = True
    cancel_waiting: tuple[str, ...] = ()
    memory_mb: int | None = None
    seconds: float | None = None
    first: int | None = None
    preferred: tuple[Kind, ...] = ()

    def command(self) -> list[str]:
        """The worker, as a command; more options may follow."""
        # -P: a queue.py in the user's directory must not be imported in place of the library.
        command = [sys.executable, "-P", "-m", "snakemake_kochi.worker"]
        command += ["--root", str(self.root.directory), "--machine", self.machine.name]
        for queue in self.queues:
            command += ["--queue", queue]
        if self.controller is None:
            command.append("--echo")
        else:
            # Jobs of another run would be requeued and done twice when this run ends.
            command += ["--controller", self.controller]
        if self.stay:
            command.append("--stay")
        if self.idle_timeout is not None:
            command += ["--idle-timeout", f"{self.idle_timeout:g}"]
        if self.memory_mb:
            command += ["--most-memory-mb", str(self.memory_mb)]
        if self.seconds is not None:
            command += ["--asked", f"{self.seconds:g}"]
        for kind in self.preferred:
            command += ["--first", json.dumps(asdict(kind))]
        if self.cancel_waiting:
            command += ["--cancel-waiting", shlex.join(self.cancel_waiting)]
        return [*command, "--grace", f"{self.grace:g}"]

    def script(
        self, allocation: str, cores: str | None, output: Path | None = None, index: str = "0"
    ) -> str:
        """A script for bash that becomes the worker: the signals for its shell are for that. The
        scheduler's name for the allocation, and the number of cores in it, are words for bash;
        without the latter, the worker has those that it may run on. `index`: which of the workers
        it is, as arithmetic of bash, from 0. `output`: a file for what it
        says, if the scheduler has none."""
        first = [] if output is None else [f"exec >{shlex.quote(str(output))} 2>&1"]
        # The first line of its log: where a worker could not be started, that is the only word.
        first.append(f'echo "{_ON_NODE}{node_for_bash()}"')
        worker = f"exec {shlex.join(self.command())} --allocation {allocation}"
        if self.first is not None:
            worker += f" --worker $(({self.first} + {index}))"
        if cores is not None:
            worker += f" --cores {cores}"
        return "\n".join(["#!/bin/bash", *filter(None, [*first, self.setup]), worker, ""])

    def log(self, allocation: str) -> Path:
        """Where the output of an allocation goes that is not its jobs'."""
        return self.machine.allocation_log(self.controller or "alloc", allocation)


def check_root(root: Root, machine: MachinePaths) -> str:
    """For bash on a node: that this KOCHI_ROOT is the one in which the machine was made ready, and
    not one of the node's own at the same path, in which a worker would wait for nothing."""
    there = shlex.quote(str(machine.lock_settings))
    said = shlex.quote(f"kochi: this node does not see KOCHI_ROOT {root.directory}")
    # What was made a moment ago may be seen a moment later.
    return (
        f"for _ in {{1..{_LOOKS}}}; do [ -e {there} ] && break; sleep 1; done\n"
        f"[ -e {there} ] || {{ echo {said} >&2; exit 1; }}"
    )


def node_of(log: Path) -> str:
    """The node on which a `Launch.script` began that wrote this log, as its scheduler names it; ""
    where that is not known."""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        first = stream.readline(_LONGEST).decode(errors="replace").strip()
        if first.startswith(_ON_NODE):
            return first.removeprefix(_ON_NODE)
    return ""
