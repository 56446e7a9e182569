"""A zygote as its worker has it: a process, a socket, and the messages between the two.

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
# Both ends are of one installation, or the zygote refuses; no message comes near that.
_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 2

_MODULE = "snakemake_kochi.worker.runners.zygote.process"
# Seconds. Every job without a zygote needs as long to read its workflow.
_START_PATIENCE = 60.0
# Seconds for a copy of a process, some milliseconds as a rule: as long the worker's loop waits.
_FORK_PATIENCE = 3.0


class LinkBrokenError(KochiError):
    """What came is no message, or nothing can be sent."""


def make_link() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection that keeps messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(link: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises LinkBrokenError, also when it cannot be sent at once and the link does not block."""
    data = json.dumps(message).encode()
    try:
        socket.send_fds(link, [data], descriptors)
    except OSError as error:  # among them: too large for one message
        raise LinkBrokenError(f"a message cannot be sent: {error.strerror}") from error


def receive(link: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A message, None at the end, and the file descriptors that came with it.

    Raises LinkBrokenError; BlockingIOError when nothing is there and the link does not block.
    """
    try:
        data, descriptors, flags, _ = socket.recv_fds(link, _MOST_BYTES, _MOST_DESCRIPTORS)
    except ConnectionResetError:  # it ended before it had read all
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
    """It made no process, or one that ends as soon as its gate is closed."""


class ZygoteLink:
    """`is_ready`: whether it can make processes; `failure`: why it never will again, or None;
    `is_unfit`: whether that is so for each zygote of this workflow. `reads_cores`: whether the
    workflow, while it was parsed, read how many cores it has, and `memory_mb`: the memory that the
    zygote takes, both known once it is ready. `served`: how many processes it made; `used`: when
    the last one was made."""

    def __init__(
        self,
        interpreter: str,
        arguments: Sequence[str],
        cores: int,
        directory: str,
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        """Starts it; raises OSError.

        `arguments`: Snakemake's, without those of a single job; `cores`: the number of cores for
        the parse; `log`: the file for its messages, and for what the workflow prints while it is
        parsed.
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
        with contextlib.suppress(LinkBrokenError):  # its end will be seen
            message = {"version": VERSION, "arguments": list(arguments), "cores": cores}
            send(self._link, message)

    def _start(
        self, interpreter: str, directory: str, theirs: socket.socket
    ) -> subprocess.Popen[bytes]:
        descriptor = theirs.fileno()
        # The directory is the jobs', and may have a module of any name.
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
                # What a terminal sends is for the worker to act upon.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_gone(self) -> bool:
        """Whether it has ended and was reaped."""
        return self._process.poll() is not None

    def fileno(self) -> int:
        return self._link.fileno()

    def attend(self) -> None:
        """Take note of what it said since; never waits."""
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
        """Make a process for a job with these arguments, of which `options` are its own, this whole
        environment, and the output `log`; it is a child of the worker, waits at the gate `held`,
        and ends when that closes.

        Returns its number. Raises ZygoteFailedError; what there may be of a process then ends when
        the gate does.
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
        # Our child it is since the process between has ended, which was before this answer.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.served += 1
        return pid

    def _fail(self, why: str, is_unfit: bool = False) -> None:
        self.failure, self.is_unfit = why, is_unfit

    def end(self) -> None:
        """Have it end, in a moment as a rule."""
        # When the link ends, one that waits removes what it has in temporary directories.
        self._link.close()
        if not self.is_ready:
            self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
