"""A filesystem in memory, as POSIX has it. Paths are absolute texts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class Directory(dict[str, Any]):
    is_removed = False


class Tree:
    """Files are bytearrays."""

    def __init__(self) -> None:
        self._top = Directory()
        self.moved: dict[str, bytearray] = {}  # files, by names that they had

    def _at(self, path: str) -> Any:
        place: Any = self._top
        for part in path.split("/")[1:]:
            if not isinstance(place, dict):
                raise _error(errno.ENOTDIR, path)
            if part not in place:
                raise _error(errno.ENOENT, path)
            place = place[part]
        return place

    def _directory(self, path: str) -> Directory:
        place = self._at(path) if path else self._top
        if not isinstance(place, dict):
            raise _error(errno.ENOTDIR, path)
        return place

    def _split(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def file(self, path: str) -> bytearray:
        place = self._at(path)
        if isinstance(place, dict):
            raise _error(errno.EISDIR, path)
        return place

    def names(self, path: str) -> list[str]:
        return list(self._directory(path))

    def files(self, path: str) -> list[bytearray]:
        """Those in a directory."""
        return [each for each in self._directory(path).values() if isinstance(each, bytearray)]

    def make(self, path: str) -> None:
        parent, name = self._split(path)
        if name in parent:
            raise _error(errno.EEXIST, path)
        parent[name] = Directory()

    def move(self, source: str, target: str) -> None:
        self.bound(source, target)()

    def bound(self, source: str, target: str) -> Callable[[], None]:
        """A rename between the directories that have these paths now."""
        try:
            before, name = self._split(source)
            after, new = self._split(target)
        except OSError as error:
            missing = error

            def fail() -> None:
                raise missing

            return fail
        return lambda: self._rename(before, name, after, new, source, target)

    def _rename(
        self, before: Directory, name: str, after: Directory, new: str, source: str, target: str
    ) -> None:
        if name not in before or after.is_removed:
            raise _error(errno.ENOENT, source)
        if target.startswith(f"{source}/"):
            raise _error(errno.EINVAL, target)
        if source.startswith(f"{target}/"):
            raise _error(errno.ENOTEMPTY, target)
        if new in after and after[new] is not before[name]:
            if isinstance(before[name], dict):
                if not isinstance(after[new], dict):
                    raise _error(errno.ENOTDIR, target)
                if after[new]:
                    raise _error(errno.ENOTEMPTY, target)
                after[new].is_removed = True
            elif isinstance(after[new], dict):
                raise _error(errno.EISDIR, target)
        if isinstance(before[name], bytearray):
            self.moved[source] = before[name]
        after[new] = before.pop(name)

    def create(self, path: str, is_new: bool) -> bytearray:
        parent, name = self._split(path)
        if name in parent:
            if is_new:
                raise _error(errno.EEXIST, path)
            return self.file(path)
        parent[name] = bytearray()
        return parent[name]

    def write(self, file: bytearray, data: bytes, at_end: bool) -> None:
        start = len(file) if at_end else 0
        file[start : start + len(data)] = data

    def read(self, path: str) -> bytes:
        return bytes(self.file(path))

    def unlink(self, path: str) -> None:
        parent, name = self._split(path)
        if name not in parent:
            raise _error(errno.ENOENT, path)
        if isinstance(parent[name], dict):
            raise _error(errno.EISDIR, path)
        del parent[name]

    def rmdir(self, path: str) -> None:
        parent, name = self._split(path)
        if name not in parent:
            raise _error(errno.ENOENT, path)
        if not isinstance(parent[name], dict):
            raise _error(errno.ENOTDIR, path)
        if parent[name]:
            raise _error(errno.ENOTEMPTY, path)
        parent.pop(name).is_removed = True
