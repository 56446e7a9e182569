"""The process above a worker: whatever way the worker ends, nothing of its jobs outlives it.

A killed worker cannot end processes that its jobs left in sessions of their own; they become
children of its supervisor. A worker that hangs is ended before others requeue its tickets. The
supervisor sleeps, and does so little that nothing is likely to kill it; if it is killed, the worker
dies with it, and so do the main processes of the jobs.
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

from snakemake_kochi.errors import DamagedFileError, KochiError, WorkerError
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.observation import SUPERVISOR_PATIENCE, Observer
from snakemake_kochi.queue.processes import ProcessIdentity, child_pids
from snakemake_kochi.worker.log import log_to_file
from snakemake_kochi.worker.signals import (
    STOP_SIGNALS,
    Wake,
    adopt_orphans,
    die_with_parent,
    forward_stop,
    make_wake,
)

_log = logging.getLogger(__name__)

# In heartbeats: its worker has ended two of them before others may requeue its jobs.
_LOOK_INTERVAL = 1
_LEFTOVER_PATIENCE = 30.0  # seconds
_FAILURE = 1


def run_kept(
    machine: MachinePaths, worker: int, heartbeat: float, work: Callable[[Wake], int]
) -> int:
    """Do `work` in a child, and return its status when nothing of it is left.

    `work` gets what its `Signals` wake up by: requests to stop that come to the calling process
    arrive there. A KochiError of it is raised here as a WorkerError; ended by a signal, it takes
    the calling process with it by the same signal. `heartbeat`: seconds between two signs of life
    of the worker; it is killed when they stop.
    """
    wake = make_wake()
    told, tell = os.pipe()
    adopt_orphans()
    _flush()  # what is in a buffer now would come out twice
    gc.freeze()  # so that the collector does not copy memory that both can share
    supervisor = os.getpid()
    with _Forwarder(wake) as forwarder:
        pid = os.fork()
        if pid == 0:
            os.close(told)
            _become_worker(supervisor, forwarder, tell, lambda: work(wake))
        os.close(tell)
        ended = _Supervisor(machine, worker, heartbeat, pid).keep(forwarder)
    message = os.read(told, 1 << 20)
    for descriptor in (told, *wake):
        os.close(descriptor)
    if message:
        raise WorkerError(*json.loads(message))
    return _end_alike(ended)


class _Forwarder:
    """While entered, the stop signals of this process are forwarded, from the call of `wait` on;
    before that they are held back."""

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
        # What ignores it does not learn of the end of its children.
        self._previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *self.forwarded})
        return self

    def wait(self, timeout: float) -> None:
        """Return when a signal came, or a child ended; at the latest after `timeout` seconds."""
        # Not sigtimedwait: stopped and continued, Python's returns signals that never came.
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
    """The child's life; nothing may return or raise into the caller's."""
    status = _FAILURE
    try:
        die_with_parent()
        if os.getppid() == supervisor:
            # Requests to stop are held back until the worker can heed them: one that came after
            # its registration would leave a worker that seems lost.
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
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or not there
            stream.flush()


class _Supervisor:
    def __init__(self, machine: MachinePaths, worker: int, heartbeat: float, pid: int) -> None:
        self._machine = machine
        self._worker = worker
        self._heartbeat = heartbeat
        self._pid = pid
        self._observer = Observer()

    def keep(self, forwarder: _Forwarder) -> os.waitid_result:
        """Wait for the end of the worker, then end what it left; return how the worker ended."""
        next_look = time.monotonic()
        while True:
            forwarder.wait(max(0.0, next_look - time.monotonic()))
            ended = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._end_leftovers()
                return ended
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + _LOOK_INTERVAL * self._heartbeat
                self._look()

    def _look(self) -> None:
        """Kill a worker that gives no sign of life though it could be seen: when it is taken for
        lost on other nodes, nothing of it may be left here."""
        try:
            state, still = self._observer.look(self._machine, self._worker)
        except (OSError, DamagedFileError):
            return  # not there yet, or the filesystem is in trouble
        own = ProcessIdentity.of(self._pid)
        if state.process == own and still >= SUPERVISOR_PATIENCE * self._heartbeat:
            self._say(f"no sign of life for {still:.0f} seconds: killing the worker and its jobs")
            os.kill(self._pid, signal.SIGKILL)

    def _end_leftovers(self) -> None:
        """Kill (SIGKILL) the descendants: orphaned, one after the other becomes a child."""
        deadline = time.monotonic() + _LEFTOVER_PATIENCE
        pause = 0.001
        while children := _living_children():
            if time.monotonic() > deadline:
                pids = ", ".join(map(str, children))
                self._say(f"processes {pids} of its jobs cannot be ended")
                return
            for pid in children:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(pause)
            pause = min(pause * 2, 0.1)

    def _say(self, message: str) -> None:
        # Opened for this one line: the log is the worker's.
        with contextlib.suppress(OSError), log_to_file(self._machine, self._worker):
            _log.warning("the supervisor of worker %d: %s", self._worker, message)


def _living_children() -> list[int]:
    """Those there still are after all that have ended were reaped."""
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
            pass
    return child_pids()


def _end_alike(ended: os.waitid_result) -> int:
    if ended.si_code == os.CLD_EXITED:
        return ended.si_status
    number = ended.si_status
    # The core of the worker is enough.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number  # the first process of a pid namespace survives that
