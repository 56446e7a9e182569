"""Whose a TCP connection over loopback is, and which TCP ports are free.

Every user of a computer may connect to every port of 127.0.0.1. The kernel's tables of connections,
/proc/net/tcp and /proc/net/tcp6 (proc(5)), have the user of each end of such a connection.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
LOOPBACK_6 = "::1"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTENS = "0A"  # TCP_LISTEN, of the kernel's tcp_states.h
_READINGS = 3  # a table that changes while it is read may lack an entry
_FIRST, _LAST = 10_000, 65_535
_EXPECTED = 20  # ports at least outside of the range that is for connections
_ATTEMPTS = 1_000

Address = tuple[str, int]


@dataclass(frozen=True)
class _Entry:
    local: Address
    remote: Address
    listens: bool
    user: int
    has_owner: bool  # no process has a socket that was closed; the kernel then says user 0


def user_of_client(client: Address, server: Address) -> int | None:
    """The number of the user who made the connection from `client` to `server`.

    Both are addresses of this computer. None if no process has the client's end any more, or it is
    not known: whose it was cannot be told then.
    """
    for _ in range(_READINGS):
        for entry in _entries(client[1]):
            if (entry.local, entry.remote) == (client, server):
                return entry.user if entry.has_owner else None
    return None


def users_of_server(server: Address, client: Address) -> set[int]:
    """The numbers of the users who may have the end of a connection that `client` made to `server`.

    These are the user of the process that accepted it, and those who listen there and may yet
    accept it; none if nobody does.
    """
    users = set()
    for entry in _entries(server[1]):
        is_accepted = entry.has_owner and (entry.local, entry.remote) == (server, client)
        if is_accepted or entry.listens:
            users.add(entry.user)
    return users


def listening_users(port: int) -> set[int]:
    """The numbers of the users whose processes listen on a port, on any address."""
    return {entry.user for entry in _entries(port) if entry.listens}


def is_free(port: int) -> bool:
    """Whether a process of this user could listen on the port now, on any address."""
    with ExitStack() as stack:
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                taken = stack.enter_context(socket.socket(family))
                if family == socket.AF_INET6:
                    taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taken.bind(("", port))
            except OSError as error:
                # A computer without IPv6 has no such ports that could be taken.
                if family == socket.AF_INET or error.errno == errno.EADDRINUSE:
                    return False
    return True


def free_port() -> int:
    """A port that nobody uses, and that the kernel gives to nobody who asks for any port.

    So it is still free when a program listens on it later. Raises OSError if there is none.
    """
    below, above = _given_to_connections()
    outside = [*range(_FIRST, below), *range(above + 1, _LAST + 1)]
    candidates = outside if len(outside) >= _EXPECTED else [*range(_FIRST, _LAST + 1)]
    for _ in range(_ATTEMPTS):
        port: int = secrets.choice(candidates)
        if is_free(port):
            return port
    raise OSError(errno.EADDRINUSE, "no TCP port is free on this computer")


def next_free_port(port: int) -> int | None:
    """The first free port after one, or None."""
    for candidate in range(max(port + 1, 1024), min(port + _ATTEMPTS, _LAST) + 1):
        if is_free(candidate):
            return candidate
    return None


def _given_to_connections() -> tuple[int, int]:
    try:
        first, last = _RANGE.read_text().split()
        return int(first), int(last)
    except (OSError, ValueError):
        return 32_768, 60_999  # the kernel's default, ip(7)


def _entries(port: int) -> Iterator[_Entry]:
    """The entries of the tables with a port at this end."""
    mark = f":{port:04X}"
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except FileNotFoundError:
            continue  # a kernel without IPv6
        for line in lines:
            # Fast: a login node may have ten thousands of connections.
            if mark not in line or not (fields := line.split())[1].endswith(mark):
                continue
            yield _Entry(
                _address(fields[1]),
                _address(fields[2]),
                fields[3] == _LISTENS,
                int(fields[7]),
                fields[9] != "0",
            )


def _address(field: str) -> Address:
    """An address of a table: 32-bit words, each in this computer's order of bytes, and the port."""
    words, _, port = field.partition(":")
    numbers = (int(words[at : at + 8], 16) for at in range(0, len(words), 8))
    found = ipaddress.ip_address(b"".join(struct.pack("=I", number) for number in numbers))
    # A program may reach 127.0.0.1 by a socket of IPv6.
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), int(port, 16)


def is_ours(user: int | None) -> bool:
    return user == os.geteuid()
