"""A fork whose child is a child of the caller's parent, as clone(2) makes it.

A server makes the process of a job so. Two forks in a row, with a process in between that ends at
once, do the same, and cost twice the time: most of a fork's is for the pages that are copied when
they are written.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_CLONE_PARENT = 0x8000  # linux/sched.h
_CLONE_CHILD_CLEARTID = 0x200000
_CLONE_CHILD_SETTID = 0x1000000
_PR_GET_TID_ADDRESS = 40  # linux/prctl.h
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
# Older ones of glibc remember the number of the process, which only their own fork corrects.
_OLDEST_GLIBC = (2, 25)


def sibling_fork() -> Callable[[], int] | None:
    """A function like os.fork that makes a sibling of the calling process; None where that is not
    known to be the same otherwise: call os.fork twice there.

    The function raises OSError, for example where a container forbids it. The caller must be, and
    remain, a process with one thread: nothing else can hold a lock that the child would need.
    """
    number = _SYS_CLONE.get(os.uname().machine)
    if number is None or not _is_known_library() or os.stat("/proc/self/task").st_nlink != 3:
        return None
    # Not ctypes.CDLL, which releases Python's own lock around each call.
    library = ctypes.PyDLL(None, use_errno=True)
    if (address := _place_of_thread(library)) is None:
        return None
    # As fork(2) of glibc does it, so that the child knows its number.
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    # The last two change places from one architecture to another; the kernel uses one of them.
    words = [ctypes.c_long(each) for each in (number, flags, 0, 0, address, address)]

    # Looked up once: a child that did it would copy the memory that this changes.
    system_call, before = library.syscall, library.PyOS_BeforeFork
    in_child, in_parent = library.PyOS_AfterFork_Child, library.PyOS_AfterFork_Parent

    def fork() -> int:
        before()
        pid: int = system_call(*words)
        if pid == 0:
            in_child()
            return 0
        error = ctypes.get_errno()
        in_parent()
        if pid < 0:
            raise OSError(error, os.strerror(error))
        return pid

    return fork


def _is_known_library() -> bool:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return name == "glibc" and tuple(map(int, version.split("."))) >= _OLDEST_GLIBC
    except (OSError, ValueError):
        return False


def _place_of_thread(library: ctypes.CDLL) -> int | None:
    """Where the C library has the number of the calling thread, which is checked."""
    found = ctypes.c_size_t(0)
    if library.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(found), 0, 0, 0) != 0 or not found.value:
        return None
    number = ctypes.c_int.from_address(found.value).value
    return found.value if number == os.getpid() else None
