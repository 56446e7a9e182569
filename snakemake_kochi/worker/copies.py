"""What a copy of a Python process needs to be like a Python that was started for its work alone."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import ENOTSUP
from pathlib import Path
from typing import Any

# Private parts of Python, unchanged since 3.9; multiprocessing ends its child processes in the same
# way.
_end_threads: Any = threading._shutdown  # type: ignore[attr-defined]
_call_exit_functions: Any = atexit._run_exitfuncs


def run_as_main(work: Callable[[], int]) -> int:
    """Do the work of a program, and end as Python does; return the exit status.

    The caller ends the process by os._exit: what belongs to the process that was forked, its
    temporary directory for example, must remain for its other copies.
    """
    status, is_interrupted = 1, False
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = work()
    except SystemExit as error:
        status = _exit_status(error)
    except BaseException as error:
        is_interrupted = isinstance(error, KeyboardInterrupt)
        # Imported here: a copy that works well needs none.
        import traceback

        traceback.print_exc()
    _end_as_python_does()
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _exit_status(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _end_as_python_does() -> None:
    """Wait for threads and child processes, call exit functions, and flush open files."""
    # Joining alone would wait for ever: this tells the idle threads of pools to end.
    _end_threads()
    _call_exit_functions()
    # The objects of the forked process are not among them: see gc.freeze.
    kinds = (io.TextIOWrapper, io.BufferedWriter)
    streams = [found for found in gc.get_objects() if issubclass(type(found), kinds)]
    # What texts hold back goes to files.
    streams.sort(key=lambda stream: issubclass(type(stream), io.BufferedWriter))
    for stream in (*streams, sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # ValueError: the file is closed
            stream.flush()


def memory_mb() -> int:
    """The memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") >> 20


class Variables:
    """The environment variables that a process reads and sets between `begin` and `end`.

    Then it has those that its jobs have in common. A copy gets those of its job, and is what a
    process of that job would be if none was read that differs.
    """

    def __init__(self) -> None:
        # Not those of os.environ, to which Python may add LC_CTYPE.
        words = Path("/proc/self/environ").read_bytes().rstrip(b"\0").split(b"\0")
        pairs = (os.fsdecode(word).partition("=") for word in words)
        self._given = {name: value for name, _, value in pairs}
        self._before = dict(os.environ)
        self._read: set[str] = set()
        self._set: set[str] = set()
        self._class: Any = type(os.environ)
        self._look_up = self._class.__getitem__

    def begin(self) -> None:
        # All ways to read a variable call this method: get, `in`, setdefault, os.getenv.
        def noting(environment: Any, name: Any) -> Any:
            self._read.add(os.fsdecode(name))
            return self._look_up(environment, name)

        self._class.__getitem__ = noting

    def end(self) -> None:
        self._class.__getitem__ = self._look_up
        self._set = {name for name, _ in self._before.items() ^ dict(os.environ).items()}

    def require_unread(self, environment: Mapping[str, str], who: str = "it") -> None:
        """Raises OSError (ENOTSUP): `who` has read a variable that is another one for this job."""
        changed = {name for name, _ in self._given.items() ^ environment.items()}
        if name := min(self._read & changed, default=None):
            raise OSError(ENOTSUP, f"{who} reads the variable {name}, and each job has its own")

    def adopt(self, environment: Mapping[str, str]) -> None:
        """Have the variables of a job; those that were set since remain, as they would there."""
        # Only those that differ: each look at os.environ encodes a name and decodes a value.
        for name in self._given.keys() - environment.keys() - self._set:
            os.environ.pop(name, None)
        for name, value in environment.items() - self._given.items():
            if name not in self._set:
                os.environ[name] = value
