"""Allocations of one core with a worker in each, for the measurements of `kochi doctor`."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.allocation.ending import end_allocations
from snakemake_kochi.allocation.tracker import WaitReasons
from snakemake_kochi.allocation.worker_command import WorkerCommand
from snakemake_kochi.allocation.workers import make_scheduler
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory
from snakemake_kochi.location import Location
from snakemake_kochi.notices import Notices
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Queue, WorkerState, cancel, shared_workers
from snakemake_kochi.queue.controllers import private_queue, remove_private_queues
from snakemake_kochi.schedulers.interface import Allocation, Scheduler, UnreachableError
from snakemake_kochi.schedulers.request import Wanted
from snakemake_kochi.worker.settings import WorkerSettings

# Seconds between two questions to the scheduler, the first pause and the longest, and between two
# looks for a worker.
_QUESTION, _LATER_QUESTION = 2.0, 10.0
_LOOK = 0.1
# Seconds for the measurements themselves, and for the workers to leave after the last one.
_TRIALS = 900.0
_LEAVE_PATIENCE = 20.0
# An idle worker stays longer by this factor than the next one is waited for.
_LONGER = 1.2
_LOG_BYTES, _LOG_LINES = 4000, 2


class LateError(KochiError):
    """An allocation did not begin within the given time."""


@dataclass(frozen=True)
class TrialWorker:
    """A worker that alone serves `queue`, for tickets of the `controller`; `nodes`: where its
    allocation is, in the scheduler's words, "" if it says nothing; `seconds`: how long it took to
    come."""

    state: WorkerState
    queue: str
    controller: str
    nodes: str
    seconds: float


class TrialAllocations:
    """A context: at its end it cancels all allocations, and leaves nothing of them but the records
    of their jobs and workers, and the logs of those that failed.

    If the process is killed, its workers leave by themselves, soon after `patience` seconds.
    """

    def __init__(self, location: Location, patience: float, tell: Callable[[str], None]) -> None:
        """`patience`: seconds for each allocation to begin; `tell` prints what a person should know
        meanwhile. Raises KochiError for a machine without a way to a compute node."""
        if not location.machine.has_allocations:
            raise KochiError(
                f"machine {location.machine.name} has neither a scheduler nor an alloc_script: "
                "there is no way to a compute node",
                "Name the machine that has one with -m; or start a worker on another node, and "
                "type here: kochi doctor -q QUEUE",
            )
        self._location = location
        self._patience = patience
        self._tell = tell
        self._paths: MachinePaths = location.machine_paths
        self._controller = f"doctor-{secrets.token_hex(4)}"
        settings = replace(location.machine.allocation, nodes=1)
        machine = replace(location.machine, allocation=settings)
        self._scheduler: Scheduler = make_scheduler(machine, f"kochi-{self._controller}")
        self._reasons = WaitReasons()
        self._notices = Notices(_Log(tell))
        self._has_requested = False
        self._queues: list[str] = []
        self._ids: list[str] = []
        self._settings: list[Path] = []
        self._failed: list[str] = []

    def __enter__(self) -> TrialAllocations:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._has_requested:
            return
        # Their workers see that, also where no scheduler can end them.
        with contextlib.suppress(OSError):
            os.rmdir(self._paths.controller(self._controller).directory)
        end_allocations(self._scheduler, _Log(self._tell), lambda: False)
        deadline = time.monotonic() + _LEAVE_PATIENCE
        while any(map(self._workers, self._queues)) and time.monotonic() < deadline:
            time.sleep(_LOOK)
        # Those of a test that was interrupted.
        for queue in map(partial(Queue, self._paths), self._queues):
            for job in queue.jobs():
                cancel(self._paths, job.job)
        remove_private_queues(self._paths, self._controller)
        for id in set(self._ids) - set(self._failed):
            log = self._paths.allocation_log(self._controller, id)
            for path in (log, log.with_suffix(".out"), log.with_suffix(".sh")):
                path.unlink(missing_ok=True)
        for path in self._settings:
            path.unlink(missing_ok=True)

    def get(self, not_on: Sequence[str] = ()) -> TrialWorker:
        """Request one more worker, on none of these nodes if the scheduler can exclude them, and
        wait until it is there.

        Raises RefusedError, or UnreachableError; LateError; and KochiError where its allocation
        ended before it came.
        """
        queue = f"{private_queue(self._controller)}-{len(self._queues)}"
        self._location.prepare_machine()
        longest = self._scheduler.limits().seconds
        # From now on there may be something to cancel.
        self._has_requested = True
        self._queues.append(queue)
        make_directory(self._paths.allocations)
        make_directory(self._paths.controller(self._controller).directory)
        settings = WorkerSettings(
            str(self._location.root.directory),
            self._paths.name,
            (queue,),
            stay=True,
            # The first one waits for the second one.
            idle_timeout=_LONGER * self._patience,
            controller=self._controller,
        )
        self._settings.append(settings.path)
        worker = WorkerCommand(settings, self._location.machine.load_env_on_machine)
        seconds = min(self._patience + _TRIALS, longest or float("inf"))
        wanted = Wanted(1, seconds=seconds, excluded=tuple(filter(None, not_on)))
        (id,) = self._scheduler.submit(wanted, worker, self._ids)
        self._ids.append(id)
        self._tell(f"Requested allocation {id}; waiting for its worker.")
        return self._wait(id, queue)

    def _workers(self, queue: str) -> list[WorkerState]:
        with contextlib.suppress(OSError):
            return shared_workers(self._paths, queue, self._controller)
        return []  # not known now

    def _wait(self, id: str, queue: str) -> TrialWorker:
        began = time.monotonic()
        question = 0.0
        reason = "it has not begun"
        while True:
            for worker in self._workers(queue):
                seconds = time.monotonic() - began
                allocation = self._find(id)
                nodes = "" if allocation is None else allocation.nodes
                return TrialWorker(worker, queue, self._controller, nodes, seconds)
            waited = time.monotonic() - began
            if waited >= question:
                question = waited + min(max(_QUESTION, waited / 10), _LATER_QUESTION)
                allocation = self._find(id)
                if allocation is not None:
                    reason = self._check(allocation) or reason
            if waited > self._patience:
                with contextlib.suppress(KochiError):
                    self._scheduler.cancel([id])
                raise LateError(
                    f"no worker has come in allocation {id} for {self._patience:.0f} seconds: "
                    f"{reason}"
                )
            time.sleep(_LOOK)

    def _find(self, id: str) -> Allocation | None:
        """Its state; None where that is not known."""
        try:
            found = self._scheduler.find()
        except UnreachableError as error:
            self._notices.info(
                f"The scheduler gives no answer, and is asked again: {error.message}"
            )
            return None
        return None if found is None else found.get(id, Allocation(id, "ended"))

    def _check(self, allocation: Allocation) -> str:
        """Why it waits, which a person is told. Raises KochiError when it has ended."""
        if allocation.state != "ended":
            for notice in self._reasons.lines([allocation]):
                self._tell(notice)
            return allocation.reason
        self._failed.append(allocation.id)
        log = self._paths.allocation_log(self._controller, allocation.id)
        why = [allocation.reason]
        with contextlib.suppress(OSError):
            text = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
            why += text.strip().splitlines()[-_LOG_LINES:]
        said = "; ".join(filter(None, why))
        raise KochiError(
            f"allocation {allocation.id} ended before its worker came{': ' if said else ''}{said}",
            f"See its log: {log}",
        )


class _Log(LoggerExecutorInterface):
    """The logger of a run, for what needs one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def info(self, msg: str) -> None:
        self._tell(msg)

    def warning(self, msg: str) -> None:
        self._tell(msg)

    def error(self, msg: str) -> None:
        self._tell(msg)

    def debug(self, msg: str) -> None:
        """Not for people."""
