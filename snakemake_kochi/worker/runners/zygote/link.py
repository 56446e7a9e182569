"""The worker's side of a zygote: a process, a socket, and the messages between the two.

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
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
        self._environment = {**environment, "PWD": directory}
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
                self._fail(f"it was not read within {_START_PATIENCE:.0f} seconds", is_unfit=True)
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
        wanted = {**environment, "PWD": own["PWD"]}
        request = {
            "job": list(arguments),
            "options": list(options),
            "cpus": cpus,
            "set": {name: value for name, value in wanted.items() if own.get(name) != value},
            "unset": [name for name in own if name not in wanted],
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
