"""Parents and children: a child that ends with its parent, however that ends; and orphans.

The supervisor of a worker imports this module, and forks faster the smaller it is.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_MOST_OF_STAT = 4096  # bytes; the kernel makes all of it at the first read
_libc = ctypes.CDLL(None, use_errno=True)  # between fork and exec a library must not be looked up


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal the calling process when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def ending_with_this_process(number: signal.Signals = signal.SIGTERM) -> Callable[[], None]:
    """The `preexec_fn` of a child that gets a signal when this process dies.

    It is the thread that counts, so the thread that starts the child has to outlive it.
    """
    parent = os.getpid()

    def prepare() -> None:
        end_with_parent(number)
        if os.getppid() != parent:  # dead before the kernel knew
            os._exit(1)

    return prepare


def adopt_orphans() -> None:
    """Become the parent of processes that children leave behind, to see and to end them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The children of a process with one thread, zombies included."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        numbers = (int(name) for name in os.listdir("/proc") if name.isdecimal())
        return [each for each in numbers if _parent_of(each) == pid]


def _parent_of(pid: int) -> int:
    try:
        return int(stat_fields(f"/proc/{pid}")[1])
    except OSError:
        return 0


def stat_fields(directory: str) -> list[bytes]:
    """What the kernel says of the process with this directory in /proc, from its state on.

    proc_pid_stat(5) counts from 1, and the state is 3, so its field n is here at n - 3. Raises
    OSError if there is no such process.
    """
    # The name before the state is in parentheses and may itself contain any character.
    with open(f"{directory}/stat", "rb", buffering=0) as stream:
        return stream.read(_MOST_OF_STAT).rpartition(b")")[2].split()
