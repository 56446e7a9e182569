"""What a forked process needs to end like a Python that was started for its work alone."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
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
    """End as Python does.

    Wait for threads and child processes, call exit functions, and flush files that were not closed.
    """
    # Joining alone would wait for ever: this tells the idle threads of pools to end.
    _end_threads()
    _call_exit_functions()
    # The objects of the forked process are not among them: see gc.freeze.
    kinds = (io.TextIOWrapper, io.BufferedWriter)
    streams = [found for found in gc.get_objects() if issubclass(type(found), kinds)]
    # What texts hold back goes to files.
    streams.sort(key=lambda stream: issubclass(type(stream), io.BufferedWriter))
    for stream in (*streams, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # ValueError: the file is closed
            stream.flush()


def memory_mb() -> int:
    """The memory of this process, in MiB, with its share of memory common to several processes."""
    try:
        rollup = Path("/proc/self/smaps_rollup").read_text()
    except OSError:  # before Linux 4.14
        return (
            int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
        )
    (line,) = [line for line in rollup.splitlines() if line.startswith("Pss:")]
    return int(line.split()[1]) >> 10
