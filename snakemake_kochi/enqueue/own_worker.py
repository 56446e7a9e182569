"""A worker on this computer for the jobs that one Python process submits. It ends with the process.

It serves a queue of its own, whose jobs are cancelled and which is removed at the end: by the
process, or by the worker if the process was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import time
from functools import cached_property

from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import random_word
from snakemake_kochi.location import Location
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.by_hand import worker_of_process
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.hand import remove_queue
from snakemake_kochi.tickets.ticket import Resources
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.node.capacity import capacity_of_this_node, gpus_of_this_node
from snakemake_kochi.worker.settings import WorkerSettings, save_settings

# Seconds for a worker to end its jobs, whose own grace is 5 s.
_PATIENCE = 10.0


class OwnWorker:
    """The worker of this process on one machine. The first job starts it, and the next after its
    death."""

    def __init__(self, location: Location) -> None:
        self._root = str(location.root.directory)
        self._machine = location.machine_paths
        self._layout = self._machine.layout
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = os.getpid()
        self.queue = f"python-{random_word()}"

    @cached_property
    def _capacity(self) -> Capacity:
        return capacity_of_this_node(gpus=gpus_of_this_node())

    def check(self, resources: Resources) -> None:
        """Raises KochiError for a job that it can never run."""
        if obstacle := self._capacity.obstacle(resources):
            raise KochiError(
                f"the job can never run on this computer: {obstacle}",
                "Give it less, or name a queue with a larger worker: submit(..., queue='QUEUE')",
            )

    def start(self) -> None:
        """Start it unless it runs."""
        if self.is_alive:
            return
        if self._process is None:
            atexit.register(self.stop)
        settings = WorkerSettings(
            self._root,
            self._machine.name,
            (self.queue,),
            stay=True,
            # Of a killed process, too.
            parent=self.pid,
            owns_queues=True,
        )
        self._settings = save_settings(settings)
        # A session of its own: Ctrl-C in a notebook interrupts the cell, and no job.
        self._process = subprocess.Popen(
            start_command(self._settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def require_alive(self) -> None:
        """Raises WorkerError if it has ended: no job of its queue would ever run."""
        process = self._process
        if process is None or (status := process.poll()) is None:
            return
        number = worker_of_process(self._layout, process.pid)
        raise WorkerError(
            f"worker {number}, which this process started, ended with status {status}; its "
            f"log is {self._layout.worker(number or 0).log}",
            "Read that log. The next submit() starts another worker, which takes over the jobs.",
        )

    def stop(self) -> None:
        """Cancel the jobs that have not ended, end the worker, and remove its queue."""
        # In a fork of the process the worker is not its own.
        if self._process is None or os.getpid() != self.pid:
            return
        self._process.terminate()
        deadline = time.monotonic() + _PATIENCE
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            time.sleep(0.02)
        with contextlib.suppress(OSError, KochiError):
            remove_queue(self._layout, self.queue)
            self._settings.unlink(missing_ok=True)  # which no other worker reads
        atexit.unregister(self.stop)
        self._process = None


# One for each machine. The worker belongs to the process, as its standard output does.
_OWN: dict[MachinePaths, OwnWorker] = {}


def own_worker(location: Location) -> OwnWorker:
    """The worker of this process for a machine.

    Raises KochiError for a machine with compute nodes: it would be on a login node.
    """
    machine = location.machine
    if machine.has_allocations:
        raise KochiError(
            f"a queue was expected for machine '{machine.name}': a worker of this process would "
            "be on a login node",
            "Name one: submit(..., queue='QUEUE'). To get workers for it, type: "
            f"kochi alloc -m {machine.name} -q QUEUE",
        )
    found = _OWN.get(location.machine_paths)
    if found is None or found.pid != os.getpid():
        found = _OWN[location.machine_paths] = OwnWorker(location)
    return found
