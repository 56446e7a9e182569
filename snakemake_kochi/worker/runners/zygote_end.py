"""The end of a job's process that is a copy of a zygote: as Python ends, but for what belongs to
the zygote, which goes on."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import sys
import threading
import weakref
from typing import Any

# Private; they have been the same since Python 3.9, and multiprocessing ends its copies so, too.
_end_threads: Any = threading._shutdown  # type: ignore[attr-defined]
_call_exit_functions: Any = atexit._run_exitfuncs
_finalizers: Any = weakref.finalize._registry  # type: ignore[attr-defined]


def keep_what_is_there() -> None:
    """To be called in the zygote: its temporary directories are there for all jobs, and must not be
    removed at the end of one."""
    for finalizer in list(_finalizers):
        finalizer.atexit = False


def end_as_python_does() -> None:
    """Wait for threads and child processes, call exit functions, and write out what was written to
    files that nobody has closed."""
    # It tells idle threads of pools to end: to join them only would take for ever.
    _end_threads()
    _call_exit_functions()
    # Those of the zygote are not among them: see gc.freeze.
    objects = gc.get_objects()
    texts = [found for found in objects if issubclass(type(found), io.TextIOWrapper)]
    files = [found for found in objects if issubclass(type(found), io.BufferedWriter)]
    for stream in (*texts, *files, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed
            stream.flush()
