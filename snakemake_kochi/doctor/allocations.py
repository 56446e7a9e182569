"""Allocations of one core, with a worker in each, for the duration of a trial."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import humanfriendly

from snakemake_kochi.allocation.ending import end_allocations
from snakemake_kochi.allocation.failures import where_log_is
from snakemake_kochi.allocation.request import WorkerCommand
from snakemake_kochi.allocation.workers import make_scheduler
from snakemake_kochi.backoff import Backoff, wait_until
from snakemake_kochi.doctor.report import Finding
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import last_lines, make_directory, write_atomically
from snakemake_kochi.location import Location
from snakemake_kochi.processes import Node
from snakemake_kochi.queue.by_hand import order_release
from snakemake_kochi.queue.views import WorkerView, read_worker, shared_workers
from snakemake_kochi.schedulers.commands import WaitReasons
from snakemake_kochi.schedulers.interface import Allocation, RefusedError, UnreachableError, Wanted
from snakemake_kochi.tickets.hand import remove_queue
from snakemake_kochi.worker.settings import WorkerSettings

# Seconds between two questions to the scheduler, at first and at most; between two looks for a
# worker.
_QUESTION, _LONGEST_QUESTION = 2.0, 10.0
_LOOK = 0.1
# Seconds for the trials themselves, and for the workers to leave after the last one.
_TRIALS = 900.0
_LEAVE_PATIENCE = 20.0
# The factor by which a worker stays longer without a job than the wait for the next one.
_LONGER = 1.2


@dataclass(frozen=True)
class TrialWorker:
    """The only worker of `queue`.

    `nodes`: the nodes of its allocation, in the scheduler's words, "" if it does not report them.
    `said`: how the worker was obtained.
    """

    node: Node
    queue: str
    nodes: str
    said: str


class TrialAllocations:
    """A context that cancels all allocations at its end.

    It leaves only the records of their jobs and workers, and the logs of the failed ones. The
    workers of a killed process leave by themselves, soon after `patience` seconds.
    """

    def __init__(self, location: Location, patience: float, tell: Callable[[str], None]) -> None:
        """`patience`: seconds for each allocation to begin; `tell`: prints messages meanwhile.

        Raises KochiError for a machine that has no way to a compute node.
        """
        machine = location.machine
        if not machine.has_allocations:
            raise KochiError(
                f"machine {machine.name} has neither a scheduler nor an alloc_script: there is no "
                "way to a compute node",
                "Name a machine that has one with -m; or start a worker on another node, and "
                "type here: kochi doctor -q QUEUE",
            )
        self._location, self._paths = location, location.machine_paths
        self._patience, self._tell = patience, tell
        self._log: Any = SimpleNamespace(info=tell, warning=tell, error=tell)
        self._name = location.unique_name("doctor")
        machine = replace(machine, allocation=replace(machine.allocation, nodes=1))
        self._scheduler = make_scheduler(machine, f"kochi-{self._name}")
        self._reasons = WaitReasons()
        self._queues: list[str] = []
        self._ids: list[str] = []
        self._files: list[Path] = []  # to be removed

    def __enter__(self) -> TrialAllocations:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._queues:
            return
        workers = [each for queue in self._queues for each in self._workers(queue)]
        for each in workers:  # even if no scheduler can end them
            with contextlib.suppress(OSError):
                order_release(self._paths, each.worker, "now")
        there = {each.allocation for each in workers if each.allocation is not None}
        end_allocations(self._scheduler, self._log, lambda: False, with_worker=there)
        wait_until(lambda: self._have_left(workers), _LEAVE_PATIENCE, _LOOK)
        self._remove_queues()
        for file in self._files:
            file.unlink(missing_ok=True)

    def _have_left(self, workers: Sequence[WorkerView]) -> bool:
        layout = self._paths.layout
        found = (read_worker(layout, each.worker) for each in workers)
        return all(each is None or each.is_gone for each in found)

    def _remove_queues(self) -> None:
        """With the jobs of an interrupted test."""
        for queue in self._queues:
            remove_queue(self._paths.layout, queue)

    def note(self, is_fit: bool) -> None:
        """Note what the tests between the nodes have shown, for the next `kochi doctor`."""
        if is_fit:
            write_atomically(self._paths.tested, b"")
        else:
            self._paths.tested.unlink(missing_ok=True)

    def get(self, not_on: str = "") -> TrialWorker | Finding:
        """One more worker, once it has come, or the outcome of the failed attempt.

        It is on none of these nodes, if the scheduler accepts such a list. The outcome is "not
        tested" if no worker can be had now, or if the only node is excluded.
        """
        try:
            return self._get(not_on)
        except KochiError as error:
            said = " ".join(error.message.split())
            if not_on and isinstance(error, RefusedError):
                said = f"not tested, without a second node: {said}"
                return Finding("warning", said, error.hint or "")
            return Finding("failed", said, error.hint or "")

    def _get(self, not_on: str) -> TrialWorker | Finding:
        queue = f"{self._name}-{len(self._queues)}"
        self._location.prepare_machine()
        longest = self._scheduler.limits().seconds
        self._queues.append(queue)
        make_directory(self._paths.allocations)
        settings = WorkerSettings(
            str(self._location.root.directory),
            self._paths.name,
            (queue,),
            stay=True,
            # The first worker waits for the second one.
            idle_timeout=_LONGER * self._patience,
        )
        self._files.append(settings.path)
        worker = WorkerCommand(settings, self._location.machine.load_env_on_machine)
        seconds = min(self._patience + _TRIALS, longest or float("inf"))
        wanted = Wanted(
            1,
            seconds=seconds,
            excluded=(not_on,) if not_on else (),
            purpose=self._location.purpose("doctor"),
        )
        (id,) = self._scheduler.submit(wanted, worker, self._ids)
        self._ids.append(id)
        log = worker.log(id)
        logs = [log, log.with_suffix(".out"), log.with_suffix(".sh")]
        self._files += logs
        self._tell(f"Requested allocation {id}; waiting for its worker.")
        reason = "it has not begun"
        pauses = Backoff(_QUESTION, _LONGEST_QUESTION)
        began = time.monotonic()
        while (waited := time.monotonic() - began) <= self._patience:
            for state in self._workers(queue):
                took = humanfriendly.format_timespan(waited)
                said = f"a worker started in {state.allocation}, on {state.node.host}, after {took}"
                return TrialWorker(state.node, queue, self._find(id).nodes, said)
            if pauses.is_due:
                pauses.failed()
                allocation = self._find(id)
                reason = allocation.reason or reason
                for notice in self._reasons.lines([allocation]):
                    self._tell(notice)
                if allocation.state == "ended":
                    self._files = [file for file in self._files if file not in logs]
                    why = "; ".join(filter(None, [allocation.reason, *last_lines(log, 2)]))
                    said = f"allocation {id} ended before its worker started"
                    where = where_log_is(log)
                    raise KochiError(f"{said}{why and ': '}{why}", f"I{where[1:]}.")
            time.sleep(_LOOK)
        with contextlib.suppress(KochiError):
            self._scheduler.cancel([id])
        said = f"no worker started in allocation {id} within {self._patience:.0f} seconds: {reason}"
        advice = "Try again later, or wait for longer: --wait 2h"
        return Finding("warning", f"not tested: {said}", advice)

    def _workers(self, queue: str) -> list[WorkerView]:
        with contextlib.suppress(OSError):
            return shared_workers(self._paths, queue)
        return []  # not known now

    def _find(self, id: str) -> Allocation:
        """The state of an allocation; pending if it is not known."""
        try:
            found = self._scheduler.find()
        except UnreachableError as error:
            return Allocation(id, "pending", f"the scheduler does not answer: {error.message}")
        pending = Allocation(id, "pending")
        return pending if found is None else found.get(id, replace(pending, state="ended"))
