"""Kill a program right before any of its steps, or have one of them fail.

A scene is a function; it runs in a fork of the test, so that nothing has to be imported again: some
hundred deaths cost seconds. A step is whatever changes what other processes see: a file made,
renamed, linked, removed, written or synced, a lock, a process started, signalled or waited for. The
steps of all processes of a scene are counted together (a worker, and the fork that becomes a job),
those of programs it executes are not, and neither are those of the test of the locks, which is a
program in a fork.

This sees calls of Python's; `strace.py` does the same, for a sample, in the kernel.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Scene = Callable[[], object]

# PEP 578. These are raised before the call is made.
_EVENTS = frozenset(
    {
        *("os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir"),
        *("os.truncate", "os.chmod", "os.kill", "os.fork", "fcntl.flock", "fcntl.lockf"),
        "subprocess.Popen",
    }
)
_FUNCTIONS = ("write", "pwrite", "fsync", "mkfifo", "waitpid", "waitid", "close")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Ending:
    """How a scene ended: after how many steps, killed or not, and what it raised if it did."""

    steps: int
    was_killed: bool
    error: str

    @property
    def ok(self) -> bool:
        return not self.was_killed and self.error == ""


def run_scene(scene: Scene, at: int | None = None, error: OSError | None = None) -> Ending:
    """Run a scene in a process of its own until it and all it forked have ended.

    Before step `at` (from 1) the process that is about to take it is killed with SIGKILL; or, with
    `error`, that step and all later ones that can fail so raise it, as on a disk that is full.
    """
    # Shared with everything the scene forks.
    counter = mmap.mmap(-1, 8)
    report, reporter = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(report)
        _become(scene, reporter, _Steps(counter, at, error))
    os.close(reporter)
    said = _read_all(report)
    _, status = os.waitpid(pid, 0)
    was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    error_text = said.decode() or ("" if status == 0 or was_killed else f"status {status}")
    return Ending(_value(counter), was_killed, error_text)


def deaths(scene: Callable[[], Scene], stride: int = 1) -> Iterator[Ending]:
    """Kill the scene before its first step, the `stride`-th after it, and so on until it survives.

    `scene` sets the stage anew and returns what is to be killed on it.
    """
    at = 1
    while True:
        ending = run_scene(scene(), at)
        yield ending
        if ending.steps < at:
            return
        at += stride


class _Steps:
    def __init__(self, counter: mmap.mmap, at: int | None, error: OSError | None) -> None:
        self._counter = counter
        self._at = at
        self._error = error

    def install(self) -> None:
        # For good, which in a process that ends with the scene does no harm.
        sys.addaudithook(self._hear)
        for name in _FUNCTIONS:
            setattr(os, name, self._before(getattr(os, name)))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS or (event == "open" and _is_writing(arguments)):
            self._step()

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            # What is closed is not lost; but when a lock is let go is a moment of its own.
            self._step(can_fail=function.__name__ in ("write", "fsync", "mkfifo"))
            return function(*arguments, **options)

        return call

    def _step(self, can_fail: bool = True) -> None:
        number = _value(self._counter) + 1
        self._counter[:8] = struct.pack("q", number)
        if self._at is None or number < self._at:
            return
        if self._error is not None:
            if can_fail:
                raise OSError(self._error.errno, self._error.strerror)
        elif number == self._at:
            # Not through os.kill, which would be a step itself.
            signal.raise_signal(signal.SIGKILL)


def _is_writing(arguments: tuple[Any, ...]) -> bool:
    # Files of ours and not what Python itself opens (devices, caches of byte code).
    path, _, flags = arguments
    return bool(flags & _WRITING) and not str(path).startswith(("/dev/", "/proc/"))


def _value(counter: mmap.mmap) -> int:
    return int(struct.unpack("q", counter[:8])[0])


def _become(scene: Scene, reporter: int, steps: _Steps) -> None:
    """The fork's life. It must not return into pytest."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # The garbage of the test is not collected here: to close its files would be steps, too, and
        # the same scene would be killed elsewhere each time.
        gc.freeze()
        # What the scene forks holds the pipe too: it is at its end when all of them have ended.
        steps.install()
        scene()
        os._exit(0)
    except BaseException:
        os.writev(reporter, [traceback.format_exc().encode()])
    finally:
        os._exit(1)


def _read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as stream:
        return stream.read()
