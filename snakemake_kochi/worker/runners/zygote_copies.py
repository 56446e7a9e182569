"""Copies that a zygote makes of itself before there are jobs for them: to copy a process of its
size takes longer than all else that happens between two jobs."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from snakemake_kochi.worker.runners.zygote_messages import LinkBrokenError, make_link, receive, send

# Made at a time, since the process between is a copy, too, and made again when so few are left.
_MADE = 4
_FEW = 1

# What a job is told, and the file descriptors that came with it.
Job = tuple[Mapping[str, Any], list[int]]


@dataclass(frozen=True)
class _Copy:
    """`link`: by which it is told of its job; when that ends before, it ends, too."""

    pid: int
    link: socket.socket


class Copies:
    """Copies of the calling process, which are children of its parent's: the kernel gives them to
    the worker when the process ends that is between. They are in the session of the zygote, by
    which the worker knows them, until they have a job."""

    def __init__(self, live: Callable[[Callable[[], Job]], NoReturn]) -> None:
        """`live`: what a copy does; it is given what waits for its job, and does not return."""
        self._live = live
        self._waiting: deque[_Copy] = deque()

    def give(self, message: Mapping[str, Any], descriptors: list[int]) -> int:
        """Tell one of them of its job; returns its number. Raises OSError when there is none."""
        while self._waiting:
            copy = self._waiting.popleft()
            with copy.link, contextlib.suppress(LinkBrokenError):  # somebody has killed it
                send(copy.link, dict(message), descriptors)
                return copy.pid
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def refill(self, to_least: int = _FEW) -> None:
        """Make some where no more than so many are left, if that is possible. Not while the caller
        has descriptors of a job, for all of them would have these, too."""
        if len(self._waiting) <= to_least:
            with contextlib.suppress(OSError):  # if it is still so at the next job, that will hear
                self._make()

    def _make(self) -> None:
        # What is in a buffer now would come out of each.
        sys.stdout.flush()
        sys.stderr.flush()
        links = [make_link() for _ in range(_MADE)]
        told, tell = os.pipe()
        with os.fdopen(told, "rb") as stream:
            try:
                if (middle := os.fork()) == 0:
                    self._make_between(links, told, tell)
            except OSError:
                for ours, _ in links:
                    ours.close()
                raise
            finally:
                os.close(tell)
                for _, theirs in links:
                    theirs.close()
            pids = [int(line) for line in stream]
        os.waitpid(middle, 0)
        for number, (ours, _) in enumerate(links):
            if number < len(pids):
                self._waiting.append(_Copy(pids[number], ours))
            else:
                ours.close()

    def _make_between(
        self, links: list[tuple[socket.socket, socket.socket]], told: int, tell: int
    ) -> NoReturn:
        try:
            for number in range(len(links)):
                pid = os.fork()
                if pid == 0:
                    os.close(told)
                    os.close(tell)
                    self._wait_and_live(links, number)
                os.write(tell, b"%d\n" % pid)
        finally:
            os._exit(0)

    def _wait_and_live(
        self, links: list[tuple[socket.socket, socket.socket]], number: int
    ) -> NoReturn:
        # With the zygote's end of another's link that one would never hear of the zygote's end.
        for copy in self._waiting:
            copy.link.close()
        for ours, theirs in links:
            ours.close()
            if theirs is not links[number][1]:
                theirs.close()
        self._live(partial(_await_job, links[number][1]))


def _await_job(link: socket.socket) -> Job:
    message, descriptors = receive(link)
    if message is None:
        os._exit(0)
    link.close()
    return message, descriptors
