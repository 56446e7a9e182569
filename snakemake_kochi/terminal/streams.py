"""Any number of connections over one stream of bytes.

Frames go in both directions: 1 byte kind, 4 bytes number of the connection, 4 bytes length (both in
the order of the network), as many bytes, and a newline, because some relays, such as srun, pass on
whole lines only. One side opens connections; the kinds are

    OPEN    a new connection
    DATA    bytes of it
    END     this direction has ended; the other one may go on
    RESET   both directions have ended, or the connection was refused
    WINDOW  so many bytes more may be sent (the content is a number of 4 bytes)

A side sends no more than the other one has room for: 256 KiB at first, then what each WINDOW adds
when bytes were taken by who reads them. These are the channels of SSH (RFC 4254, 5.2). So a slow
reader holds up its own connection only, and nothing is kept without a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import IO, Any

from snakemake_kochi.errors import KochiError

_WINDOW = 256 * 1024
CHUNK = 32 * 1024
# First on the stream from the node: what a login shell printed before it is no frame.
GREETING = b"kochi-streams 1\n"
_BEFORE_GREETING = 64 * 1024
_HEADER = struct.Struct("!BII")
_COUNT = struct.Struct("!I")


class StreamError(KochiError):
    """What arrives is not of this protocol, or the stream has ended."""


class Kind(IntEnum):
    OPEN, DATA, END, RESET, WINDOW = range(1, 6)


class _Stream:
    """One connection: what may be sent, and what has arrived and is not written yet."""

    def __init__(self) -> None:
        self.credit = _WINDOW
        self.has_credit = asyncio.Event()
        self.has_credit.set()
        self.arrived = asyncio.Queue[bytes]()  # b"" is its end; holds at most a window
        self.room = _WINDOW
        self.has_ended = False
        self.reset = asyncio.Event()

    def grant(self, count: int) -> None:
        self.credit += count
        self.has_credit.set()

    async def allowed(self) -> int:
        await self.has_credit.wait()
        return min(self.credit, CHUNK)

    def spend(self, count: int) -> None:
        self.credit -= count
        if not self.credit:
            self.has_credit.clear()


class Multiplexer:
    """One end of the shared stream; `opened` gets the number of each connection that is opened."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        opened: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._reader, self._writer, self._opened = reader, writer, opened
        self._streams: dict[int, _Stream] = {}
        self._sending = asyncio.Lock()
        self._next = 0
        self._is_over = False
        self._tasks = set[asyncio.Task[None]]()

    async def greet(self) -> None:
        self._writer.write(GREETING)
        await self._writer.drain()

    async def expect_greeting(self) -> None:
        """Raises StreamError if the stream ends before the greeting, or is something else."""
        skipped = 0
        while (line := await _line(self._reader)) != GREETING:
            skipped += len(line)
            if not line.endswith(b"\n") or skipped > _BEFORE_GREETING:
                raise StreamError("the relay of the forwarded port did not start")

    async def run(self) -> None:
        """Receive until the stream ends; all connections are reset then. Raises StreamError."""
        try:
            while (frame := await self._receive()) is not None:
                self._take(*frame)
        finally:
            self._is_over = True
            for stream in self._streams.values():
                stream.reset.set()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection of this side as a new one, until it has ended."""
        number, self._next = self._next, (self._next + 1) % 2**32
        self._streams[number] = _Stream()
        with contextlib.suppress(OSError):
            await self._send(Kind.OPEN, number)
        await self.carry(number, reader, writer)

    async def refuse(self, number: int) -> None:
        """Refuse an opened connection."""
        self._streams.pop(number, None)
        with contextlib.suppress(OSError):
            await self._send(Kind.RESET, number)

    async def carry(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry a connection of this side as an opened one, until it has ended."""
        stream = self._streams[number]
        writer.transport.set_write_buffer_limits(high=0)
        both = asyncio.ensure_future(self._both(number, stream, reader, writer))
        was_reset = asyncio.ensure_future(stream.reset.wait())
        if self._is_over:
            stream.reset.set()
        try:
            await asyncio.wait((both, was_reset), return_when=asyncio.FIRST_COMPLETED)
            if both.done() and both.result():
                writer.close()
            elif not stream.reset.is_set():
                await self.refuse(number)
        finally:
            abort(writer)
            self._streams.pop(number, None)
            await _end(both, was_reset)

    async def _both(
        self,
        number: int,
        stream: _Stream,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Carry both directions; False if one was cut off."""
        is_whole = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outwards(number, stream, reader))
                group.create_task(self._inwards(number, stream, writer))
        except* OSError:
            is_whole = False
        return is_whole

    async def _outwards(self, number: int, stream: _Stream, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(await stream.allowed()):
            stream.spend(len(data))
            await self._send(Kind.DATA, number, data)
        await self._send(Kind.END, number)

    async def _inwards(self, number: int, stream: _Stream, writer: asyncio.StreamWriter) -> None:
        while data := await stream.arrived.get():
            writer.write(data)
            await writer.drain()
            stream.room += len(data)
            await self._send(Kind.WINDOW, number, _COUNT.pack(len(data)))
        writer.write_eof()

    async def _send(self, kind: Kind, number: int, content: bytes = b"") -> None:
        # One at a time: else each connection would add its bytes to what waits to be written.
        async with self._sending:
            self._writer.write(_HEADER.pack(kind, number, len(content)) + content + b"\n")
            await self._writer.drain()

    async def _receive(self) -> tuple[Kind, int, bytes] | None:
        try:
            header = await self._reader.readexactly(_HEADER.size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise StreamError("the stream of a forwarded port ended within a frame") from None
            return None
        except OSError:
            return None
        try:
            kind, number, length = _HEADER.unpack(header)
            if length > CHUNK:
                raise ValueError
            content = await self._reader.readexactly(length + 1)
            if content[-1:] != b"\n":
                raise ValueError
            return Kind(kind), number, content[:-1]
        except (ValueError, asyncio.IncompleteReadError, OSError):
            raise _damaged() from None

    def _take(self, kind: Kind, number: int, content: bytes) -> None:
        """Note a frame. It never waits: both sides would wait for each other."""
        stream = self._streams.get(number)
        if kind is Kind.OPEN:
            if stream is not None or self._opened is None:
                raise _damaged()
            self._streams[number] = _Stream()
            task = asyncio.ensure_future(self._opened(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif stream is None or (stream.has_ended and kind is Kind.DATA):
            pass  # reset here while the frame was under way
        elif kind is Kind.DATA:
            stream.room -= len(content)
            if stream.room < 0:
                raise _damaged()
            stream.arrived.put_nowait(content)
        elif kind is Kind.END:
            stream.has_ended = True
            stream.arrived.put_nowait(b"")
        elif kind is Kind.WINDOW:
            if len(content) != _COUNT.size:
                raise _damaged()
            stream.grant(*_COUNT.unpack(content))
        else:
            stream.reset.set()


async def reading(file: IO[bytes]) -> asyncio.StreamReader:
    """What can be read from a pipe. Its descriptor is closed at its end."""
    reader = asyncio.StreamReader(limit=CHUNK)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    return reader


async def writing(file: IO[bytes]) -> asyncio.StreamWriter:
    """What is written to a pipe. It may be no socket: what is read from that would be its end."""
    loop = asyncio.get_running_loop()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: protocol, file)
    return asyncio.StreamWriter(transport, protocol, None, loop)


def abort(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the other end sees that it was cut off, and no orderly end."""
    if writer.transport.is_closing():
        return
    with contextlib.suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _damaged() -> StreamError:
    return StreamError("the stream of a forwarded port is damaged")


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except (ValueError, OSError):
        return b""
