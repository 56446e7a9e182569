"""What a terminal host and its client send each other: frames on a stream of bytes.

A frame is one byte, its kind, four bytes with the length of its payload, the first the most
significant, the payload, and a newline, because some relays pass on whole lines only. A client
begins with HELLO. The host answers with WELCOME or REFUSED.

A relay begins with the line GREETING: what a login shell prints before it is no frame.
"""

from __future__ import annotations

import json
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
