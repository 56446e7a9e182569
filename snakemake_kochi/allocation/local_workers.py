"""Workers on this computer that live as long as the run that started them."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from humanfriendly.text import pluralize
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.failures import where_log_is
from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.files import has_room
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import (
    Capacity,
    Resources,
    Ticket,
    WorkerState,
    allocate_ids,
    assign_queues,
    find_worker,
    shared_workers,
)
from snakemake_kochi.queue.kept import KeptQueue
from snakemake_kochi.schedulers.interface import NO_REQUEST, AllocationRequest
from snakemake_kochi.worker.node.capacity import capacity_of_this_node, gpus_of_this_node
from snakemake_kochi.worker.settings import WorkerSettings, save_settings, start_command

_RESTARTS = 3
# Seconds in which drained workers must leave. It is less if a worker cannot record the end of its
# jobs, counted from when their own grace is over.
_GRACE = 10.0
_GRACE_WITHOUT_ROOM = 6.0
# Seconds between two looks for workers that the user started or ended: at first, and how many times
# that after many looks that found none.
_LOOK = 1.0
_MOST_GROWTH = 5.0
_REPEAT_WAITS = 60.0  # seconds
_FAULT = "The run cannot check its own workers at the moment"


class LocalWorkers:
    """Local workers that serve all queues of a controller; see `WorkerProvider`.

    One worker hands out all the cores. Several workers would each treat the node as their own, and
    a benchmark that requests to run alone would have a neighbour. For the same reason the run
    leaves a queue to a worker that the user started for all runs and that serves it already. That
    worker may be on another node, too, since measurements on different nodes cannot be compared.
    The scheduler thread and the results thread may both call.
    """

    takes_requests = False
    usual_nodes = 1
    have_one_size = False

    def __init__(
        self,
        root: Root,
        machine: MachinePaths,
        controller: str,
        count: int,
        cores: int | None,
        logger: LoggerExecutorInterface,
        grace: float = _GRACE,
        look: float = _LOOK,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        """`grace`: seconds in which drained workers must leave.

        `look`: seconds between the first looks for workers of the user. `popen`: starts a process.
        """
        self._root = root
        self._machine = machine
        self._controller = controller
        self._count = count
        self._cores = cores
        self._logger = logger
        self._lock = threading.RLock()
        self._grace = grace
        self._popen = popen
        self._queues: list[str] = []  # all queues, served or not
        self._kept: dict[str, KeptQueue] = {}  # by the name of the queue
        self._served: list[str] = []  # the queues not left to other workers
        # The other worker that serves a queue, as of the last successful look.
        self._others: dict[str, WorkerState | None] = {}
        self._notices = Notices(logger, repeat_faults=math.inf)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._started: set[int] = set()
        self._deaths = 0  # deaths in a row, without an ended job in between
        self._next_look = 0.0
        self._pause = GrowingPause(look, _MOST_GROWTH * look)

    def serve(self, queues: Sequence[str], request: AllocationRequest = NO_REQUEST) -> None:
        """Serve these queues, too; the workers start when they are needed."""
        if not self._count:
            return
        with self._lock:
            new = [queue for queue in queues if queue not in self._queues]
            self._queues += new
            if new:
                self._share_out(new)

    def adopt(self, controllers: Sequence[str]) -> None:
        """Nothing to adopt: local workers of these controllers have ended with them."""

    def will_serve(self, queue: str) -> bool:
        """Whether these workers would serve a queue now, and not leave it to others.

        This holds as far as it is known.
        """
        if not self._count:
            return False
        with self._lock:
            with contextlib.suppress(OSError):
                self._others[queue] = self._other_worker(queue)
            return self._others.get(queue) is None

    def fit(
        self, rule: str, wanted: Resources, request: AllocationRequest = NO_REQUEST
    ) -> Resources:
        """No more cores and memory than the node has: a local job runs with what it can get.

        Snakemake's own executor does the same. Raises KochiError if the node lacks GPUs: no other
        worker serves the job's queue.
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
        most = self._most
        memory = wanted.memory_mb
        return replace(
            wanted,
            cores=min(wanted.cores, most.cores),
            memory_mb=None if memory is None else min(memory, most.memory_mb),
        )

    @cached_property
    def _most(self) -> Capacity:
        """The resources that each worker hands out, without GPUs."""
        return capacity_of_this_node(self._cores, gpus=0)

    def look_after(self, pending: Mapping[str, Sequence[Ticket]]) -> None:
        """Replace workers that ended, and serve the `pending` queues whose other workers are gone.

        Raises WorkerError when workers keep ending, because then the fault is not in a single
        worker.
        """
        with self._lock:
            self._revive()
            if time.monotonic() >= self._next_look:
                before = self._shares
                self._share_out(pending)
                if self._shares == before:
                    self._pause.grow()
                else:
                    self._pause.reset()
                self._next_look = time.monotonic() + self._pause.seconds
                self._tell_waits()

    def _tell_waits(self) -> None:
        """Say that a job waits for another one on this computer, of another run perhaps."""
        for number in self._running:
            # A worker that has just been started has no state yet.
            with contextlib.suppress(OSError, KochiError):
                waits = find_worker(self._machine, number).waits
                if waits and self._notices.is_new(("waits", number), quiet=_REPEAT_WAITS):
                    self._logger.info(f"{waits[:1].upper()}{waits[1:]}.")

    @property
    def _shares(self) -> tuple[Collection[str], Mapping[str, int]]:
        """The queues that this run serves, and which worker serves the others."""
        others = {queue: each.worker for queue, each in self._others.items() if each is not None}
        return tuple(self._served), others

    def job_ended(self, worker: int) -> None:
        """Note a job's result: the node was not the reason why earlier workers ended."""
        with self._lock:
            if worker in self._started:
                self._deaths = 0

    def _share_out(self, wanted: Collection[str]) -> None:
        """Serve the wanted queues and those served before.

        Queues that a user's worker serves are left to it. If a faulty filesystem prevents this, the
        next look tries again: jobs may be running.
        """
        try:
            self._serve(wanted)
        except (OSError, KochiError) as error:
            if isinstance(error, KochiError) and not isinstance(error.__cause__, OSError):
                raise
            self._notices.fault(_FAULT, error)
        else:
            self._notices.over(_FAULT)

    def _serve(self, wanted: Collection[str]) -> None:
        """Serve these queues. Raises OSError, or KochiError."""
        self._assign(self._to_serve(wanted))
        while self._served and len(self._running) < self._count:
            self._start()

    def _to_serve(self, wanted: Collection[str]) -> list[str]:
        served = []
        for queue in self._queues:
            other = self._others[queue] = self._other_worker(queue)
            if other is not None:
                self._tell_left(queue, other)
            elif queue in self._served or queue in wanted:
                served.append(queue)
        return served

    def _assign(self, served: list[str]) -> None:
        if served == self._served:
            return
        for queue in served:
            if self._notices.forget(queue):
                self._logger.info(
                    f"Queue {queue} has no other worker any more. This run serves it now."
                )
        for number in self._running:
            assign_queues(self._machine, number, served)
        self._served = served

    def _other_worker(self, queue: str) -> WorkerState | None:
        kept = self._kept.setdefault(queue, KeptQueue(self._machine.queue(queue)))
        serving = kept.subscribers()
        workers = shared_workers(self._machine, queue, but=self._started, serving=serving)
        return min(workers, key=lambda worker: not worker.is_on_this_node, default=None)

    def _tell_left(self, queue: str, other: WorkerState) -> None:
        where = "here" if other.is_on_this_node else f"on {other.node.host}"
        self._notices.info(
            f"This run leaves queue {queue} to worker {other.worker}, which serves it {where}.",
            key=queue,
        )

    def _start(self) -> None:
        (number,) = allocate_ids(self._machine, "worker", 1)
        # Passed here and not in its settings: more queues may be added before it has started.
        assign_queues(self._machine, number, self._served)
        settings = WorkerSettings(
            str(self._root.directory),
            self._machine.name,
            worker=number,
            cores=self._cores,
            stay=True,
            # When this run ends, jobs of another run would be requeued and executed twice.
            controller=self._controller,
            parent=os.getpid(),
        )
        command = start_command(save_settings(settings))
        self._started.add(number)
        # A session of its own: Ctrl-C is for Snakemake, which then ends the workers in order.
        self._running[number] = self._popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _revive(self) -> None:
        ended = [number for number, process in self._running.items() if process.poll() is not None]
        for number in ended:
            status = self._running.pop(number).returncode
            log = self._machine.worker(number).log
            self._deaths += 1
            reason = self._reason_of(number)
            if self._deaths > _RESTARTS:
                because = f" ({reason})" if reason else ""
                raise WorkerError(
                    f"local workers keep ending, {self._deaths} in a row without an ended job. "
                    f"The last one, worker {number}, ended with status {status}{because}; "
                    f"{where_log_is(log)}",
                    "Read that log. If there is none, type: kochi doctor",
                )
            what = f"left: {reason}" if reason else "died"
            self._logger.warning(
                f"Worker {number} {what}; its jobs are requeued, and a new worker is started; "
                f"{where_log_is(log)}"
            )
            self._next_look = 0.0  # the next look starts another worker

    def _reason_of(self, number: int) -> str:
        """The reason that a worker itself gave for leaving; "" if it could not."""
        with contextlib.suppress(OSError, KochiError):
            worker = find_worker(self._machine, number)
            return worker.reason if worker.state == "left" else ""
        return ""

    @property
    def go_on_alone(self) -> bool:
        return False

    def leave(self, is_needed: bool) -> None:
        """Nothing to do: local workers end with this process."""
        self.stop()

    def stop(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Drain the workers, then end those that do not leave; at once when it becomes urgent."""
        with self._lock:
            for process in self._running.values():
                process.terminate()
            deadline = time.monotonic() + self._seconds_to_leave()
            hastened = False
            while any(process.poll() is None for process in self._running.values()):
                if time.monotonic() > deadline:
                    self._kill()
                elif is_urgent() and not hastened:
                    hastened = True
                    # On a second signal a worker gives its jobs no grace.
                    for process in self._running.values():
                        process.terminate()
                time.sleep(0.02)
            self._running.clear()

    def _seconds_to_leave(self) -> float:
        if self._running:
            with contextlib.suppress(OSError):
                if not has_room(self._machine.directory):
                    return _GRACE_WITHOUT_ROOM
        return self._grace

    def _kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
