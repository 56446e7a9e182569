"""Showing a file that grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

_LOOK_SECONDS = 0.1  # how often a file that is followed is looked at
_CHECK_SECONDS = 0.5  # how often whether it still grows is asked for


def show_file(path: Path, follow: bool, has_ended: Callable[[], bool]) -> None:
    """Copy a file to standard output as it is, byte by byte; and go on with `follow`."""
    position = 0
    checked = -_CHECK_SECONDS
    ended = not follow
    while True:
        position = copy_from(path, position)
        if ended:
            return
        if time.monotonic() - checked >= _CHECK_SECONDS:
            # What was printed between the last look and the end is copied in one more round.
            ended = has_ended()
            checked = time.monotonic()
        if not ended:
            time.sleep(_LOOK_SECONDS)


def copy_from(path: Path, position: int) -> int:
    """Copy to standard output what comes after a number of bytes; returns how many there are."""
    try:
        with path.open("rb") as stream:
            if stream.seek(0, 2) < position:
                # Begun anew: another attempt of the same job.
                position = 0
            stream.seek(position)
            while block := stream.read(1 << 20):
                sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
            return stream.tell()
    except FileNotFoundError:
        return position
