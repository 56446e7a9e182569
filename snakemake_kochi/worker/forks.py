"""What a worker asks of its supervisor: processes of jobs, and servers that fork some of them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count
from queue import Empty, SimpleQueue
from signal import SIGKILL, Signals
from typing import Any, NoReturn

from snakemake_kochi.processes import (
    ProcessIdentity,
    find_job_processes,
    send_signal,
)
from snakemake_kochi.worker.supervisor import children, receive, send

_SERVER_PATIENCE = 10.0  # seconds for a fork, which takes milliseconds


@dataclass(frozen=True)
class Exit:
    """How a process ended: by a status or by a signal; the other is None. `cpu_seconds` and
    `peak_memory_mb` (MiB, of the largest single process) also count what it waited for."""

    status: int | None
    signal: int | None
    cpu_seconds: float = 0.0
    peak_memory_mb: int = 0

    @property
    def is_success(self) -> bool:
        return self.status == 0

    def is_by(self, signals: Collection[Signals]) -> bool:
        """Whether one of these signals ended it, or what it waited for."""
        return self.signal in signals or (self.status or 0) - 128 in signals


@dataclass
class Start:
    """A process that was asked for; `ended` is called by another thread."""

    ended: Callable[[Exit], None]
    process: ProcessIdentity | None = None
    error: OSError | None = None
    known: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Forks:
    """The socket of the supervisor. Any thread may call."""

    def __init__(
        self,
        link: socket.socket,
        stop: Callable[[Signals], None],
        hear: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        """`stop` gets each request to stop; `hear`: what happened to a server, by its name."""
        self._link = link
        self._stop = stop
        self._hear = hear
        self._supervisor = os.getppid()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._starts: dict[int, Start] = {}
        self._servers: dict[str, int] = {}
        self._serving: set[str] = set()  # also those that have no process yet
        threading.Thread(target=self._listen, daemon=True).start()

    def beat(self) -> None:
        """Tell the supervisor that the loop lives."""
        self._send({"beat": 1})

    def start(
        self, request: Mapping[str, Any], log: int, ended: Callable[[Exit], None], server: str = ""
    ) -> ProcessIdentity:
        """Fork the main process of a job. Raises OSError, by which nothing of it was executed.

        A server that does not answer is killed.
        """
        number, start = next(self._numbers), Start(ended)
        with self._lock:
            self._starts[number] = start
        try:
            self._send({"fork": number, "server": server, **request}, log)
        except OSError:
            with self._lock:
                del self._starts[number]
            raise
        try:
            start.known.get(timeout=_SERVER_PATIENCE if server else None)
        except Empty:
            self.end(server, SIGKILL)
            start.known.get()
        if start.error is not None:
            raise start.error
        assert start.process is not None
        return start.process

    def serve(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        directory: str,
        log: int,
    ) -> None:
        """Start a server; `hear` gets what becomes of it. Raises OSError."""
        request = {"command": command, "environment": dict(environment), "directory": directory}
        self._serving.add(name)
        try:
            self._send({"serve": name, **request}, log)
        except OSError:
            self._serving.discard(name)
            raise

    def serves(self, name: str) -> bool:
        """Whether a server was started and has not ended."""
        return name in self._serving

    def end(self, server: str, by: Signals) -> None:
        """Send a server a signal. Raises OSError."""
        self._send({"end": server, "by": by})

    def abandon(self) -> NoReturn:
        """End this process, by which the supervisor ends all others."""
        os._exit(1)

    def signal(self, process: ProcessIdentity, nonce: str, number: Signals) -> None:
        """Signal all processes of a job."""
        send_signal(find_job_processes(process, nonce), number)

    def left(
        self, process: ProcessIdentity, nonce: str, is_alone: Callable[[], bool]
    ) -> list[ProcessIdentity]:
        """What a job has left whose main process has ended; `is_alone`: no other job runs now."""
        if not (orphans := self._orphans()):
            return []
        # Asked after they were listed: the process of a job that began meanwhile may be among them.
        found = {*find_job_processes(process, nonce), *(orphans if is_alone() else ())}
        return sorted(found, key=lambda each: each.pid)

    def _orphans(self) -> list[ProcessIdentity]:
        """The living processes that ended ones left behind, of whichever job."""
        with self._lock:
            known = {s.process.pid for s in self._starts.values() if s.process is not None}
            helpers = {os.getpid(), *self._servers.values()}
        pids = {*children(self._supervisor)} - known - helpers
        found = [ProcessIdentity.of(pid) for pid in pids if _session(pid) not in helpers]
        return [process for process in found if process is not None and process.is_alive()]

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with self._lock:
            send(self._link, message, *descriptors)

    def _listen(self) -> None:
        while True:
            try:
                message, _ = receive(self._link)
            except OSError:
                message = None
            if message is None:  # the supervisor is gone, and its death ends this process
                os._exit(1)
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "forked" in message:
            start = self._starts[message["forked"]]
            if "pid" in message:
                start.process = ProcessIdentity(message["pid"], message["start"])
            else:
                code = message["error"]
                start.error = OSError(code, message.get("why") or os.strerror(code))
                with self._lock:
                    del self._starts[message["forked"]]
            start.known.put(None)
        elif "ended" in message:
            with self._lock:
                start = self._starts.pop(message["ended"])
            start.ended(
                Exit(message["status"], message["signal"], message["cpu"], message["memory"])
            )
        elif "signal" in message:
            self._stop(Signals(message["signal"]))
        else:
            name = next(message[key] for key in ("served", "said", "gone") if key in message)
            with self._lock:
                if "served" in message:
                    self._servers[name] = message["pid"]
                elif "gone" in message:
                    self._servers.pop(name, None)
                    self._serving.discard(name)
            self._hear(name, message)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0
