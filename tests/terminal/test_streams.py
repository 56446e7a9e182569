"""Any number of connections over one stream of bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from snakemake_kochi.terminal.streams import CHUNK, GREETING, Multiplexer, StreamError

MEGABYTE = 1024 * 1024
WINDOW = 256 * 1024


@dataclass(frozen=True)
class End:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, content: bytes, ends: bool = False) -> None:
        self.writer.write(content)
        await self.writer.drain()
        if ends:
            self.writer.write_eof()


async def pair() -> tuple[End, End]:
    """The two ends of a connection."""
    ours, theirs = socket.socketpair()
    return (
        End(*await asyncio.open_connection(sock=ours, limit=CHUNK)),
        End(*await asyncio.open_connection(sock=theirs, limit=CHUNK)),
    )


class Link:
    """Two multiplexers, near and far, and the connections over them."""

    def __init__(self) -> None:
        self._programs = asyncio.Queue[End]()
        self._tasks = list[asyncio.Task[None]]()

    async def join(self, near: End, far: End) -> asyncio.Future[list[None]]:
        async def opened(number: int) -> None:
            program, carried = await pair()
            self._programs.put_nowait(program)
            await there.carry(number, carried.reader, carried.writer)

        self._near = Multiplexer(near.reader, near.writer)
        there = Multiplexer(far.reader, far.writer, opened)
        await there.greet()
        await self._near.expect_greeting()
        return asyncio.gather(self._near.run(), there.run())

    async def connect(self) -> tuple[End, End]:
        """The user's end and the program's of a new connection."""
        user, carried = await pair()
        task = asyncio.create_task(self._near.open(carried.reader, carried.writer))
        self._tasks.append(task)
        return user, await self._programs.get()


@asynccontextmanager
async def linked() -> AsyncIterator[Link]:
    first, second = await pair()
    link = Link()
    running = await link.join(first, second)
    yield link
    first.writer.close()
    second.writer.close()
    with suppress(StreamError):
        await running


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]


def test_each_connection_gets_its_own_bytes_in_both_directions_at_once() -> None:
    async def exchange(number: int, user: End, program: End) -> None:
        # More than a window: none of them may wait for the other direction.
        content = bytes([number]) * (WINDOW + CHUNK + number)
        questions, answers, *_ = await asyncio.gather(
            program.reader.read(-1),
            user.reader.read(-1),
            user.send(content, ends=True),
            program.send(content[::-1], ends=True),
        )
        assert (questions, answers) == (content, content)

    async def test() -> None:
        async with linked() as link:
            ends = [await link.connect() for _ in range(50)]
            await asyncio.gather(*(exchange(n, *each) for n, each in enumerate(ends)))

    run(test)


def test_a_connection_whose_one_direction_has_ended_still_carries_the_answer() -> None:
    async def test() -> None:
        async with linked() as link:
            user, program = await link.connect()
            await user.send(b"question", ends=True)
            assert await program.reader.read(-1) == b"question"
            sending = asyncio.create_task(program.send(b"answer" * MEGABYTE, ends=True))
            assert await user.reader.read(-1) == b"answer" * MEGABYTE
            await sending

    run(test)


def test_a_connection_that_is_cut_off_is_cut_off_at_the_other_end() -> None:
    async def test() -> None:
        async with linked() as link:
            user, program = await link.connect()
            await user.send(b"x")
            assert await program.reader.readexactly(1) == b"x"
            program.writer.close()  # with no reader left, what follows is an error
            await user.send(b"y" * 1000)
            assert await user.reader.read(-1) == b""
            with pytest.raises(OSError):
                while True:
                    await user.send(b"z" * CHUNK)

    run(test)


async def sent_before_a_stop(user: End) -> int:
    """How many bytes a connection takes that nobody reads at the other end."""
    count = 0
    with suppress(TimeoutError):
        while True:
            await asyncio.wait_for(user.send(bytes(CHUNK)), 1)
            count += CHUNK
    return count


def test_a_slow_reader_holds_up_its_sender_and_no_other_connection() -> None:
    async def test() -> None:
        async with linked() as link:
            slow, unread = await link.connect()
            # Two windows of our own, and what the sockets between hold.
            assert WINDOW < await sent_before_a_stop(slow) < 4 * MEGABYTE
            for _ in range(3):
                user, program = await link.connect()
                sending = asyncio.create_task(user.send(b"fast" * MEGABYTE, ends=True))
                assert await program.reader.read(-1) == b"fast" * MEGABYTE
                await sending
            # It goes on where it stopped.
            assert await unread.reader.readexactly(WINDOW) == bytes(WINDOW)

    run(test)


def test_the_end_of_the_stream_cuts_off_all_connections_and_refuses_new_ones() -> None:
    async def test() -> None:
        first, second = await pair()
        link = Link()
        running = await link.join(first, second)
        user, program = await link.connect()
        second.writer.close()
        await running
        assert await user.reader.read(-1) == b""
        assert await program.reader.read(-1) == b""
        late, carried = await pair()
        await link._near.open(carried.reader, carried.writer)
        assert await late.reader.read(-1) == b""

    run(test)


def test_a_relay_that_passes_on_whole_lines_only_delays_nothing() -> None:
    """As srun does with what a task writes."""

    async def by_lines(source: End, sink: End) -> None:
        while (line := await source.reader.readuntil(b"\n")) and not source.reader.at_eof():
            await sink.send(line)

    async def test() -> None:
        near, inner = await pair()
        outer, far = await pair()
        relays = (
            asyncio.create_task(by_lines(outer, inner)),
            asyncio.create_task(by_lines(inner, outer)),
        )
        link = Link()
        running = await link.join(near, far)
        user, program = await link.connect()
        for content in (b"no newline", b"\n", b"\n\n\0\r", b"x"):
            await user.send(content)
            assert await program.reader.readexactly(len(content)) == content
            await program.send(content)
            assert await user.reader.readexactly(len(content)) == content
        near.writer.close()
        far.writer.close()
        await running
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    run(test)


def frame(kind: int, number: int, content: bytes = b"", end: bytes = b"\n") -> bytes:
    return struct.pack("!BII", kind, number, len(content)) + content + end


@pytest.mark.parametrize(
    "received",
    [
        b"Welcome to the cluster!\n",
        b"\2\0",  # the stream ends within a frame
        frame(9, 0),
        frame(2, 0, b"x", b"?"),
        struct.pack("!BII", 2, 0, 2**31),
        frame(1, 7),  # the side of the user opens connections, and the other one none
        frame(5, 0, b"x"),  # a window without its number
        frame(2, 0, bytes(CHUNK)) * (8 * WINDOW // CHUNK),  # more than there is room for
    ],
)
def test_a_damaged_stream_ends_with_an_error(received: bytes) -> None:
    async def test() -> None:
        near, far = await pair()
        multiplexer = Multiplexer(near.reader, near.writer)
        user, carried = await pair()
        opening = asyncio.create_task(multiplexer.open(carried.reader, carried.writer))
        assert len(await far.reader.readexactly(10)) == 10
        # Nobody reads what arrives, so that the connection cannot take it.
        user.reader._transport.pause_reading()  # type: ignore[attr-defined]
        sending = asyncio.create_task(far.send(received, ends=True))
        with pytest.raises(StreamError):
            await multiplexer.run()
        await opening
        near.writer.close()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    run(test)


def test_what_a_login_shell_prints_before_the_greeting_is_skipped() -> None:
    async def test() -> None:
        near, far = await pair()
        await far.send(b"Welcome to the cluster!\nNo \xff tasks on the login node.\n" + GREETING)
        await Multiplexer(near.reader, near.writer).expect_greeting()

    run(test)


@pytest.mark.parametrize("printed", [b"", b"no line", b"one line\n", b"endless\n" * MEGABYTE])
def test_a_program_that_does_not_greet_is_an_error(printed: bytes) -> None:
    async def test() -> None:
        near, far = await pair()
        sending = asyncio.create_task(far.send(printed, ends=True))
        with pytest.raises(StreamError, match="did not start"):
            await Multiplexer(near.reader, near.writer).expect_greeting()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    run(test)
