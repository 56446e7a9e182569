"""A link to a server of this computer, with latency: for kernels without `tc netem`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from dataclasses import dataclass
from types import TracebackType


@dataclass(frozen=True)
class Traffic:
    """What went through a link: connections, bytes to the server, bytes from it."""

    connections: int = 0
    sent: int = 0
    received: int = 0

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(
            self.connections - earlier.connections,
            self.sent - earlier.sent,
            self.received - earlier.received,
        )


class Link:
    """A TCP relay on `port` of 127.0.0.1 to another port there, while it is entered.

    What comes in one direction is delivered `latency` seconds later, so a round trip takes twice
    that; the bandwidth has no limit. `latency` may be changed at any time.
    """

    def __init__(self, server: int, latency: float = 0.0) -> None:
        self.latency = latency
        self.port = 0
        self._server = server
        self._connections = 0
        self._bytes = {"sent": 0, "received": 0}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    @property
    def traffic(self) -> Traffic:
        """Since the beginning."""
        return Traffic(self._connections, **self._bytes)

    def __enter__(self) -> Link:
        self._thread.start()
        listening = asyncio.start_server(self._connect, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        await asyncio.sleep(2 * self.latency)  # the handshake of TCP
        theirs, to_server = await asyncio.open_connection("127.0.0.1", self._server)
        for each in (writer, to_server):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(
                self._carry(reader, to_server, "sent"), self._carry(theirs, writer, "received")
            )
        writer.close()
        to_server.close()

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: str
    ) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivery = asyncio.create_task(self._deliver(under_way, target))
        chunk = b"-"
        while chunk:
            chunk = await source.read(1 << 16)
            self._bytes[direction] += len(chunk)
            under_way.put_nowait((self._loop.time() + self.latency, chunk))
        await delivery

    async def _deliver(
        self, under_way: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        while True:
            due, chunk = await under_way.get()
            await asyncio.sleep(due - self._loop.time())
            if not chunk:
                target.write_eof()
                return
            target.write(chunk)
            await target.drain()
