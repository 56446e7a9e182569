"""The links of a zygote: to its worker, and to the copies that it makes before jobs need them.

A message is a JSON object in one message of the socket, with file descriptors beside it. To the
zygote, once: `{"version", "arguments", "cores"}`, the arguments of Snakemake that all jobs have in
common, and the number of cores of the first job. From it: `{"ready": true, "memory_mb",
"reads_cores"}` or `{"failed": why}`. Then, for each job, `{"job": all its arguments, "options": the
arguments that are its own, "cpus", "set", "unset"}` with the log and the gate beside it. The answer
is `{"pid"}`, `{"stale": what}`, `{"failed": why}`, or `{"unfit": why}`, which holds for each zygote
of this workflow.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from snakemake_kochi.errors import KochiError

VERSION = 2
# Both ends are of one installation, or the zygote refuses; no message comes near this size.
_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 2

_MODULE = "snakemake_kochi.worker.runners.zygote.process"
# Seconds. A job without a zygote takes as long to read its workflow.
_START_PATIENCE = 60.0
# Seconds to copy a process, usually some milliseconds. The worker's loop waits for the copy.
_FORK_PATIENCE = 3.0
# Copies made at a time, because each time the process in between is one copy more; and the number
# of remaining copies at which more are made.
_MADE = 4
_FEW = 1

# A message about a job, and the file descriptors that came with it.
Job = tuple[Mapping[str, Any], list[int]]


class LinkBrokenError(KochiError):
    """The received data is no message, or the link cannot send."""


def make_link() -> tuple[socket.socket, socket.socket]:
    """Make the two ends of a connection that keeps messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(link: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message; never waits on a non-blocking link.

    Raises LinkBrokenError, also when a non-blocking link cannot send at once.
    """
    data = json.dumps(message).encode()
    try:
        socket.send_fds(link, [data], descriptors)
    except OSError as error:  # for example: too large for one message
        raise LinkBrokenError(f"a message cannot be sent: {error.strerror}") from error


def receive(link: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive a message, None at the end, and the file descriptors that came with it.

    Raises LinkBrokenError, and BlockingIOError when a non-blocking link has no message.
    """
    try:
        data, descriptors, flags, _ = socket.recv_fds(link, _MOST_BYTES, _MOST_DESCRIPTORS)
    except ConnectionResetError:  # the other end closed before it had read all messages
        return None, []
    for descriptor in descriptors:
        # socket.recv_fds ignores its argument for flags.
        os.set_inheritable(descriptor, False)
    if not data:
        return None, []
    try:
        message = json.loads(data)
    except ValueError as error:
        message = error
    if not isinstance(message, dict) or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise LinkBrokenError(f"no message of version {VERSION}: {data[:80]!r}")
    return message, descriptors


# ---- the worker's side


class ZygoteFailedError(KochiError):
    """The zygote made no process, or a process that ends when its gate closes."""


class ZygoteLink:
    """The worker's side of one zygote.

    `is_ready`: whether the zygote can make processes. `failure`: why it never can again, or None.
    `is_unfit`: whether the failure holds for each zygote of this workflow. Two values are known
    once the zygote is ready: `reads_cores`, whether the workflow read its number of cores during
    the parse, and `memory_mb`, the memory of the zygote. `served`: how many processes the zygote
    made. `used`: when it made the last one.
    """

    def __init__(
        self,
        interpreter: str,
        arguments: Sequence[str],
        cores: int,
        directory: str,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        """Start the zygote; raises OSError.

        `arguments`: those of Snakemake, without those of a single job. `cores`: the number of cores
        for the parse. `log`: the file for the zygote's messages, and for the output of the workflow
        during the parse.
        """
        self.is_ready = False
        self.failure: str | None = None
        self.is_unfit = False
        self.reads_cores = False
        self.memory_mb = 0
        self.served = 0
        self.used = self._started = time.monotonic()
        self.log = log
        self._environment = dict(environment)
        self._link, theirs = make_link()
        try:
            self._process = self._start(interpreter, directory, theirs)
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()
        self._link.setblocking(False)
        with contextlib.suppress(LinkBrokenError):  # `attend` sees the end of the zygote
            message = {"version": VERSION, "arguments": list(arguments), "cores": cores}
            send(self._link, message)

    def _start(
        self, interpreter: str, directory: str, theirs: socket.socket
    ) -> subprocess.Popen[bytes]:
        descriptor = theirs.fileno()
        # The directory belongs to the jobs, and may contain a module of any name.
        command = [interpreter, "-P", "-m", _MODULE, str(descriptor), str(os.getpid())]
        with self.log.open("wb") as stream:
            return subprocess.Popen(
                command,
                cwd=directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                pass_fds=[descriptor],
                # Only the worker acts upon signals from a terminal.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether the zygote has ended and was reaped."""
        return self._process.poll() is not None

    def fileno(self) -> int:
        return self._link.fileno()

    def attend(self) -> None:
        """Handle the zygote's message, if any; never waits."""
        try:
            message, _ = receive(self._link)
        except BlockingIOError:
            if not self.is_ready and time.monotonic() > self._started + _START_PATIENCE:
                self._fail(
                    f"its workflow was not read within {_START_PATIENCE:.0f} seconds", is_unfit=True
                )
        except (OSError, LinkBrokenError) as error:
            self._fail(str(error))
        else:
            self._take(message)

    def _take(self, message: dict[str, Any] | None) -> None:
        if message is None:
            self._fail("its process ended")
        elif self.is_ready or "failed" in message:
            self._fail(str(message.get("failed", message)), is_unfit=not self.is_ready)
        else:
            self.memory_mb = int(message["memory_mb"])
            self.reads_cores = bool(message["reads_cores"])
            self.is_ready = True
            self.used = time.monotonic()

    def fork(
        self,
        arguments: Sequence[str],
        options: Sequence[str],
        environment: Mapping[str, str],
        cpus: Sequence[int] | None,
        log: int,
        held: int,
    ) -> int:
        """Make a process for a job; return its process number.

        `arguments` are all arguments of the job, and `options` those of its own. The process gets
        this whole `environment` and the output `log`. It is a child of the worker, waits at the
        gate `held`, and ends when the gate closes. Raises ZygoteFailedError; a process that exists
        in spite of the failure then ends when the gate closes.
        """
        own = self._environment
        request = {
            "job": list(arguments),
            "options": list(options),
            "cpus": cpus,
            "set": {name: value for name, value in environment.items() if own.get(name) != value},
            "unset": [name for name in own if name not in environment],
        }
        self.used = time.monotonic()
        is_unfit = False
        try:
            send(self._link, request, [log, held])
            poll = select.poll()
            poll.register(self._link, select.POLLIN)
            if not poll.poll(_FORK_PATIENCE * 1000):
                self._process.kill()
                raise LinkBrokenError(f"no answer within {_FORK_PATIENCE:.0f} seconds")
            answer, _ = receive(self._link)
            is_unfit = answer is not None and "unfit" in answer
            return self._understand(answer)
        except (OSError, LinkBrokenError) as error:
            self._fail(str(error), is_unfit)
            raise ZygoteFailedError(f"zygote {self.pid}: {self.failure}") from error

    def _understand(self, answer: dict[str, Any] | None) -> int:
        if answer is None:
            raise LinkBrokenError("its process ended")
        if "stale" in answer:
            raise LinkBrokenError(f"{answer['stale']} has changed since it was read")
        if "pid" not in answer:
            raise LinkBrokenError(str(answer.get("unfit") or answer.get("failed", answer)))
        pid = int(answer["pid"])
        # The process is our child since the process in between ended, which was before this answer.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.served += 1
        return pid

    def _fail(self, why: str, is_unfit: bool = False) -> None:
        self.failure, self.is_unfit = why, is_unfit

    def end(self) -> None:
        """Have the zygote end, usually in a moment."""
        # When its link closes, a zygote that waits removes its temporary directories.
        self._link.close()
        if not self.is_ready:
            self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


# ---- the zygote's side


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
