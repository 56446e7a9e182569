"""The namespaces of an isolated process: its files, its network, its processes (namespaces(7))."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
from collections.abc import Callable

from snakemake_kochi.processes import PROC
from snakemake_kochi.terminal.program import shell_status

# In this order: what is last decides which files this process sees.
_KINDS = ("net", "ipc", "uts", "pid", "mnt")
_FILES, _PROCESSES = "mnt", "pid"
_GET_OWNER = 0xB701  # NS_GET_USERNS, ioctl_ns(2)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Keys of the terminal, which are for the program.
_OF_KEYS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)


class Namespaces:
    """The namespaces of a process that are not those of this one.

    They are opened at once: the process may end before they are entered.
    """

    def __init__(self, pid: int) -> None:
        own, others = _namespaces("self"), _namespaces(str(pid))
        different = [kind for kind in _KINDS if others.get(kind) != own.get(kind)]
        self._opened: dict[str, int] = {}
        self._owner: int | None = None
        self._is_whole = True
        self._has_processes = False
        self._stack = contextlib.ExitStack()
        try:
            self._opened = {kind: _open(self._stack, pid, kind) for kind in different}
            # A user may do so below namespaces of users that are their own.
            self._owner = _owner(self._stack, self._opened.get(_FILES))
        except OSError:
            self._is_whole = False

    def close(self) -> None:
        self._stack.close()

    def enter(self) -> bool:
        """Enter them as far as this user may, once; whether that is all of them.

        Python's modules may be out of sight then.
        """
        with self._stack:
            if self._is_whole and self._opened:
                library = ctypes.CDLL(None, use_errno=True)
                try:
                    if self._owner is not None:
                        _enter(library, self._owner)
                    for descriptor in self._opened.values():
                        _enter(library, descriptor)
                except OSError:
                    self._is_whole = False
        self._has_processes = self._is_whole and _PROCESSES in self._opened
        return self._is_whole

    def run(self, become: Callable[[], int]) -> int:
        """Become a program, or its parent; returns an exit status."""
        # Only a child is in another namespace of processes.
        return _as_child(become) if self._has_processes else become()


def _namespaces(process: str) -> dict[str, tuple[int, int]]:
    found = {}
    for kind in _KINDS:
        with contextlib.suppress(OSError):
            status = os.stat(PROC / process / "ns" / kind)
            found[kind] = (status.st_dev, status.st_ino)
    return found


def _open(stack: contextlib.ExitStack, pid: int, kind: str) -> int:
    descriptor = os.open(PROC / str(pid) / "ns" / kind, os.O_RDONLY)
    stack.callback(os.close, descriptor)
    return descriptor


def _owner(stack: contextlib.ExitStack, namespace: int | None) -> int | None:
    """The namespace of users to which a namespace belongs; None if it is that of this process."""
    if namespace is None:
        return None
    descriptor = fcntl.ioctl(namespace, _GET_OWNER)
    stack.callback(os.close, descriptor)
    own = os.stat(PROC / "self" / "ns" / "user")
    return None if os.path.samestat(os.fstat(descriptor), own) else descriptor


def _enter(library: ctypes.CDLL, descriptor: int) -> None:
    if library.setns(descriptor, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _as_child(become: Callable[[], int]) -> int:
    """Become a program in a child; returns its exit status. Stops and ends as it does."""
    library = ctypes.CDLL(None)
    has_terminal = _has_terminal()
    for number in _OF_KEYS:
        signal.signal(number, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            library.prctl(_PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0)
            if has_terminal:
                # The group of this process has no number there, and a shell would fail to give
                # the terminal back to it: dash then exits with status 2.
                os.setpgid(0, 0)
                _give_terminal(os.getpid())
            for number in _OF_KEYS:
                signal.signal(number, signal.SIG_DFL)
            status = become()
        finally:
            os._exit(status)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(child, number))
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return shell_status(os.waitstatus_to_exitcode(status))
        os.kill(os.getpid(), signal.SIGSTOP)
        if has_terminal and _has_terminal():
            _give_terminal(child)
        (os.killpg if has_terminal else os.kill)(child, signal.SIGCONT)


def _has_terminal() -> bool:
    """Whether the keys of the terminal are for this process."""
    with contextlib.suppress(OSError):
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    return False


def _give_terminal(group: int) -> None:
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, group)
    signal.signal(signal.SIGTTOU, before)
