"""A server: a process that has prepared what some jobs have in common, and forks itself for each.

The supervisor starts it as `PROGRAM [ARGUMENT...] SOCKET SUPERVISOR` (see there for the messages).
It says `{"ready": true, "memory": MiB, ...}`, or `{"failed": why}`. Each copy tells its own process
number before it executes anything of its job: to a supervisor that has given the server up it
cannot, and ends.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from errno import EAGAIN
from typing import Any, NoReturn

from snakemake_kochi.worker.copies import memory_mb
from snakemake_kochi.worker.supervisor import Message, become_job, receive, send

_IDLE = 300.0  # seconds without a job
_ADOPTION_PAUSE = 0.0002  # seconds between two looks whether the supervisor is the parent
_STOPS = (signal.SIGTERM, signal.SIGINT)


class Server:
    def __init__(self, arguments: list[str]) -> None:
        """`arguments`: those of the program."""
        self._link = socket.socket(fileno=int(arguments[-2]))
        self._link.set_inheritable(False)
        self._supervisor = int(arguments[-1])
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def say(self, **message: Any) -> None:
        send(self._link, message)

    def serve(
        self,
        live: Callable[[Any, Message], int],
        refuse: Callable[[Message], None] = lambda request: None,
        **facts: Any,
    ) -> None:
        """Fork a process for each request, until the supervisor is gone or no job came for long.

        `live` is the life of a copy as a job, and returns its exit status. `refuse` raises OSError
        for a request that no copy can serve: ESTALE if another server could, ENOTSUP if none can.
        """
        gc.collect()
        self.say(ready=True, memory=memory_mb(), **facts)
        gc.disable()  # looking for garbage copies memory at each fork
        gc.freeze()
        self._live = live
        poll = select.poll()
        poll.register(self._link, select.POLLIN)
        # A copy must not act on these as its server does, which may have a handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        while True:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            try:
                is_asked = poll.poll(1000 * _IDLE)
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
            request, descriptors = receive(self._link) if is_asked else (None, [])
            if request is None:
                return
            try:
                refuse(request)
                self._fork(request, descriptors[0])
            except OSError as error:
                self.say(forked=request["fork"], error=error.errno or EAGAIN, why=error.strerror)
            for number in descriptors:
                os.close(number)

    def _fork(self, request: Message, log: int) -> None:
        """Make the job's process, a child of the supervisor. Raises OSError."""
        between = os.fork()
        if between == 0:
            status = EAGAIN
            with suppress(BaseException):
                between = os.getpid()
                if os.fork() == 0:
                    self._be_job(request, log, between)
                status = 0
            os._exit(status)
        _, status = os.waitpid(between, 0)
        # If a signal ended it, the job's process may exist.
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise OSError(EAGAIN, os.strerror(EAGAIN))

    def _be_job(self, request: Message, log: int, between: int) -> NoReturn:
        while os.getppid() == between:
            time.sleep(_ADOPTION_PAUSE)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        gc.enable()
        become_job(request, log, self._supervisor, self._live, self._link)
