"""Copies of a zygote, and what each of them needs for itself: random numbers, environment
variables, and an end like that of Python."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import io
import os
import random
import socket
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from snakemake_kochi.worker.runners.zygote.link import LinkBrokenError, make_link, receive, send

# Copies made at a time, since the process between is a copy, too; and how few left are refilled.
_MADE = 4
_FEW = 1

# Private parts of Python, the same since 3.9; multiprocessing ends its copies in this way, too.
_end_threads: Any = threading._shutdown  # type: ignore[attr-defined]
_call_exit_functions: Any = atexit._run_exitfuncs
_finalizers: Any = weakref.finalize._registry  # type: ignore[attr-defined]

# What a job is told, and the file descriptors that came with it.
Job = tuple[Mapping[str, Any], list[int]]


@dataclass(frozen=True)
class _Copy:
    """`link` tells it of its job; the copy ends when the link ends before."""

    pid: int
    link: socket.socket


class Copies:
    """Copies that a zygote makes of itself before there are jobs for them: to copy a process of its
    size takes longer than all else that happens between two jobs.

    They are children of the zygote's parent: the kernel gives them to the worker when the process
    between ends. Until they have a job they are in the session of the zygote, by which the worker
    knows them."""

    def __init__(self, live: Callable[[Callable[[], Job]], NoReturn]) -> None:
        """`live`: what a copy does; its argument waits for the copy's job. It does not return."""
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
        # With the zygote's end of another's link, this copy would keep that one from hearing of the
        # zygote's end.
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


class Variables:
    """Environment variables that a workflow sets or reads between `begin` and `end`, while it is
    parsed. It sees what all jobs have in common; in a process of the job's own it would see the
    job's own variables, too."""

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._read: set[str] = set()
        self._kept: frozenset[str] = frozenset()
        self._class: Any = type(os.environ)
        self._look_up = self._class.__getitem__

    def begin(self) -> None:
        # All ways to read one come to that: get, `in`, setdefault, os.getenv.
        def noting(environment: Any, name: Any) -> Any:
            self._read.add(os.fsdecode(name))
            return self._look_up(environment, name)

        self._class.__getitem__ = noting

    def end(self) -> None:
        self._class.__getitem__ = self._look_up
        after = dict(os.environ)
        names = {*self._before, *after}
        self._kept = frozenset(n for n in names if self._before.get(n) != after.get(n))

    def read_of(self, changed: Collection[str]) -> str | None:
        """One of the variables that a job has changed and that the workflow has read; or None."""
        return min(self._read.intersection(changed), default=None)

    def set_own(self, values: Mapping[str, str], removed: Collection[str]) -> None:
        """Set and remove a job's own variables. What the workflow has set stays: in a process of
        the job's own the parse would come after them."""
        os.environ.update({name: values[name] for name in values if name not in self._kept})
        for name in removed:
            if name not in self._kept:
                os.environ.pop(name, None)


class Randomness:
    """Random numbers: each copy has its own, as processes of their own would. Between `begin` and
    `end` a workflow is parsed, which may seed."""

    def __init__(self) -> None:
        self._is_seeded = False
        self._state: Any = None
        self._seed = random.seed
        self._known: list[Any] = []

    def begin(self) -> None:
        with tempfile.NamedTemporaryFile():  # which makes tempfile's own generator
            self._known = _generators()
        random.seed = self._noting_seed

    def end(self) -> None:
        random.seed = self._seed
        self._state = random.getstate() if self._is_seeded else None

    @property
    def has_others(self) -> bool:
        """Whether the workflow has made generators of its own. Whether they were seeded cannot be
        told, and if not, each job is to have another."""
        known = {id(generator) for generator in self._known}
        return any(id(generator) not in known for generator in _generators())

    def _noting_seed(self, *arguments: Any, **options: Any) -> None:
        self._seed(*arguments, **options)
        self._is_seeded = True

    def renew(self) -> None:
        """To be called in a copy."""
        # Python seeds anew after a fork; a workflow that seeds wants what it gets by that.
        if self._state is not None:
            random.setstate(self._state)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and not _is_seeded(numpy):
            numpy.seed()  # NumPy does not


def _generators() -> list[Any]:
    """All that there are but NumPy's global one, which `Randomness.renew` sees to."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (random.Random,)
    own = None
    if numpy is not None:
        kinds = (random.Random, numpy.BitGenerator)
        own = numpy.mtrand._rand._bit_generator
    # By their types: objects that stand for others import or compute those when they are asked.
    found = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    return [one for one in found if one is not own and not isinstance(one, random.SystemRandom)]


def _is_seeded(numpy_random: Any) -> bool:
    """Whether somebody called NumPy's `seed`: the generator then has no other origin."""
    try:
        return numpy_random.get_bit_generator().seed_seq is None
    except AttributeError:  # before NumPy 1.25
        return False


def keep_temporary_directories() -> None:
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
