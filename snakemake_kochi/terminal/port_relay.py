"""On the node of a job: joins its stdin and stdout with connections to a TCP port of the node.

    python -P -m snakemake_kochi.terminal.port_relay PORT

Its user is at the other end of stdin and stdout: see `streams`, and `forwarding`, which starts it.
It opens no port of its own, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import sys
from collections.abc import Sequence

from snakemake_kochi.terminal.loopback import LOOPBACK, LOOPBACK_6, users_of_server
from snakemake_kochi.terminal.streams import (
    CHUNK,
    Multiplexer,
    StreamError,
    abort,
    reading,
    writing,
)

_STDIN, _STDOUT = 0, 1
_ROOT = 0
_PATIENCE = 10.0  # seconds; a program that is stopped does not hold up its user for ever

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def port_relay_command(port: int) -> list[str]:
    """The argument list that joins stdio with a port of the node that executes it."""
    # -P: a module of that name in the user's directory must not replace a library.
    return [sys.executable, "-P", "-m", "snakemake_kochi.terminal.port_relay", str(port)]


async def _serve(port: int) -> None:
    async def opened(number: int) -> None:
        try:
            ends = await asyncio.wait_for(_connect(port), _PATIENCE)
        except (OSError, TimeoutError):
            await multiplexer.refuse(number)
        else:
            await multiplexer.carry(number, *ends)

    multiplexer = Multiplexer(*await stdio(), opened)
    await multiplexer.greet()
    await multiplexer.run()


async def _connect(port: int) -> Ends:
    """A connection to the job's program. Raises OSError if no program of this user listens.

    Any user of the node may listen on a port that the program does not use, and would get what is
    meant for it.
    """
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port, limit=CHUNK)
    except OSError:
        # What "localhost" means to some programs.
        reader, writer = await asyncio.open_connection(LOOPBACK_6, port, limit=CHUNK)
    server, client = (writer.get_extra_info(name)[:2] for name in ("peername", "sockname"))
    users = users_of_server(server, client)
    # The system's own programs may stand for those of this user, as docker's proxy does.
    if not users or not {os.geteuid(), _ROOT}.issuperset(users):
        abort(writer)
        raise ConnectionRefusedError
    return reader, writer


async def stdio() -> Ends:
    """The stdin and stdout of this process, which may be pipes or sockets, also one socket."""
    first, second = os.fstat(_STDIN), os.fstat(_STDOUT)
    if stat.S_ISSOCK(first.st_mode) and os.path.samestat(first, second):
        return await _over_socket(_STDIN)
    if stat.S_ISSOCK(first.st_mode):
        reader, _ = await _over_socket(_STDIN)
    else:
        reader = await reading(os.fdopen(_STDIN, "rb", closefd=False))
    if stat.S_ISSOCK(second.st_mode):
        _, writer = await _over_socket(_STDOUT)
    else:
        writer = await writing(os.fdopen(_STDOUT, "wb", closefd=False))
    return reader, writer


async def _over_socket(descriptor: int) -> Ends:
    connected = socket.socket(fileno=os.dup(descriptor))
    return await asyncio.open_connection(sock=connected, limit=CHUNK)


def main(arguments: Sequence[str]) -> int:
    (port,) = arguments
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        try:
            asyncio.run(_serve(int(port)))
        except StreamError as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
