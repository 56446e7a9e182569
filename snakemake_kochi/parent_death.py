"""A child process that ends with its parent, however the parent ends; and a process that becomes
the parent of what its children leave behind.

The processes of jobs have their own way (`next/worker/job_process.py`): they call the kernel
themselves, after the fork that made them.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def ending_with_this_process(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """The `preexec_fn` of a child that gets a signal when this process dies.

    It is the thread that counts, so the thread that starts the child has to outlive it.
    """
    # Loaded here: between fork and exec a library must not be looked up.
    library, parent = ctypes.CDLL(None), os.getpid()

    def prepare() -> None:
        library.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # dead before the kernel knew
            os._exit(1)

    return prepare


def adopt_orphans() -> None:
    """Become the parent of processes that children leave behind, to see and to end them."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
