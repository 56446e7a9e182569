"""The life of one job on a worker, as its thread tells it: turn, log, process, leftovers, end."""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from humanfriendly.text import pluralize

from snakemake_kochi.base import clock, files
from snakemake_kochi.files import random_word, times_and_sizes
from snakemake_kochi.node_lock import HELD_VARIABLE, PAUSE, Wish, holder, release
from snakemake_kochi.own_pipeline import OwnPipeline
from snakemake_kochi.processes import (
    NONCE_VARIABLE,
    ProcessIdentity,
    send_signal,
    this_node,
)
from snakemake_kochi.tickets.names import Name
from snakemake_kochi.tickets.ticket import Ticket, now
from snakemake_kochi.tickets.watching import LOST
from snakemake_kochi.worker.node.capacity import OomCounts
from snakemake_kochi.worker.node.devices import Allotment
from snakemake_kochi.worker.runners import Exit
from snakemake_kochi.worker.supervisor import STOP_SIGNALS

if TYPE_CHECKING:
    from snakemake_kochi.worker.loop import Worker

_log = logging.getLogger(__name__)

_RETRY = 1.0  # seconds between two attempts to reach the filesystem
_LEFTOVER_GRACE = 1.0  # seconds from SIGTERM to SIGKILL, for what an ended job left
_LEFTOVER_PATIENCE = 10.0
_KILL_AGAIN = 0.1
_FIRST_LOOK = 0.005
# Seconds. A scheduler that ends a worker also signals the jobs' processes, and often first: a job
# that ends by such a signal waits so long for its worker to be told.
_STOP_WINDOW = 1.0

# How a job ends that has lost too many workers, for the reason of the last one, and what is said.
_GIVEN_UP = {
    "node failed": ("node", "begun {} times; the last node could not execute it: {}"),
    "out of time": (
        "timeout",
        "begun {} times; the time of its last worker ended before the job did; request longer "
        "allocations for the machine, and set the job's run time (resources: runtime)",
    ),
}

Stop = Literal["cancel", "requeue"]
Answer = TypeVar("Answer")


class StoppedError(Exception):
    """The job was told to end before it began."""


class Job:
    """One attempt; call it in a thread of its own. Others call `end` alone."""

    def __init__(self, worker: Worker, name: Name, ticket: Ticket) -> None:
        self.name = name
        self.ticket = ticket
        self.limit = ticket.resources.runtime_seconds
        self.began = clock.now()
        self.seconds = 0.0
        self.stop: Stop | None = None
        self._worker = worker
        self._mail = clock.mailbox()  # an Exit, or (stop, grace)
        self._process: ProcessIdentity | None = None
        self._exit: Exit | None = None
        self._expires: float | None = None
        self._out_of_memory: str | None = None
        self._has_pipeline = False  # it has succeeded, and still writes
        self._kill_at = math.inf
        self._timeout = ""  # why it took too long
        self._nonce = random_word(8)
        self._lock: int | None = None
        self._details: dict[str, Any] = {"node": this_node().host, "nonce": self._nonce}

    def end(self, stop: Stop, grace: float) -> None:
        """Have its processes end in `grace` seconds; a second call can only hasten that."""
        self._mail.put((stop, grace))

    def __call__(self) -> None:
        allotment: Allotment | None = None
        try:
            self._take_turn()
            log = self._repeated(self._open_log)
            try:
                allotment = self._worker.allot(self.ticket)
                self._execute(log, allotment)
            finally:
                files.close(log)
            state, why = self._judge()
        except StoppedError:
            state, why = ("cancelled" if self.stop == "cancel" else ""), None
        except OSError as error:
            if self._process is not None:
                raise  # the crash path ends it, and others get the ticket
            state, why = "", ("node failed", str(error))  # no process can be made here
        if allotment is not None:
            self._worker.give_back(allotment)
        if self._lock is not None:
            release(self._lock)
        self._worker.over(self, self._process is not None or bool(self.stop))
        self._tell(state, why)

    # ---- before

    def _take_turn(self) -> None:
        """Wait for the lock of the computer. Raises StoppedError, or OSError."""
        directory = self._worker.lock
        # A person's shell is idle most of the time, and may be open for days.
        if directory is None or "terminal" in self.ticket.labels:
            return
        where = self.ticket.labels.get("project", self.ticket.directory)
        job = f"job {self.name.run}.{self.name.job} ({self.ticket.name})"
        who = f"{job} of {where}, process {os.getpid()},"
        wish = Wish(directory, self.ticket.resources.exclusive, who)
        try:
            if (lock := wish.take()) is None:
                self._worker.tell_wait(self.name, f"{job} waits: {holder(directory)}")
                try:
                    while lock is None:
                        self._rest(PAUSE)
                        lock = wish.take()
                finally:
                    self._worker.tell_wait(self.name, "")
            self._lock = lock
        finally:
            wish.give_up()

    def _open_log(self) -> int:
        return files.open_end(self._worker.paths_of(self.name).log(self.name))

    def _repeated(self, action: Callable[[], Answer]) -> Answer:
        """Until the filesystem answers. Raises StoppedError."""
        while True:
            self._rest(0.0)
            try:
                return action()
            except OSError as error:
                _log.warning("job %s cannot begin yet: %s", self.name, error)
            self._hear(_RETRY)

    def _rest(self, seconds: float) -> None:
        """Raises StoppedError."""
        self._hear(seconds)
        if self.stop:
            raise StoppedError

    def _hear(self, seconds: float) -> None:
        """Take what others tell this job; wait for it so long."""
        mail = self._mail.get(seconds)
        if mail is None:
            return
        if isinstance(mail, Exit):
            self._exit = mail
            self.seconds = clock.now() - self.began
            self._details["ended"] = now()
        else:
            stop, grace = mail
            self._kill_at = min(self._kill_at, clock.now() + grace)
            if self.stop is not None:
                return
            if self._exit is None or self._has_pipeline:
                self.stop = stop
                self._signal(signal.SIGTERM)
            elif stop == "requeue" and self._exit.is_by(STOP_SIGNALS):
                self.stop = stop
            # Any other job that has ended has a result of its own.

    # ---- meanwhile

    def _execute(self, log: int, allotment: Allotment) -> None:
        """Until the last process of the job has ended. Raises OSError if none can be made."""
        environment = {
            **self._repeated(partial(self._worker.environment_of, self.name, self.ticket)),
            **allotment.environment,
            NONCE_VARIABLE: self._nonce,
        }
        if self._lock is not None:
            environment[HELD_VARIABLE] = this_node().host
        counts = self._worker.oom.counts()
        own = self.name, self.ticket, log, environment, allotment.pinned
        self._process, runner, skipped = self._worker.runners.start(
            *own, self._mail.put, self._rest, self._begin
        )
        self._details |= {"runner": runner, "skipped_runners": skipped}
        _log.info("job %s (%s) started", self.name, self.ticket.name)
        self._wait()
        self._explain_kill(counts)
        self._end_leftovers()
        self._settle()

    def _begin(self) -> None:
        """Just before the process is made: a full disk or a server may have taken long."""
        self._repeated(self._worker.require_life)
        self.began = clock.now()
        self._details["started"] = now()

    def _wait(self) -> None:
        expires = math.inf if self.limit is None else clock.now() + self.limit
        while self._exit is None:
            moment = clock.now()
            if moment >= expires and not self.stop and not self._timeout:
                self._time_out(f"ran for longer than its {pluralize(self.limit or 0, 'second')}")
                self._signal(signal.SIGTERM)
                self._kill_at = moment + self._worker.grace
            if moment >= self._kill_at:
                self._signal(signal.SIGKILL)
                self._kill_at = moment + _KILL_AGAIN
            is_told = self.stop or self._timeout
            self._hear(min(self._kill_at, math.inf if is_told else expires) - moment)
        self._expires = None if self.limit is None else expires

    def _time_out(self, why: str) -> None:
        self._timeout = why
        _log.info("job %s %s", self.name, why)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._worker.forks.signal(self._process, self._nonce, number)

    def _explain_kill(self, before: OomCounts) -> None:
        assert self._exit is not None
        # Now: later counts of the kernel do not concern this job.
        if not (self.stop or self._timeout or self._exit.is_success):
            self._out_of_memory = self._worker.oom.explain(before, self._exit)

    def _end_leftovers(self) -> None:
        """End what the job left behind: it could write to outputs that are reported as complete.

        What its own pipeline still writes is waited for, if it has succeeded.
        """
        give_up, kill_at, pause = math.inf, math.inf, _FIRST_LOOK
        pipeline: OwnPipeline | None = None
        while left := self._left():
            moment = clock.now()
            if self._is_success():
                if pipeline is None:
                    pipeline = self._pipeline()
                left = list(pipeline.look(left))
                if pipeline.failure:
                    self._time_out(pipeline.failure)
                if not left:
                    self._details["ended"] = now()
                    self.seconds = clock.now() - self.began
                    give_up = kill_at = math.inf
                    self._has_pipeline = True
                    self._hear(max(0.001, pipeline.due - moment))
                    continue
            if give_up == math.inf:
                give_up = moment + _LEFTOVER_PATIENCE
                kill_at = min(moment + _LEFTOVER_GRACE, self._kill_at)
                if moment < kill_at:
                    _log.info("job %s left processes behind; ending them", self.name)
                    send_signal(left, signal.SIGTERM)
            elif moment >= give_up:
                pids = ", ".join(str(process.pid) for process in left)
                _log.warning("job %s: processes %s cannot be ended", self.name, pids)
                return
            if moment >= kill_at:
                send_signal(left, signal.SIGKILL)
                kill_at = moment + _KILL_AGAIN
            self._hear(pause)
            pause = min(2 * pause, _KILL_AGAIN)
            kill_at = min(kill_at, self._kill_at)

    def _left(self) -> list[ProcessIdentity]:
        assert self._process is not None
        is_alone = partial(self._worker.is_alone, self)
        return self._worker.forks.left(self._process, self._nonce, is_alone)

    def _is_success(self) -> bool:
        return bool(self._exit and self._exit.is_success and not (self.stop or self._timeout))

    def _pipeline(self) -> OwnPipeline:
        ticket, log = self.ticket, self._worker.paths_of(self.name).log(self.name)
        assert self._process is not None
        return OwnPipeline(
            [os.path.join(ticket.directory, output) for output in ticket.outputs],
            [log, *(os.path.join(ticket.directory, path) for path in ticket.logs)],
            self._process.start,
            self._expires,
            partial(self._say, log),
        )

    def _say(self, log: str, text: str) -> None:
        _log.info("job %s: %s", self.name, text)
        with suppress(OSError), open(log, "a") as stream:
            stream.write(f"kochi: {text}\n")

    def _settle(self) -> None:
        """Wait whether the signal that ended the job was for its worker."""
        assert self._exit is not None
        until = clock.now() + _STOP_WINDOW
        while self._exit.is_by(STOP_SIGNALS) and not (self.stop or self._timeout):
            if (left := until - clock.now()) <= 0:
                return
            self._hear(left)

    # ---- after

    def _judge(self) -> tuple[str, tuple[str, str] | None]:
        """The state in which the job has ended; "" and a reason if another attempt is to come."""
        assert self._exit is not None
        self._details |= {
            "exit_status": self._exit.status,
            "signal": self._exit.signal,
            "cpu_seconds": self._exit.cpu_seconds,
            "peak_memory_mb": self._exit.peak_memory_mb,
        }
        if self.stop == "requeue":
            reason, detail = self._worker.why_requeued(self)
            if reason:
                return "", (reason, detail)
            self._timeout = detail
        if self.stop == "cancel":
            return "cancelled", None
        if self._timeout:
            self._details["detail"] = self._timeout
            return "timeout", None
        if self._out_of_memory is not None:
            asked = self.ticket.resources.memory_mb
            own = f"requested {asked} MiB" if asked else "requested no memory (mem_mb)"
            self._details["detail"] = f"{self._out_of_memory}; the job {own}"
            return "memory", None
        if self._exit.is_success:
            self._details["outputs"] = times_and_sizes(self.ticket.directory, self.ticket.outputs)
            return "success", None
        if fault := self._worker.fault_behind(self.ticket):
            return "", ("node failed", fault)
        return ("signal" if self._exit.signal is not None else "failed"), None

    def _tell(self, state: str, why: tuple[str, str] | None) -> None:
        """Have others know how it ended, for as long as that takes."""
        losses = int(why is not None and self._worker.is_loss(why[0]))
        if why is not None and self.name.losses + losses >= LOST:
            state, text = _GIVEN_UP[why[0]]
            self._details["detail"] = text.format(LOST, why[1])
        if state:
            _log.info("job %s (%s): %s", self.name, self.ticket.name, state)
            if not self._worker.finish(self.name, state, self._details):
                _log.warning("job %s: too late, others have its ticket", self.name)
            return
        if why is not None:
            self._details |= {"reason": why[0], "detail": why[1]}
        _log.info("job %s goes back to its queue: %s", self.name, why or "not begun")
        self._worker.put_back(self.name, None if why is None else self._details, losses)
