"""The file of an attempt, written by the worker that executes it: first what, at last how it ended.

The file of an attempt that counts gets a second name, that of the result. So a job needs no other
file for its result, and whoever removes the file of an attempt prevents that it counts.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from snakemake_kochi.files import answered, link_exclusively, to_json
from snakemake_kochi.queue.result import Attempt, Result

_CLOSING = b"\n}\n"  # the last bytes of all that `to_json` returns


class AttemptFile:
    """The file of one attempt that this process has begun."""

    def __init__(self, path: Path, attempt: Attempt, descriptor: int) -> None:
        self._path = path
        self._attempt = attempt
        self._descriptor: int | None = descriptor
        self._content: bytes | None = None

    @property
    def started(self) -> str:
        return self._attempt.started

    @classmethod
    def begin(cls, path: Path, attempt: Attempt) -> AttemptFile:
        """Write the file, once, and keep it open. Raises FileExistsError if it exists.

        While it is empty, nothing of the job has been executed.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = answered(partial(os.open, path, flags, 0o600))
        try:
            _write(descriptor, to_json(attempt.to_dict()), 0)
        except BaseException as error:
            os.close(descriptor)
            os.unlink(path)  # no half-written file may stay behind on a full disk
            if isinstance(error, OSError):
                error.filename = os.fspath(path)
            raise
        return cls(path, attempt, descriptor)

    def publish(self, result: Result, path: Path) -> bool:
        """Complete the file with the result, and link it to `path`; return False if that exists.

        The call may be repeated after an error; the first result counts. Raises FileNotFoundError
        if the file was removed, because the attempt was given up, and KochiError as
        `link_exclusively` does.
        """
        attempt = self._attempt.to_dict()
        if self._content is None:
            # The keys of the attempt do not change: a reader finds them also in half a file.
            self._content = to_json({**attempt, **_without(result.to_dict(), attempt)})
        begins = len(to_json(attempt)) - len(_CLOSING)
        descriptor = self._opened()
        try:
            _write(descriptor, self._content[begins:], begins)
            return link_exclusively(descriptor, path)
        except OSError as error:
            self.close()  # by its path, the file may be reached again
            if error.filename is None:
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
            os.close(descriptor)


def _without(data: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in data.items() if key not in other}


def _write(descriptor: int, content: bytes, offset: int) -> None:
    """Write, and give all to the file server: other nodes may read it from now on."""
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
    # A network filesystem writes when a descriptor is closed, and says then that the disk is full.
    os.close(os.dup(descriptor))
