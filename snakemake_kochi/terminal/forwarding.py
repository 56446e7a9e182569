"""A TCP port of this computer whose connections reach a port of a job's node.

The port is open on 127.0.0.1 only, and takes connections of this user only: any user of the
computer, as of a login node, may connect to such a port. The connections are carried over stdin and
stdout of one process on the node (`port_relay`), which is started for the first of them, and anew
if it has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from snakemake_kochi.backoff import Backoff
from snakemake_kochi.errors import KochiError, told
from snakemake_kochi.terminal.loopback import (
    LOOPBACK,
    LOOPBACK_6,
    Address,
    is_ours,
    listening_users,
    next_free_port,
    user_of_client,
)
from snakemake_kochi.terminal.streams import (
    CHUNK,
    Multiplexer,
    StreamError,
    abort,
    reading,
    writing,
)

_FIRST_FOR_USERS = 1024
_MOST_CONNECTIONS = 400  # a process may often have 1,024 files open
_BACKLOG = 128
_STARTING = 60.0  # seconds for the relay's greeting: a busy scheduler needs some
_ENDING = 5.0
_LAST_WORDS = 2000  # bytes of what the relay wrote to stderr

Result = TypeVar("Result")
Say = Callable[[str], None]


class PortError(KochiError):
    """A port cannot be forwarded."""


class Forwarding:
    """The forwarded port; a context manager. Its connections are refused until `begin`.

    A thread of this process carries them, because the terminal of the job needs the process too.
    """

    def __init__(self, port: int) -> None:
        """Listen. Raises PortError if the port is taken, or not for this user."""
        self.port = port
        self.refused = Counter[int | None]()  # connections of others, by user
        self.problem = ""  # why the last relay ended, if it did by itself
        self._words: Sequence[str] | None = None
        self._relay: _Relay | None = None
        self._starting = asyncio.Lock()
        self._backoff = Backoff(1.0, 30.0)
        self._connections = set[asyncio.Task[None]]()
        self._listening = _listen(port)
        # A program that tries "localhost" may try this address first: nobody else gets it.
        self._reserved = _reserve(port, self._listening)
        self._loop = asyncio.new_event_loop()
        # It would write to the terminal of the job.
        self._loop.set_exception_handler(lambda *_: None)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def __enter__(self) -> Forwarding:
        self._thread.start()
        self._call(self._accept())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def close(self) -> None:
        """Give up the port, if it was never entered."""
        self._listening.close()
        self._reserved.close()
        self._loop.close()

    def begin(self, words: Sequence[str]) -> None:
        """From now on, connections go to the relay that a list of arguments starts."""
        self._words = tuple(words)

    def told(self) -> list[str]:
        """What the user should know at the end."""
        lines = [
            f"{self.address}: refused {count} {'connection' if count == 1 else 'connections'} of "
            f"{'another user' if user is None else _name(user)}"
            for user, count in sorted(self.refused.items(), key=str)
        ]
        return [*lines, *([f"{self.address}: {self.problem}"] if self.problem else [])]

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _accept(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, sock=self._listening, limit=CHUNK, backlog=_BACKLOG
        )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self._may_enter(writer) and (relay := await self._running()) is not None:
                await relay.multiplexer.open(reader, writer)
        finally:
            abort(writer)
            self._connections.discard(task)

    def _may_enter(self, writer: asyncio.StreamWriter) -> bool:
        client: Address | None = writer.get_extra_info("peername")
        user = user_of_client(client, (LOOPBACK, self.port)) if client else None
        if not is_ours(user):
            self.refused[user] += 1
            return False
        return len(self._connections) <= _MOST_CONNECTIONS

    async def _running(self) -> _Relay | None:
        """The relay, started if there is none; None if it cannot be."""
        async with self._starting:
            if self._words is None:
                return None
            if self._relay is not None and self._relay.has_ended:
                await self._relay.end()
                self._relay = None
            if self._relay is None and self._backoff.is_due:
                relay = _Relay(self._words)
                try:
                    await asyncio.wait_for(relay.start(), _STARTING)
                except (KochiError, OSError, TimeoutError) as error:
                    self.problem = await relay.end() or str(error) or "no answer of the node"
                    self._backoff.failed()
                else:
                    self._relay, self.problem = relay, ""
                    self._backoff.worked()
            return self._relay

    async def _end(self) -> None:
        self._server.close()
        self._reserved.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._relay is not None:
            await self._relay.end()


@dataclass(frozen=True)
class ForwardedElsewhere:
    """A port that is forwarded on another computer: from there comes the command of this process,
    and the relay, by `kochi forward`."""

    port: int

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def begin(self, words: Sequence[str]) -> None:
        """Nothing: the other computer does."""


@contextmanager
def forwarded(port: int, say: Say) -> Iterator[Forwarding]:
    """A forwarded port; `say` prints what the user should know at its end. Raises PortError."""
    with Forwarding(port) as forwarding:
        try:
            yield forwarding
        finally:
            for line in forwarding.told():
                say(line)


class _Relay:
    """The process on the node, as its user's side has it."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._last_words = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks = list[asyncio.Task[None]]()

    @property
    def has_ended(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def start(self) -> None:
        """Raises StreamError if it ends at once, and OSError."""
        # Two pipes and not one socket: ssh makes its stdin non-blocking, which another process has
        # as its stdout. A session of its own: keys of the terminal are for the job.
        process = self._process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin and process.stdout and process.stderr
        errors = await reading(process.stderr)
        self._tasks.append(asyncio.ensure_future(self._read_errors(errors)))
        reader, self._writer = await reading(process.stdout), await writing(process.stdin)
        self.multiplexer = Multiplexer(reader, self._writer)
        await self.multiplexer.expect_greeting()
        self._tasks.append(asyncio.ensure_future(self._receive()))

    async def end(self) -> str:
        """End the process. Returns the last line that it wrote to stderr."""
        if self._writer is not None:
            self._writer.close()
        if (process := self._process) is not None:
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, _ENDING)
                    break
        # What it has written is there; another process may keep the pipe open.
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.1)
        for task in self._tasks:
            task.cancel()
        lines = self._last_words.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    async def _receive(self) -> None:
        with contextlib.suppress(StreamError):
            await self.multiplexer.run()

    async def _read_errors(self, errors: asyncio.StreamReader) -> None:
        while data := await errors.read(CHUNK):
            self._last_words = (self._last_words + data)[-_LAST_WORDS:]


def _listen(port: int) -> socket.socket:
    listening = socket.socket()
    try:
        # Else connections of a minute ago would still take the port.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((LOOPBACK, port))
        # At once: another user could listen on a port that is bound only.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise _problem(port, error) from None
    return listening


def _reserve(port: int, listening: socket.socket) -> socket.socket:
    try:
        reserved = socket.socket(socket.AF_INET6)
    except OSError:
        return listening  # without IPv6 nobody can take it
    try:
        reserved.bind((LOOPBACK_6, port))
    except OSError as error:
        reserved.close()
        if error.errno == errno.EADDRINUSE:
            listening.close()
            raise _problem(port, error) from None
    return reserved


def _problem(port: int, error: OSError) -> PortError:
    instead = next_free_port(port)
    hint = f"Type another one: -p {instead}" if instead else "Type another one with -p"
    if error.errno == errno.EACCES and port < _FIRST_FOR_USERS:
        return PortError(
            f"port {port} is for the system's services (those below {_FIRST_FOR_USERS} are)", hint
        )
    if error.errno == errno.EADDRINUSE:
        users = sorted(listening_users(port))
        by = f" by a process of {' and '.join(map(_name, users))}" if users else ""
        return PortError(f"port {port} of this computer is taken{by}", hint)
    return PortError(f"port {port} of this computer cannot be used: {told(error)}", hint)


def _name(user: int) -> str:
    if user == os.geteuid():
        return "yours"
    try:
        return f"'{pwd.getpwuid(user).pw_name}'"
    except KeyError:
        return f"user {user}"
