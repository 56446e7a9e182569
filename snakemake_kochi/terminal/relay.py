"""The relay: joins standard input and output with the socket of a terminal host on this node.

    python -m snakemake_kochi.terminal.relay SOCKET

A client on another node starts it here, by ssh or through a scheduler.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from snakemake_kochi.errors import told
from snakemake_kochi.terminal.address import connect_to
from snakemake_kochi.terminal.protocol import GREETING
from snakemake_kochi.terminal.screen import write_all

_CHUNK = 1 << 16


def relay_command(socket_path: str) -> list[str]:
    """The argument list that joins stdio with a socket on the node that executes it."""
    return [sys.executable, "-P", "-m", "snakemake_kochi.terminal.relay", socket_path]


def join(connection: socket.socket, source: int = 0, target: int = 1) -> None:
    """Copy bytes both ways until one side ends. Raises OSError if nobody reads the target."""
    with selectors.PollSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == source:
                    if not (data := os.read(source, _CHUNK)):
                        return
                    try:
                        connection.sendall(data)
                    except OSError:
                        # The host is gone. What it has said last is still to be read.
                        selector.unregister(source)
                else:
                    try:
                        data = connection.recv(_CHUNK)
                    except ConnectionError:
                        return
                    if not data:
                        return
                    write_all(target, data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Relay until one side ends; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m snakemake_kochi.terminal.relay", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("socket", metavar="SOCKET", type=Path)
    options = parser.parse_args(arguments)
    try:
        connection = connect_to(options.socket)
    except OSError as error:
        print(f"kochi: {told(error)}", file=sys.stderr)
        return 1
    with connection, contextlib.suppress(OSError):
        write_all(1, GREETING)
        join(connection)
    return 0


if __name__ == "__main__":
    sys.exit(main())
