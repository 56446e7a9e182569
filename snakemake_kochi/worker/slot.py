"""One job in a worker: from its start to the end of its last process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from humanfriendly.text import pluralize

from snakemake_kochi.files import answered
from snakemake_kochi.own_pipeline import OwnPipeline
from snakemake_kochi.processes import ProcessIdentity, find_job_processes, send_signal
from snakemake_kochi.queue.attempt_file import AttemptFile
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.result import Reason, Result, UncountedReason
from snakemake_kochi.queue.ticket import Ticket, now
from snakemake_kochi.worker.node.devices import Allotment
from snakemake_kochi.worker.runners.interface import Child, Exit, Usage
from snakemake_kochi.worker.signals import STOP_SIGNALS

_log = logging.getLogger(__name__)

# Seconds. Processes that an ended job left running get less time than a stopped job.
_LEFTOVER_GRACE = 1.0
_KILL_AGAIN = 0.1
_LEFTOVER_PATIENCE = 10.0

# A scheduler that ends a worker also signals the processes of its jobs, and often signals them
# first. A job that ends by such a signal gets a result of its own only after so many seconds.
_STOP_WINDOW = 1.0
_STOP_STATUSES = frozenset(128 + number for number in STOP_SIGNALS)  # as in the shell

Stop = Literal["cancel", "requeue", "timeout"]


class Slot:
    """One running job.

    It ends the job in steps, so that the worker's loop never waits: call `advance` after each
    wake-up, at the latest at `next_due`.
    """

    def __init__(
        self,
        claim: Claim,
        child: Child,
        file: AttemptFile,
        log: Path,
        offset: int,
        allotment: Allotment,
        explain_kill: Callable[[Exit], str | None],
    ) -> None:
        """Follow a started job; its run time counts from now.

        `file`: that of the attempt, open until the end is published. `offset`: where the output of
        this attempt begins in the log, in bytes. `allotment`: the job's devices. `explain_kill`:
        returns why the kernel killed the job, if it did so because memory ran out.
        """
        self.claim = claim
        self.file = file
        self.started = file.started
        self.log = log
        self.offset = offset
        self.allotment: Allotment | None = allotment
        self.stop: Stop | None = None
        self.is_being_published = False  # in the background
        self.why_uncounted: tuple[UncountedReason, str] | None = None  # reason and detail
        self.limit = claim.ticket.resources.runtime_seconds
        self._began = time.monotonic()
        self._expires = None if self.limit is None else self._began + self.limit
        self._next_signal: float | None = None  # when to signal its processes again
        self._publish_again: float | None = None  # when to publish again after a failure
        self._why_timeout = f"ran for longer than its {pluralize(self.limit or 0, 'second')}"
        self._explain_kill = explain_kill
        self._out_of_memory: str | None = None
        self._child = child
        self._exit: Exit | None = None
        self._usage: Usage | None = None
        self._ended: str | None = None
        self._ended_at = 0.0
        self._give_up: float | None = None
        self._pipeline: OwnPipeline | None = None  # of a success that left processes
        self._unended: Sequence[ProcessIdentity] = ()  # given up: no signal has ended them
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether the main process has ended, and no other one that a signal can end is left."""
        return self._is_over

    @property
    def is_held_up(self) -> bool:
        """Whether the job is not to be counted, and a process of it is still alive that no signal
        ends, in a call that hangs perhaps. Then no other attempt may begin on this node."""
        return self.why_uncounted is not None and any(each.is_alive() for each in self._unended)

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def seconds(self) -> float:
        """Seconds from the job's start to its end, or until now."""
        return (time.monotonic() if self._exit is None else self._ended_at) - self._began

    @property
    def is_overdue(self) -> bool:
        """Whether the job's run time is over and the job has not been told to end."""
        expires = self._next_expiry
        return expires is not None and time.monotonic() >= expires

    @property
    def next_due(self) -> float | None:
        """When to call `advance` at the latest, in monotonic seconds; None: nothing is due."""
        if self._is_over:
            return None if self.is_being_published else self._publish_again
        pipeline = None if self._pipeline is None or self.stop else self._pipeline.due
        moments = (self._next_signal, self._next_expiry, self._settles, pipeline)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def _next_expiry(self) -> float | None:
        return self._expires if self.stop is None and self._exit is None else None

    @property
    def _settles(self) -> float | None:
        """Until when the end of a job by a stop signal is undecided, in monotonic seconds.

        The same signal may have ended the job together with its worker. None for any other job.
        """
        end = self._exit
        if self.stop is not None or self._is_over or end is None:
            return None
        was_told = end.signal in STOP_SIGNALS or end.status in _STOP_STATUSES
        return self._ended_at + _STOP_WINDOW if was_told else None

    def end(self, stop: Stop, grace: float) -> None:
        """Tell all processes of the job to end (SIGTERM), and kill them after `grace` seconds.

        Changes nothing for a job that has ended by itself and therefore has its own result, if its
        pipeline has ended, too. A second call can only hasten the end.
        """
        if self.poll() is not None and not self._is_pipeline_alive:
            if stop == "requeue" and self._settles is not None:
                self.stop = stop
            return
        if self.stop is None:
            self.stop = stop
            self._signal(signal.SIGTERM)
        due = time.monotonic() + grace
        self._next_signal = due if self._next_signal is None else min(due, self._next_signal)

    def time_out(self, why: str) -> None:
        """Count a job that was about to be requeued as a job that took too long."""
        self.stop, self._why_timeout = "timeout", why

    def kill(self) -> None:
        """Kill (SIGKILL) all processes of the job at once. Changes nothing for an ended job."""
        if self.poll() is None or self._is_pipeline_alive:
            self.stop = "requeue"
            self._signal(signal.SIGKILL)
            self._next_signal = time.monotonic()

    def publish_again_in(self, seconds: float) -> None:
        """Have `advance` report the job's end again after `seconds`: publishing it has failed."""
        self._publish_again = time.monotonic() + seconds

    def poll(self) -> Exit | None:
        """How the main process ended; None while it runs."""
        if self._exit is None:
            self._exit = self._child.poll()
            if self._exit is not None:
                self._ended = now()
                self._ended_at = time.monotonic()
                # Ask now: later counts of the kernel do not concern this job.
                if self.stop is None and self._exit != Exit(0, None):
                    self._out_of_memory = self._explain_kill(self._exit)
        return self._exit

    def advance(self, orphans: Sequence[ProcessIdentity], is_alone: bool) -> bool:
        """Continue to end the job; return whether its end must be published now.

        That is the case when its last process is gone and reaped. `orphans`: the worker's children
        that are not the main process of a job, listed after the last `poll` or `end`. If there are
        none, no process of this job is left, and no search is needed. If the job `is_alone` in the
        worker, all orphans belong to it, even if it has tried to hide them.
        """
        moment = time.monotonic()
        if self._is_over:
            is_due = self._publish_again is None or moment >= self._publish_again
            return is_due and not self.is_being_published
        # Do not poll again: if the job ended just now, `orphans` lacks the processes that it left.
        if self._exit is None:
            if self._next_signal is not None and moment >= self._next_signal:
                self._signal(signal.SIGKILL)
                self._next_signal = moment + _KILL_AGAIN
            return False
        if orphans and self._end_leftovers(moment, orphans if is_alone else ()):
            return False
        if self._settles is not None and moment < self._settles:
            return False
        self._usage = self._child.reap()
        self._is_over = True
        return True

    def _end_leftovers(self, moment: float, certain: Sequence[ProcessIdentity]) -> bool:
        """End the processes that the job left behind; return whether some are still alive.

        They must not outlive the result: they could write to outputs that are reported as complete.
        """
        is_success = self.stop is None and self._exit == Exit(0, None)
        # If a signal is due and nothing is done, the loop turns again and again.
        is_signal_due = self._next_signal is not None and moment >= self._next_signal
        if is_success and self._pipeline and moment < self._pipeline.due and not is_signal_due:
            return True
        found = find_job_processes(self._child.process, self.claim.nonce)
        left: Sequence[ProcessIdentity] = sorted({*found, *certain}, key=lambda each: each.pid)
        if is_success and left:
            left = self._without_pipeline(left)
            if not left:
                self._give_up = self._next_signal = None
                return True
        if not left:
            return False
        if self._give_up is None:
            self._give_up = moment + _LEFTOVER_PATIENCE
            if self._next_signal is None:
                _log.info("job %d left processes behind; ending them", self.claim.ticket.job)
                send_signal(left, signal.SIGTERM)
                self._next_signal = moment + _LEFTOVER_GRACE
                return True
        if moment >= self._give_up:
            pids = ", ".join(str(process.pid) for process in left)
            _log.warning("job %d: processes %s cannot be ended", self.claim.ticket.job, pids)
            self._unended = left
            return self._is_pipeline_alive
        if self._next_signal is not None and moment >= self._next_signal:
            send_signal(left, signal.SIGKILL)
            self._next_signal = moment + _KILL_AGAIN
        return True

    @property
    def _is_pipeline_alive(self) -> bool:
        return self._pipeline is not None and self._pipeline.is_waiting and not self._is_over

    def _without_pipeline(self, left: Sequence[ProcessIdentity]) -> Sequence[ProcessIdentity]:
        """Those of the processes left that must end now, and not when they have written all."""
        if self._pipeline is None:
            ticket = self.claim.ticket
            self._pipeline = OwnPipeline(
                [os.path.join(ticket.directory, output) for output in ticket.outputs],
                [str(self.log), *(os.path.join(ticket.directory, log) for log in ticket.logs)],
                self._child.process.start,
                self._expires,
                self._say,
            )
        left = self._pipeline.look(left)
        if self._pipeline.failure:
            self.stop, self._why_timeout = "timeout", self._pipeline.failure
        if self._pipeline.is_waiting or self._pipeline.failure:
            self._ended, self._ended_at = now(), time.monotonic()
        return left

    def _say(self, text: str) -> None:
        """Tell the user something in the job's log."""
        _log.info("job %d: %s", self.claim.ticket.job, text)
        with contextlib.suppress(OSError), self.log.open("a") as stream:
            stream.write(f"kochi: {text}\n")

    def _signal(self, number: signal.Signals) -> None:
        send_signal(find_job_processes(self._child.process, self.claim.nonce), number)

    def result(self, node: str) -> Result:
        """The result to publish. Call it only after `advance` has returned true."""
        assert self._exit is not None and self._ended is not None
        ticket = self.claim.ticket
        reason: Reason = "success"
        detail = ""
        if self.stop == "cancel":
            reason = "cancelled"
        elif self.stop == "timeout":
            reason = "timeout"
            detail = self._why_timeout
        elif self._out_of_memory is not None:
            asked = ticket.resources.memory_mb
            own = f"requested {asked} MiB" if asked else "requested no memory (mem_mb)"
            reason, detail = "out of memory", f"{self._out_of_memory}; the job {own}"
        elif self._exit.signal is not None:
            reason = "signal"
        elif self._exit.status != 0:
            reason = "failed"
        return Result(
            job=ticket.job,
            attempt=ticket.attempt,
            nonce=self.claim.nonce,
            worker=self.claim.worker,
            node=node,
            reason=reason,
            exit_status=self._exit.status,
            signal=self._exit.signal,
            started=self.started,
            ended=self._ended,
            log=str(self.log),
            detail=detail,
            outputs=_seen_outputs(ticket) if reason == "success" else {},
            runner=self._child.runner,
            cpu_seconds=None if self._usage is None else round(self._usage.cpu_seconds, 3),
            peak_memory_mb=None if self._usage is None else self._usage.peak_memory_mb,
        )


def _seen_outputs(ticket: Ticket) -> dict[str, tuple[int, int]]:
    """The modification time (in nanoseconds) and the size of each output that exists.

    They tell later, without reading the file, whether it is still the output of this job.
    """
    seen = {}
    for name in ticket.outputs:
        with contextlib.suppress(OSError):
            found = answered(Path(ticket.directory, name).stat)
            seen[name] = (found.st_mtime_ns, found.st_size)
    return seen
