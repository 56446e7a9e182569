"""The end of a zygote that is told to end; and that of a job's process that is a copy of one: as
Python ends, but for what belongs to the zygote, which goes on."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

# Private; they have been the same since Python 3.9, and multiprocessing ends its copies so, too.
_end_threads: Any = threading._shutdown  # type: ignore[attr-defined]
_call_exit_functions: Any = atexit._run_exitfuncs
_finalizers: Any = weakref.finalize._registry  # type: ignore[attr-defined]

_TERM = (signal.SIGTERM,)


class ToldToEnd(BaseException):
    """SIGTERM, of the worker or of a scheduler that ends the allocation: the zygote ends, and
    Snakemake removes its temporary directory. Passes through what catches each Exception."""


def end_in_order_if_told() -> None:
    """From now on SIGTERM raises ToldToEnd."""
    signal.signal(signal.SIGTERM, _raise)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise ToldToEnd


def hold_back_the_end() -> None:
    """Not in the middle of making a copy, in which it would be raised, too."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)


@contextlib.contextmanager
def let_end() -> Iterator[None]:
    """Meanwhile it is not held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERM)
    try:
        yield
    finally:
        hold_back_the_end()


def end_as_others_do() -> None:
    """In a copy: SIGTERM is again what it is for any process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERM)


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
