"""The file of an attempt, written by the worker that executes it: first what, at last how it ended.

The file of an attempt that counts gets a second name, that of the result. So a job needs no other
file for its result, and whoever removes the file of an attempt prevents that it counts.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import answered, link_exclusively, to_json
from snakemake_kochi.queue.result import Attempt, Result

_OPENING, _CLOSING = b"{\n", b"\n}\n"  # of all that `to_json` returns
_KEYS_OF_ATTEMPT = frozenset({"version", *Attempt.__dataclass_fields__})


class AttemptFile:
    """The file of one attempt that this process has begun."""

    def __init__(self, path: Path, started: str, descriptor: int, size: int) -> None:
        """`descriptor` is that of the open file, which has `size` bytes."""
        self.started = started
        self._path = path
        self._descriptor: int | None = descriptor
        self._end = size - len(_CLOSING)
        self._added: bytes | None = None

    @classmethod
    def begin(cls, path: Path, attempt: Attempt) -> AttemptFile:
        """Write the file, once, and keep it open. Raises FileExistsError if it exists.

        While it is empty, nothing of the job has been executed.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = answered(partial(os.open, path, flags, 0o600))
        content = to_json(attempt.to_dict())
        try:
            _write(descriptor, content, 0)
        except BaseException as error:
            os.close(descriptor)
            os.unlink(path)  # no half-written file may stay behind on a full disk
            if isinstance(error, OSError):
                error.filename = os.fspath(path)
            raise
        return cls(path, attempt.started, descriptor, len(content))

    def publish(self, result: Result, path: Path) -> bool:
        """Complete the file with the result, and link it to `path`; return False if that exists.

        The call may be repeated after an error; the first result counts. Raises FileNotFoundError
        if the file was removed, because the attempt was given up, and KochiError as
        `link_exclusively` does.
        """
        if self._added is None:
            # The keys of the attempt are not written again: half a file has them, too.
            added = {k: v for k, v in result.to_dict().items() if k not in _KEYS_OF_ATTEMPT}
            self._added = b",\n" + to_json(added).removeprefix(_OPENING)
        descriptor = self._opened()
        try:
            _write(descriptor, self._added, self._end)
            return link_exclusively(descriptor, path)
        except (OSError, KochiError) as error:
            # By its path, the file may be reached again: its filesystem may have been mounted anew.
            self.close()
            if isinstance(error, OSError) and error.filename is None:
                error.filename = os.fspath(self._path)
            raise

    def _opened(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CLOEXEC
            self._descriptor = answered(partial(os.open, self._path, flags))
        return self._descriptor

    def close(self) -> None:
        """Close the file; `publish` opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # All that was written has been given to the file server before: see `_write`.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _write(descriptor: int, content: bytes, offset: int) -> None:
    """Write, and give all to the file server: other nodes may read it from now on."""
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
    # A network filesystem writes when a descriptor is closed, and says then that the disk is full.
    os.close(os.dup(descriptor))
