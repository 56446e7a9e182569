"""The worker supervisor: it leaves no process of a job behind, however its worker ends.

It is the parent process of the worker. A killed worker cannot end processes that its jobs left in
sessions of their own; these processes become children of the supervisor. The supervisor ends a
worker that hangs before others requeue its tickets. It sleeps, and does so little that it is
unlikely to be killed. If it is killed, the worker and the main processes of the jobs die with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from snakemake_kochi.backoff import wait_until
from snakemake_kochi.errors import DamagedFileError, KochiError, WorkerError
from snakemake_kochi.next.worker.job_process import end_with_parent
from snakemake_kochi.parent_death import adopt_orphans
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity, child_pids
from snakemake_kochi.queue.heartbeat import SUPERVISOR_PATIENCE
from snakemake_kochi.queue.observer import Observer
from snakemake_kochi.worker.output import log_to_file
from snakemake_kochi.worker.signals import (
    STOP_SIGNALS,
    Wake,
    forward_stop,
    make_wake,
)

_log = logging.getLogger(__name__)

# In heartbeats of the worker, which are rare while it rests: the supervisor has ended its worker
# two heartbeats before others may requeue its jobs, also if it sees late that the rest is over.
_LOOK_INTERVAL = 1
# Seconds.
_LEFTOVER_PATIENCE = 30.0
_KILL_PAUSE = 0.001
_LONGEST_KILL_PAUSE = 0.1
_FAILURE = 1


def run_supervised(
    machine: MachinePaths, worker: int, heartbeat: float, work: Callable[[Wake], int]
) -> int:
    """Call `work` in a child; return its status when all its processes are gone.

    `work` gets the pipe for its `Signals`, to which the calling process forwards requests to stop.
    A KochiError of the child is raised here as a WorkerError. If a signal ends the child, the same
    signal ends the calling process. `heartbeat`: seconds between two signs of life of the worker.
    The supervisor kills the worker when they stop.
    """
    wake = make_wake()
    told, tell = os.pipe()
    adopt_orphans()
    _flush()  # otherwise both processes would write the buffered content
    gc.freeze()  # otherwise the collector would copy memory that both processes can share
    supervisor = os.getpid()
    with _Forwarder(wake) as forwarder:
        try:
            pid = os.fork()
        except OSError as error:
            raise WorkerError(
                f"worker {worker} on machine {machine.name} cannot be started: {error}",
                "You may have too many processes on this node, or its memory may be full: start "
                "fewer workers there.\nTo see the limit of processes, type: ulimit -u",
            ) from error
        if pid == 0:
            os.close(told)
            _become_worker(supervisor, forwarder, tell, lambda: work(wake))
        os.close(tell)
        ended = _Supervisor(machine, worker, heartbeat, pid).supervise(forwarder)
    message = os.read(told, 1 << 20)
    for descriptor in (told, *wake):
        os.close(descriptor)
    if message:
        raise WorkerError(*json.loads(message))
    return _end_alike(ended)


class _Forwarder:
    """While entered, forwards the stop signals of this process to the worker.

    Forwarding begins with the first call of `wait`; until then the signals are blocked.
    """

    def __init__(self, wake: Wake) -> None:
        self._wake = wake
        self._own = make_wake()
        self._poll = select.poll()
        self._poll.register(self._own.read, select.POLLIN)
        self._is_open = False
        self.forwarded = list(STOP_SIGNALS)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            self.forwarded.remove(signal.SIGHUP)  # under nohup a closed terminal changes nothing
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Forwarder:
        # A process that ignores SIGCHLD does not learn when its children end.
        self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *self.forwarded})
        return self

    def wait(self, timeout: float) -> None:
        """Return when a signal arrives or a child ends, at the latest after `timeout` seconds."""
        # Not sigtimedwait: if the process is stopped and continued, Python's sigtimedwait returns
        # signals that were never sent.
        if not self._is_open:
            self._is_open = True
            self._wakeup = signal.set_wakeup_fd(self._own.write, warn_on_full_buffer=False)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            for number in self.forwarded:
                self._previous[number] = signal.signal(number, self._forward)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        self._poll.poll(timeout * 1000)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._own.read, 4096):
                pass

    def _forward(self, number: int, frame: FrameType | None) -> None:
        forward_stop(self._wake, number)

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
        for descriptor in self._own:
            os.close(descriptor)


def _become_worker(
    supervisor: int, forwarder: _Forwarder, tell: int, work: Callable[[], int]
) -> NoReturn:
    """Continue as the child. The function must not return or raise into the code of the parent."""
    status = _FAILURE
    try:
        end_with_parent()
        if os.getppid() == supervisor:
            # Requests to stop stay blocked until the worker can obey them. Otherwise a request just
            # after the registration would leave behind a worker that seems dead.
            signal.pthread_sigmask(signal.SIG_SETMASK, forwarder.mask.union(forwarder.forwarded))
            status = work()
    except KochiError as error:
        os.write(tell, json.dumps([error.message, error.hint]).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed or missing
            stream.flush()


class _Supervisor:
    def __init__(self, machine: MachinePaths, worker: int, heartbeat: float, pid: int) -> None:
        self._machine = machine
        self._worker = worker
        self._heartbeat = heartbeat
        self._pid = pid
        self._observer = Observer()

    def supervise(self, forwarder: _Forwarder) -> os.waitid_result:
        """Wait for the worker's end, end its leftover processes, and return how it ended."""
        next_look = time.monotonic()
        while True:
            forwarder.wait(max(0.0, next_look - time.monotonic()))
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._end_leftovers()
                return ended
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + self._look()

    def _look(self) -> float:
        """Kill a worker that gives no visible sign of life; return the seconds to the next look.

        When other nodes presume the worker dead, none of its processes may be left here.
        """
        try:
            state, still = self._observer.glance(self._machine, self._worker)
        except (OSError, DamagedFileError):
            # The file does not exist yet, or the filesystem has a fault.
            return _LOOK_INTERVAL * self._heartbeat
        own = ProcessIdentity.of(self._pid)
        interval = max(self._heartbeat, state.heartbeat_interval)
        if state.process == own and still >= SUPERVISOR_PATIENCE * interval:
            self._say(f"no sign of life for {still:.0f} seconds: killing the worker and its jobs")
            os.kill(self._pid, signal.SIGKILL)
        return _LOOK_INTERVAL * interval

    def _end_leftovers(self) -> None:
        """Kill (SIGKILL) the descendants: orphaned descendants become children of this process."""
        # This uses no library that must be loaded first: the worker may have been killed because
        # the filesystem with the programs does not answer.
        left: list[int] = []

        def are_ended() -> bool:
            nonlocal left
            left = _kill_children()
            return not left

        if not wait_until(are_ended, _LEFTOVER_PATIENCE, _KILL_PAUSE, _LONGEST_KILL_PAUSE):
            pids = ", ".join(map(str, left))
            self._say(f"processes {pids} of its jobs cannot be ended")

    def _say(self, message: str) -> None:
        # The supervisor opens the log only for this line, because the log belongs to the worker.
        with contextlib.suppress(OSError), log_to_file(self._machine, self._worker):
            _log.warning("the supervisor of worker %d: %s", self._worker, message)


def _kill_children() -> list[int]:
    """Reap the children that have ended, and kill the others; return the others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    children = child_pids()
    for pid in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return children


def _end_alike(ended: os.waitid_result) -> int:
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status
    number = ended.si_status
    # One core file is enough, that of the worker.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # the first process of a pid namespace survives its signal
