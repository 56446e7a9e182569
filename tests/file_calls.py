"""The files that the test process opens, and the directories that it lists."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_listeners: list[Callable[[str, str], object]] = []


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if _listeners and event in ("open", "os.listdir") and isinstance(arguments[0], str | Path):
        for listener in _listeners:
            listener(event, os.fspath(arguments[0]))


# For good, as all hooks of this kind; without a listener it costs nothing.
sys.addaudithook(_hear)


class Calls:
    """The paths of the files that this process opens, and of the directories that it lists."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.listed: list[str] = []
        self.before_open: Callable[[str], object] = lambda path: None

    def hear(self, event: str, path: str) -> None:
        (self.opened if event == "open" else self.listed).append(path)
        if event == "open":
            self.before_open(path)

    def tickets(self) -> list[str]:
        return [path for path in self.opened if "/waiting/" in path]

    def shards(self) -> list[str]:
        return [Path(path).name for path in self.listed if "/waiting/" in path]

    def locks(self) -> list[str]:
        return [path for path in self.opened if "/locks/queue-" in path]

    def clear(self) -> None:
        self.opened.clear()
        self.listed.clear()


@contextlib.contextmanager
def note_calls() -> Iterator[Calls]:
    """Notes the calls until the end of the block."""
    found = Calls()
    _listeners.append(found.hear)
    try:
        yield found
    finally:
        _listeners.remove(found.hear)
