"""What a terminal host and its client send each other: frames on a stream of bytes.

A frame is one byte, its kind, four bytes with the length of its payload, the first the most
significant, the payload, and a newline, because some relays pass on whole lines only. A client
begins with HELLO. The host answers with WELCOME or REFUSED.

A relay begins with the line GREETING: what a login shell prints before it is no frame.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from snakemake_kochi.errors import KochiError

VERSION = 1
GREETING = b"kochi-terminal 1\n"


class Kind(bytes, Enum):
    """The kinds of frames."""

    # from the client
    HELLO = b"H"  # JSON: version, and the size as a list of four numbers
    SIZE = b"s"  # rows, columns, and the width and height in pixels: four numbers of two bytes
    DETACH = b"x"  # leave the program running, if it may
    HANG_UP = b"h"  # end the program
    # from both
    DATA = b"d"
    # from the host
    WELCOME = b"w"  # JSON: keep
    EXIT = b"e"  # JSON: status, signal, why
    REFUSED = b"r"  # a sentence
    DETACHED = b"y"  # a sentence: the program goes on without this client


_HEADER = struct.Struct("!cI")
_END = b"\n"
_SIZE = struct.Struct("!HHHH")
# Far more than either side sends at once: a longer frame comes from something else.
_LONGEST = 1 << 20
_CHUNK = 1 << 16


class ProtocolError(KochiError):
    """What came was sent by another program, or by another version."""


@dataclass(frozen=True)
class Size:
    """The size of a terminal; `width` and `height` are pixels, 0 if unknown."""

    rows: int = 24
    columns: int = 80
    width: int = 0
    height: int = 0

    def pack(self) -> bytes:
        """As in a frame; struct winsize of ioctl_tty(2) has the same order."""
        return _SIZE.pack(self.rows, self.columns, self.width, self.height)

    @classmethod
    def unpack(cls, payload: bytes) -> Size:
        """Raises ProtocolError."""
        if len(payload) != _SIZE.size:
            raise ProtocolError("the size of a terminal was expected")
        return cls(*_SIZE.unpack(payload))

    @classmethod
    def from_list(cls, numbers: Any) -> Size:
        """From the list of its fields. Raises ProtocolError."""
        if (
            not isinstance(numbers, list)
            or len(numbers) != 4
            or not all(isinstance(each, int) and 0 <= each < 1 << 16 for each in numbers)
        ):
            raise ProtocolError("the size of a terminal was expected")
        return cls(*numbers)

    @property
    def numbers(self) -> list[int]:
        return [self.rows, self.columns, self.width, self.height]


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload + _END


def data_frames(data: bytes) -> bytes:
    """Bytes of any length as frames; no bytes are no frame."""
    return b"".join(frame(Kind.DATA, data[at : at + _CHUNK]) for at in range(0, len(data), _CHUNK))


def json_frame(kind: bytes, data: Mapping[str, Any]) -> bytes:
    return frame(kind, json.dumps(data).encode())


def read_json_payload(payload: bytes) -> dict[str, Any]:
    """The object in a payload. Raises ProtocolError."""
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ProtocolError("a JSON object was expected")
    return found


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that are complete with this data, as kind and payload. Raises
        ProtocolError."""
        self._pending += data
        found = []
        while len(self._pending) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._pending)
            if length > _LONGEST:
                raise ProtocolError("the other side of the connection is no terminal of a job")
            end = _HEADER.size + length
            if len(self._pending) <= end:
                break
            found.append((kind, bytes(self._pending[_HEADER.size : end])))
            del self._pending[: end + len(_END)]
        return found


class Peer:
    """The other side of a connection. It may be slow: what it does not take now waits here."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._frames = FrameReader()
        self._unsent = bytearray()
        self.is_gone = False
        self.why = ""  # it is gone, in the words of the system

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def unsent(self) -> int:
        """The number of bytes that wait."""
        return len(self._unsent)

    def send(self, frames: bytes = b"") -> bool:
        """Send what it takes of this, and of what waits; False if it takes nothing any more. It
        may have said something before, which `receive` still gets."""
        self._unsent += frames
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
            return False
        return True

    def send_rest(self, patience: float, frames: bytes = b"") -> bool:
        """Send all; False if it has not taken it within so many seconds."""
        self._unsent += frames
        self._connection.settimeout(patience)
        try:
            self._connection.sendall(self._unsent)
        except OSError:
            return False
        finally:
            self._unsent.clear()
            with contextlib.suppress(OSError):
                self._connection.setblocking(False)
        return True

    def receive(self) -> list[tuple[bytes, bytes]]:
        """The frames that have come; `is_gone` tells the end. Raises ProtocolError."""
        try:
            data = self._connection.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError as error:
            data, self.why = b"", error.strerror or str(error)
        self.is_gone = not data
        return self._frames.feed(data)

    def close(self) -> None:
        self._connection.close()
