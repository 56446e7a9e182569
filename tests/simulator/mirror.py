"""A filesystem in memory that does the same in a real one, and notes where the answers differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from greenlet import getcurrent

from simulator.tree import Tree
from simulator.world import World


class Mirror(Tree):
    """`mounts` show one real directory; each node of the world has one of them.

    `asked`: how many calls were compared. What stays open is closed by the stack.
    """

    def __init__(self, world: World, mounts: Sequence[Path], stack: ExitStack) -> None:
        super().__init__()
        self._world, self._stack = world, stack
        self._mounts = [*map(str, mounts)]
        self._nodes: dict[str, str] = {}
        self._numbers: dict[Any, int] = {}  # of the file that a thread has opened
        self.asked = 0
        self.different: list[str] = []

    def _real(self, path: str) -> str:
        """Where the node that asks sees a path."""
        process = self._world._processes.get(getcurrent())
        node = "" if process is None else process.node.name
        mount = self._mounts[len(self._nodes) % len(self._mounts)]
        return self._nodes.setdefault(node, mount) + path

    def _both(self, what: str, model: Callable[[], Any], real: Callable[[], Any]) -> Any:
        self.asked += 1
        here, there = _answer(model), _answer(real)
        if _comparable(here) != _comparable(there):
            self.different.append(f"{what}: {here!r} in memory, {there!r} in fact")
        if isinstance(here, OSError):
            raise here
        return here

    def names(self, path: str) -> Any:
        model, real = super().names, self._real(path)
        return self._both(f"names {path}", lambda: model(path), lambda: os.listdir(real))

    def make(self, path: str) -> None:
        model, real = super().make, self._real(path)
        self._both(f"make {path}", lambda: model(path), lambda: os.mkdir(real, 0o700))

    def unlink(self, path: str) -> None:
        model, real = super().unlink, self._real(path)
        self._both(f"unlink {path}", lambda: model(path), lambda: os.unlink(real))

    def rmdir(self, path: str) -> None:
        model, real = super().rmdir, self._real(path)
        self._both(f"rmdir {path}", lambda: model(path), lambda: os.rmdir(real))

    def read(self, path: str) -> Any:
        model, real = super().file, self._real(path)
        return self._both(
            f"read {path}", lambda: bytes(model(path)), lambda: Path(real).read_bytes()
        )

    def bound(self, source: str, target: str) -> Callable[[], None]:
        model = super().bound(source, target)
        ends = [self._real(path).rpartition("/") for path in (source, target)]
        places = [_answer(lambda end=end: os.open(end[0], os.O_PATH)) for end in ends]
        for place in places:
            if not isinstance(place, OSError):
                self._stack.callback(_close, place)

        def real() -> None:
            for place in places:
                if isinstance(place, OSError):
                    raise place
            os.rename(ends[0][2], ends[1][2], src_dir_fd=places[0], dst_dir_fd=places[1])

        return lambda: self._both(f"move {source} {target}", model, real)

    def create(self, path: str, is_new: bool) -> Any:
        model = super().create
        flags = os.O_CREAT | (os.O_EXCL if is_new else 0)
        return self._open(f"create {path}", lambda: model(path, is_new), self._real(path), flags)

    def file(self, path: str) -> Any:
        model = super().file
        return self._open(f"open {path}", lambda: model(path), self._real(path), os.O_APPEND)

    def _open(self, what: str, model: Callable[[], Any], path: str, flags: int) -> Any:
        def real() -> None:
            number = os.open(path, flags | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            self._stack.callback(_close, number)
            self._numbers[getcurrent()] = number

        return self._both(what, model, real)

    def write(self, file: bytearray, data: bytes, at_end: bool) -> None:
        number = self._numbers[getcurrent()]
        self._both(
            "write", lambda: Tree.write(self, file, data, at_end), lambda: os.write(number, data)
        )


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except OSError as error:
        return error


def _close(number: int) -> None:
    with suppress(OSError):  # of a file that is gone
        os.close(number)


def _comparable(answer: Any) -> Any:
    if isinstance(answer, OSError):
        return answer.errno
    if isinstance(answer, list):
        return sorted(answer)
    return answer if isinstance(answer, bytes) else "done"
