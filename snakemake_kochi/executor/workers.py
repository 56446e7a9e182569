"""The workers of a run on this computer. They end with it."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from humanfriendly.text import pluralize
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.base import files
from snakemake_kochi.base.wake import wake
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import last_lines
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.by_hand import reserve_workers
from snakemake_kochi.queue.views import read_worker, shared_workers
from snakemake_kochi.schedulers.interface import NO_REQUEST, AllocationRequest
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Resources
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.node.capacity import capacity_of_this_node, gpus_of_this_node
from snakemake_kochi.worker.settings import WorkerSettings, save_settings
from snakemake_kochi.worker.walltime import TIME_IS_OVER

_DEATHS = 3  # in a row, without a job that has ended in between
_GRACE = 10.0  # seconds in which drained workers must leave
_LAST_LINES = 20
_LOOK = 2.0  # seconds between two looks for workers that the user started or ended
_REPEAT_WAITS = 60.0  # seconds


class TimeIsOverError(WorkerError):
    """The allocation ends in which the run is; its workers have left."""


@dataclass
class _Started:
    """A worker of this run. `queues`: those that it was told."""

    process: subprocess.Popen[bytes]
    number: int
    queues: set[str]


class LocalWorkers:
    """Starts workers when jobs are submitted, and notices when they end.

    One worker hands out all the cores. Several would each treat the node as their own. For the same
    reason the run leaves a queue to a worker that the user started for all runs and that serves it
    already. That worker may be on another node, too, since measurements on different nodes cannot
    be compared.
    """

    takes_requests = False
    usual_nodes = 1
    have_one_size = False

    def __init__(
        self,
        settings: WorkerSettings,
        count: int,
        machine: MachinePaths,
        logger: LoggerExecutorInterface,
    ) -> None:
        """`settings`: of each, without its queues."""
        self._settings = settings
        self._count = count
        self._machine = machine
        self._layout = machine.layout
        # What they say before they have a log.
        self._said = Path(self._layout.run(int(settings.controller or 0)).workers)
        self._logger = logger
        self._notices = Notices(logger)
        self._running: dict[int, _Started] = {}  # by pidfd
        self._queues: set[str] = set()  # all, served or not
        self._served: set[str] = set()  # those that are not left to other workers
        self._look_due = 0.0
        self._deaths = 0
        self._lock = threading.Lock()

    # ---- what `Admission` asks

    def will_serve(self, queue: str) -> bool:
        """Whether these workers serve a queue, or would, and do not leave it to others."""
        if queue in self._served or not self._count:
            return self._count > 0
        with suppress(OSError):
            return not shared_workers(self._machine, queue)
        return True

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

    def serve(
        self, queues: set[str], request_of: Callable[[str], AllocationRequest] | None = None
    ) -> None:
        """Have workers for these queues, too. Raises OSError."""
        if not self._count or queues <= self._queues:
            return
        with self._lock:  # or `tick` would start one, too
            self._queues |= queues
            self._share_out()
            self._start_all()

    def _share_out(self) -> None:
        """Serve the queues that nobody else serves. Raises OSError."""
        for queue in sorted(self._queues - self._served):
            others = shared_workers(self._machine, queue)
            if others:
                other = min(others, key=lambda worker: not worker.is_on_this_node)
                where = "here" if other.is_on_this_node else f"on {other.node.host}"
                self._notices.info(
                    f"This run leaves queue {queue} to worker {other.worker}, which serves it "
                    f"{where}.",
                    key=queue,
                )
                continue
            if self._notices.forget(queue):
                self._logger.info(
                    f"Queue {queue} has no other worker any more. This run serves it now."
                )
            self._served.add(queue)
        for worker in self._running.values():
            if new := sorted(self._served - worker.queues):
                paths = self._layout.worker(worker.number)
                for queue in new:
                    files.overwrite(paths.serve(queue), b"")
                worker.queues |= self._served
                wake(paths.wake)

    def _start_all(self) -> None:
        while self._served and len(self._running) < self._count:
            (number,) = reserve_workers(self._machine, 1)
            queues = tuple(sorted(self._served))
            settings = replace(self._settings, worker=number, queues=queues, parent=os.getpid())
            with self._said.open("ab") as output:
                # A session of its own: Ctrl-C is for Snakemake, which then ends them in order.
                process = subprocess.Popen(
                    start_command(save_settings(settings)),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._running[os.pidfd_open(process.pid)] = _Started(process, number, set(queues))

    def job_ended(self) -> None:
        self._deaths = 0

    def tick(self, has_jobs: bool) -> bool:
        """Start anew what died, while there are jobs; serve what others left. Whether one has died.

        Raises OSError; TimeIsOverError; WorkerError after three deaths in a row.
        """
        before = self._deaths
        for number, worker in list(self._running.items()):
            if worker.process.poll() is not None:
                os.close(number)
                del self._running[number]
                self._note_death(worker)
        with self._lock:
            if time.monotonic() >= self._look_due:
                self._look_due = time.monotonic() + _LOOK
                self._share_out()
                if has_jobs:
                    self._tell_waits()
            if has_jobs:
                self._start_all()
        return self._deaths > before

    def _note_death(self, worker: _Started) -> None:
        self._deaths += 1
        reason, log = "", self._said
        with suppress(OSError):
            if (view := read_worker(self._layout, worker.number)) is not None:
                log = Path(self._layout.worker(worker.number).log)
                reason = view.reason if view.state == "left" else ""
        if reason == TIME_IS_OVER:
            raise TimeIsOverError(
                "the time of this allocation is over",
                "To go on, type the same command again in another one.",
            )
        if self._deaths >= _DEATHS:
            ending = "\n    ".join(last_lines(log, _LAST_LINES))
            said = f"with status {worker.process.returncode}{':' if ending else ''}\n    {ending}"
            raise WorkerError(
                f"local workers keep ending, {self._deaths} in a row without an ended job. "
                f"The last one ended {said.rstrip()}",
                "To see what is wrong here, type: kochi doctor",
            )
        self._logger.warning(
            f"Worker {worker.number} {f'left: {reason}' if reason else 'died'}; its jobs are "
            f"requeued, and a new worker is started; its log is {log}"
        )

    def _tell_waits(self) -> None:
        """Say that a job waits for another one on this computer, of another run perhaps."""
        for worker in self._running.values():
            with suppress(OSError):
                path = self._layout.worker(worker.number).waits
                waits = files.read(path).decode("utf-8", "replace").partition("\n")[0]
                if waits and self._notices.is_new(("waits", worker.number), quiet=_REPEAT_WAITS):
                    self._logger.info(f"{waits[:1].upper()}{waits[1:]}.")

    def abandon(self) -> None:
        """End them: their jobs go back to the queue, for the run that took over."""
        self.stop(lambda: False)

    def stop(self, is_urgent: Callable[[], bool]) -> None:
        """Drain the workers, then end those that do not leave; at once when it becomes urgent."""
        processes = [worker.process for worker in self._running.values()]
        for process in processes:
            process.terminate()
        until, hastened = time.monotonic() + _GRACE, False
        while any(process.poll() is None for process in processes):
            if time.monotonic() > until:
                for process in processes:
                    process.kill()
            elif is_urgent() and not hastened:
                hastened = True
                for process in processes:  # a second signal: no grace for the jobs
                    process.terminate()
            time.sleep(0.01)
        for number in self._running:
            os.close(number)
        self._running.clear()
