"""Any scheduler, by a machine's alloc_script."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable
from itertools import count

from snakemake_kochi.allocation.launch import Launch
from snakemake_kochi.allocation.scheduler import Allocation, RefusedError, Wanted, time_limit
from snakemake_kochi.allocation.sizing import Limits
from snakemake_kochi.files import write_atomically
from snakemake_kochi.project.machines import AllocationSettings
from snakemake_kochi.queue import Capacity

# Of what the machine does not say how much a node has: what a worker finds there counts.
_UNKNOWN = sys.maxsize


class AllocScript:
    """See `scheduler.Scheduler`. The script may hand a job to a scheduler and end, or stay as long
    as its worker does. Nobody can be asked how allocations of the first kind stand: what has not
    failed is waited for, and their workers leave by themselves when their controller has ended."""

    def __init__(self, name: str, script: str, settings: AllocationSettings) -> None:
        self._name = name
        self._script = script
        self._settings = settings
        self._numbers = count(1)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def limits(self) -> Limits:
        settings = self._settings
        gpus = _UNKNOWN if settings.gpus is None else settings.gpus
        node = Capacity(settings.cores or _UNKNOWN, settings.memory_mb or _UNKNOWN, gpus)
        return Limits(settings.max_workers, node, settings.time, takes_nodes=True)

    def submit(self, wanted: Wanted, launch: Launch, known: Collection[str]) -> list[str]:
        return [self._start(wanted, launch) for _ in range(wanted.count)]

    def _start(self, wanted: Wanted, launch: Launch) -> str:
        name = f"{self._name}-{next(self._numbers)}"
        log = launch.log(name)
        # A file: whatever the script puts around the command, nothing in it needs to be quoted.
        own = log.with_suffix(".sh")
        cores = None if self._settings.cores is None else str(self._settings.cores)
        write_atomically(own, launch.script(name, cores).encode())
        environment = {**os.environ, "KOCHI_WORKER_LAUNCH_CMD": f"bash {own}"}
        if self._settings.node_spec is not None:
            environment["KOCHI_ALLOC_NODE_SPEC"] = self._settings.node_spec
        if wanted.seconds is not None:
            environment["KOCHI_ALLOC_TIME_LIMIT"] = time_limit(wanted.seconds)
        with log.open("ab") as stream:
            try:
                self._processes[name] = subprocess.Popen(
                    ["bash", "-euo", "pipefail", "-c", self._script],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    # Ctrl-C is for Snakemake, which then ends the workers in order.
                    start_new_session=True,
                )
            except OSError as error:
                raise RefusedError(f"alloc_script cannot be run: {error}") from error
        return name

    def find(self) -> dict[str, Allocation]:
        living = (name for name, process in self._processes.items() if not process.poll())
        return {name: Allocation(name, "running") for name in living}

    def cancel(self, ids: Iterable[str] = ()) -> None:
        for name in list(ids) or list(self._processes):
            process = self._processes.pop(name)
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)

    @property
    def how_to_cancel(self) -> str:
        return "the command of your scheduler for it"
