"""From here to the terminal of a job: directly on its node, else through a relay there."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue.views import find_worker
from snakemake_kochi.terminal.address import Address, connect_to
from snakemake_kochi.terminal.protocol import GREETING
from snakemake_kochi.terminal.relay import relay_command

_GREETING_PATIENCE = 60.0  # seconds; a login or a step of a scheduler may take long
_LONGEST_BANNER = 1 << 16
_RELAY_PATIENCE = 5.0


class UnreachableTerminalError(KochiError):
    """There is no way to the terminal of a job now."""


@contextmanager
def connected(location: Location, address: Address) -> Iterator[socket.socket]:
    """A stream to the terminal host at an address. Raises UnreachableTerminalError, and KochiError
    if its worker is gone."""
    if this_node().can_see(address.node) and os.path.exists(address.socket):
        try:
            connection = connect_to(Path(address.socket))
        except OSError as error:
            raise UnreachableTerminalError(
                f"{address.socket}: {error.strerror}: the terminal is gone"
            ) from error
        with connection:
            yield connection
        return
    words = _there(location, address, relay_command(address.socket))
    with relayed(words, address) as connection:
        yield connection


def way_to_port(location: Location, address: Address) -> list[str]:
    """The argument list that runs a relay to the job's port. Raises KochiError."""
    if not address.port:
        raise KochiError(
            "the job's script is isolated from the network, so that no port reaches it",
            "Leave out -p",
        )
    # Imported here: most terminals have no port.
    from snakemake_kochi.terminal.port_relay import port_relay_command

    return _there(location, address, port_relay_command(address.port))


def _there(location: Location, address: Address, words: Sequence[str]) -> list[str]:
    """The argument list that runs a relay on the node of the terminal. Raises KochiError."""
    # Imported here: it loads the ways to other nodes.
    from snakemake_kochi.terminal.reach import program_on_node

    worker = find_worker(location.machine_paths, address.worker)
    return program_on_node(location, worker, words)


@contextmanager
def relayed(words: Sequence[str], address: Address) -> Iterator[socket.socket]:
    """A stream to the terminal host at an address through a relay, which `words` start. Raises
    UnreachableTerminalError."""
    ours, theirs = socket.socketpair()
    # A group of its own: Ctrl-C before the terminal is in raw mode is for this process.
    far = theirs.fileno()
    with ours, subprocess.Popen(words, stdin=far, stdout=far, process_group=0) as process:
        theirs.close()
        try:
            _await_greeting(ours, address)
            yield ours
        finally:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            try:
                process.wait(_RELAY_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_greeting(stream: socket.socket, address: Address) -> None:
    """Read up to the relay's first line; what comes before is a login shell's."""
    stream.settimeout(_GREETING_PATIENCE)
    before = bytearray()
    try:
        # Byte by byte: what follows is for the client.
        while not before.endswith(GREETING):
            if not (byte := stream.recv(1)) or len(before) > _LONGEST_BANNER:
                raise UnreachableTerminalError(
                    f"no relay starts on {address.node.host}, where the terminal is"
                )
            before += byte
    except OSError as error:
        raise UnreachableTerminalError(
            f"no relay starts on {address.node.host}, where the terminal is: {error}"
        ) from error
    stream.settimeout(None)
