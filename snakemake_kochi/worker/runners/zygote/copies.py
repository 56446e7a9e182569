"""Copies of a zygote, and the state that each of them has for itself.

This is random numbers, environment variables, and an end like that of Python.
"""

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

# Copies made at a time, because each time the process in between is one copy more; and the number
# of remaining copies at which more are made.
_MADE = 4
_FEW = 1

# Private parts of Python, unchanged since 3.9; multiprocessing ends its child processes in the same
# way.
_end_threads: Any = threading._shutdown  # type: ignore[attr-defined]
_call_exit_functions: Any = atexit._run_exitfuncs
_finalizers: Any = weakref.finalize._registry  # type: ignore[attr-defined]

# A message about a job, and the file descriptors that came with it.
Job = tuple[Mapping[str, Any], list[int]]


@dataclass(frozen=True)
class _Copy:
    """A copy that waits for a job.

    Through `link` it gets the job; the copy ends when the link closes before that.
    """

    pid: int
    link: socket.socket


class Copies:
    """Copies that a zygote makes of itself before jobs need them.

    A process of its size takes longer to copy than all other steps between two jobs.

    The copies become children of the zygote's parent: the kernel makes them children of the worker
    when the process in between ends. Until they get a job they are in the session of the zygote, by
    which the worker recognises them.
    """

    def __init__(self, live: Callable[[Callable[[], Job]], NoReturn]) -> None:
        """Begin without copies.

        `live`: the function that a copy calls; it does not return. Its argument waits for the
        copy's job.
        """
        self._live = live
        self._waiting: deque[_Copy] = deque()

    def give(self, message: Mapping[str, Any], descriptors: list[int]) -> int:
        """Give a job to one of the copies; return the copy's process number.

        Raises OSError when no copy is left.
        """
        while self._waiting:
            copy = self._waiting.popleft()
            with copy.link, contextlib.suppress(LinkBrokenError):  # the copy was killed
                send(copy.link, dict(message), descriptors)
                return copy.pid
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def refill(self, to_least: int = _FEW) -> None:
        """Make copies if at most `to_least` are left, and if that is possible.

        Do not call this while the process holds descriptors of a job: all copies would hold them,
        too.
        """
        if len(self._waiting) <= to_least:
            with contextlib.suppress(OSError):  # the next job reports a lasting failure
                self._make()

    def _make(self) -> None:
        # Otherwise each copy would write the buffered content again.
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
        # This copy must not hold the zygote's ends of the other copies' links: those copies would
        # not notice the end of the zygote.
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
    """Environment variables that a workflow sets or reads while it is parsed.

    The parse takes place between `begin` and `end`. The workflow sees the variables that all jobs
    have in common; in a process of the job's own it would also see the job's own variables.
    """

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._read: set[str] = set()
        self._kept: frozenset[str] = frozenset()
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
        after = dict(os.environ)
        names = {*self._before, *after}
        self._kept = frozenset(n for n in names if self._before.get(n) != after.get(n))

    def read_of(self, changed: Collection[str]) -> str | None:
        """A variable that a job has changed and that the workflow has read; None without one."""
        return min(self._read.intersection(changed), default=None)

    def set_own(self, values: Mapping[str, str], removed: Collection[str]) -> None:
        """Set and remove a job's own variables.

        Variables that the workflow has set remain: in a process of the job's own the workflow would
        set them after the job's variables are set.
        """
        os.environ.update({name: values[name] for name in values if name not in self._kept})
        for name in removed:
            if name not in self._kept:
                os.environ.pop(name, None)


class Randomness:
    """Gives each copy random numbers of its own, as separate processes would have.

    Between `begin` and `end` a workflow is parsed, which may seed generators.
    """

    def __init__(self) -> None:
        self._is_seeded = False
        self._state: Any = None
        self._seed = random.seed
        self._known: list[Any] = []

    def begin(self) -> None:
        with tempfile.NamedTemporaryFile():  # this makes tempfile's own generator
            self._known = _generators()
        random.seed = self._noting_seed

    def end(self) -> None:
        random.seed = self._seed
        self._state = random.getstate() if self._is_seeded else None

    @property
    def has_others(self) -> bool:
        """Whether the workflow has made generators of its own.

        It is unknown whether they were seeded. If not, each job must have a generator of its own.
        """
        known = {id(generator) for generator in self._known}
        return any(id(generator) not in known for generator in _generators())

    def _noting_seed(self, *arguments: Any, **options: Any) -> None:
        self._seed(*arguments, **options)
        self._is_seeded = True

    def renew(self) -> None:
        """Renew the generators; call this in a copy."""
        # Python seeds again after a fork; a workflow that seeds expects the numbers of its seed.
        if self._state is not None:
            random.setstate(self._state)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and not _is_seeded(numpy):
            numpy.seed()  # NumPy does not seed again after a fork


def _generators() -> list[Any]:
    """All generators except NumPy's global one, which `Randomness.renew` handles."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (random.Random,)
    own = None
    if numpy is not None:
        kinds = (random.Random, numpy.BitGenerator)
        own = numpy.mtrand._rand._bit_generator
    # Compare by type: proxy objects import or compute their target on any other access.
    found = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    return [one for one in found if one is not own and not isinstance(one, random.SystemRandom)]


def _is_seeded(numpy_random: Any) -> bool:
    """Whether NumPy's `seed` was called: only then the generator has no other origin."""
    try:
        return numpy_random.get_bit_generator().seed_seq is None
    except AttributeError:  # before NumPy 1.25
        return False


def keep_temporary_directories() -> None:
    """Keep the temporary directories of the zygote; call this in the zygote.

    All jobs use these directories, so the end of one job must not remove them.
    """
    for finalizer in list(_finalizers):
        finalizer.atexit = False


def end_as_python_does() -> None:
    """End as Python does.

    Wait for threads and child processes, call exit functions, and flush files that were not closed.
    """
    # Joining alone would wait for ever: this tells the idle threads of pools to end.
    _end_threads()
    _call_exit_functions()
    # The objects of the zygote are not among them: see gc.freeze.
    objects = gc.get_objects()
    texts = [found for found in objects if issubclass(type(found), io.TextIOWrapper)]
    files = [found for found in objects if issubclass(type(found), io.BufferedWriter)]
    for stream in (*texts, *files, sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # ValueError: the file is closed
            stream.flush()
