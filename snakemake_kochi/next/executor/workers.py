"""The workers of a run on this computer. They end with it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from humanfriendly.text import pluralize
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.base import files
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import last_lines
from snakemake_kochi.next.worker import start_command
from snakemake_kochi.schedulers.interface import NO_REQUEST, AllocationRequest
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.names import Layout, numbers_in
from snakemake_kochi.tickets.ticket import Resources
from snakemake_kochi.worker.node.capacity import capacity_of_this_node, gpus_of_this_node
from snakemake_kochi.worker.settings import WorkerSettings, save_settings

_DEATHS = 3  # in a row, without a job that has ended in between
_GRACE = 10.0  # seconds in which drained workers must leave
_LAST_LINES = 20


class LocalWorkers:
    """Starts workers when jobs are submitted, and notices when they end.

    One worker hands out all the cores. Several would each treat the node as their own.
    """

    takes_requests = False
    usual_nodes = 1
    have_one_size = False

    def __init__(
        self, settings: WorkerSettings, count: int, layout: Layout, logger: LoggerExecutorInterface
    ) -> None:
        """`settings`: of each, without its queues."""
        self._settings = settings
        self._count = count
        self._layout = layout
        # What they say before they have a log.
        self._said = Path(layout.run(int(settings.controller or 0)).directory, "workers")
        self._logger = logger
        self._running: dict[int, subprocess.Popen[bytes]] = {}  # by pidfd
        self._queues: set[str] = set()
        self._deaths = 0
        self._lock = threading.Lock()

    # ---- what `Admission` asks

    def will_serve(self, queue: str) -> bool:
        """Whether these workers serve a queue, and it is not left to others."""
        return self._count > 0

    def fit(
        self, rule: str, wanted: Resources, request: AllocationRequest = NO_REQUEST
    ) -> Resources:
        """No more cores and memory than the node has: a local job runs with what it can get.

        Snakemake's own executor does the same. Raises KochiError for nodes or GPUs that are not
        there.
        """
        if wanted.nodes > 1:
            raise KochiError(
                f"rule {rule}: {wanted.nodes} nodes needed, and on this computer there is one",
                "Type it where a machine with a scheduler is selected, as in: export "
                "KOCHI_DEFAULT_MACHINE=NAME\nOr give the parameter other values here, as in: "
                "n_nodes: [{value: [1, 2]}, {value: 1, machines: local}]",
            )
        if wanted.gpus and wanted.gpus > (there := gpus_of_this_node()):
            raise KochiError(
                f"rule {rule}, resource gpu: {pluralize(wanted.gpus, 'GPU')} needed, and the run's "
                f"own worker has {there or 'none'}",
                "Name the GPUs of this node in CUDA_VISIBLE_DEVICES, or send the rule's jobs to a "
                "queue with a worker that has them: resources: kochi_queue=...",
            )
        memory = wanted.memory_mb
        return replace(
            wanted,
            cores=min(wanted.cores, self._most.cores),
            memory_mb=None if memory is None else min(memory, self._most.memory_mb),
        )

    @cached_property
    def _most(self) -> Capacity:
        return capacity_of_this_node(self._settings.cores, gpus=0)

    # ---- their lives

    @property
    def descriptors(self) -> Sequence[int]:
        """Readable when one of them ends."""
        return list(self._running)

    def serve(self, queues: set[str]) -> None:
        """Have workers for these queues. Raises OSError."""
        if not self._count or queues <= self._queues:
            return
        with self._lock:  # or `tick` would start one, too
            for _ in range(self._count):
                self._start(sorted(queues - self._queues))
            self._queues |= queues

    def _start(self, queues: Sequence[str]) -> None:
        settings = replace(self._settings, queues=tuple(queues), parent=os.getpid())
        with self._said.open("ab") as output:
            # A session of its own: Ctrl-C is for Snakemake, which then ends the workers in order.
            process = subprocess.Popen(
                start_command(save_settings(settings)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._running[os.pidfd_open(process.pid)] = process

    def job_ended(self) -> None:
        self._deaths = 0

    def tick(self, has_jobs: bool) -> None:
        """Start anew what died, while there are jobs. Raises WorkerError after three in a row."""
        for number, process in list(self._running.items()):
            if process.poll() is None:
                continue
            os.close(number)
            del self._running[number]
            self._deaths += 1
            ending = "\n    ".join(self._ending())
            said = f"with status {process.returncode}{':' if ending else ''}\n    {ending}".rstrip()
            if self._deaths >= _DEATHS:
                raise WorkerError(
                    f"local workers keep ending, {self._deaths} in a row without an ended job. "
                    f"The last one ended {said}",
                    "To see what is wrong here, type: kochi doctor",
                )
            self._logger.warning(f"A worker of this run ended {said}")
        with self._lock:
            if has_jobs and self._queues and not self._running:
                self._start(sorted(self._queues))

    def _ending(self) -> list[str]:
        """The last lines of the log of the worker that came last, or of what it said before."""
        log = self._said
        with suppress(OSError, ValueError):
            for number in reversed(numbers_in(files.names(self._layout.workers))):
                paths = self._layout.worker(str(number))
                if json.loads(files.read(paths.facts))["controller"] == self._settings.controller:
                    log = Path(paths.log)
                    break
        return last_lines(log, _LAST_LINES)

    def stop(self, is_urgent: Callable[[], bool]) -> None:
        """Drain the workers, then end those that do not leave; at once when it becomes urgent."""
        for process in self._running.values():
            process.terminate()
        until, hastened = time.monotonic() + _GRACE, False
        while any(process.poll() is None for process in self._running.values()):
            if time.monotonic() > until:
                for process in self._running.values():
                    process.kill()
            elif is_urgent() and not hastened:
                hastened = True
                for process in self._running.values():  # a second signal: no grace for the jobs
                    process.terminate()
            time.sleep(0.01)
        for number in self._running:
            os.close(number)
        self._running.clear()
