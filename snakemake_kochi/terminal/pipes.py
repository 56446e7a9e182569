"""The ends of pipes as streams of asyncio."""

from __future__ import annotations

import asyncio
from typing import IO

from snakemake_kochi.terminal.streams import CHUNK


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
