"""The problems of a file that people write, each with its line and key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from snakemake_kochi.errors import ConfigError, printable

KeyPath = tuple[str | int, ...]

MAXIMUM_LINES = 20  # per batch: each of thousands of points may have a problem
_MOST_LINES = 100  # per file
_SHOWN = 10  # how many names of a chain are shown


@dataclass(frozen=True)
class SourceMap:
    """The line of each key of a file, counted from 1."""

    file: str
    lines: dict[KeyPath, int]

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest key around it."""
        return self.lines.get(self.nearest(path))

    def describe(self, path: KeyPath, message: str) -> str:
        """One line for a person: `fib.yaml:12: batches.small.artifacts[0].dest: message`."""
        return f"{self.position(path)}: {printable(message, 900)}"

    def position(self, path: KeyPath) -> str:
        """The beginning of such a line: `fib.yaml:12: batches.small.artifacts[0].dest`."""
        line = self.line(path)
        position = self.file if line is None else f"{self.file}:{line}"
        if path[:2] == ("batches", "default") and ("batches",) not in self.lines:
            path = path[2:]  # the only batch of a file is written at its top level
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        return f"{position}: {printable(key.removeprefix('.'), 300)}" if key else position

    def first(self, *paths: KeyPath) -> KeyPath:
        """The first of the key paths that is in the file, else the last."""
        return next((path for path in paths if path in self.lines), paths[-1])

    def nearest(self, path: KeyPath) -> KeyPath:
        """The key path, or the nearest one around it that is in the file."""
        return self.first(*(path[:length] for length in range(len(path), -1, -1)))

    def error(self, path: KeyPath, message: str) -> ConfigError:
        return ConfigError(self.describe(path, message))


class Problems:
    """Collects the problems of a file, to report all of them at once."""

    def __init__(self, source_map: SourceMap) -> None:
        self.source_map = source_map
        self._found: dict[str, tuple[int, int]] = {}  # message -> line, rank within its key
        self._counts: dict[KeyPath, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: KeyPath, message: str) -> None:
        text = self.source_map.describe(path, message)
        if text not in self._found:
            rank = self._counts[path] = self._counts.get(path, 0) + 1
            self._found[text] = (self.source_map.line(path) or 0, rank)

    def add_first(self, path: KeyPath, message: str | Callable[[], str]) -> None:
        """Add it, unless its key has a problem already."""
        if path not in self._counts:
            self.add(path, message if isinstance(message, str) else message())

    def add_example(self, path: KeyPath, message: str) -> None:
        """Add a problem that many points may have. Of a key that batches share, only the first is
        added."""
        (self.add if path[0] == "batches" else self.add_first)(path, message)

    def lines(self, limit: int | None = None, path: KeyPath = ()) -> list[str]:
        """A line per problem, in the order of the file.

        With more than `limit` problems, every key gets its first one before any gets its second,
        and the last line tells at `path` how many were left out.
        """
        shown = sorted(self._found, key=lambda text: self._found[text][1])[:limit]
        shown.sort(key=lambda text: self._found[text][0])
        if left_out := len(self._found) - len(shown):
            shown.append(self.source_map.describe(path, f"... and {left_out} more"))
        return shown

    def raise_all(self, limit: int | None = _MOST_LINES, path: KeyPath = ()) -> None:
        """Raise one ConfigError with the lines, if there are any."""
        if self._found:
            raise ConfigError("\n".join(self.lines(limit, path)))


def chain(names: Sequence[object]) -> str:
    """`a -> b -> c`; of a long chain the beginning and the end."""
    shown = [str(name) for name in names]
    if len(shown) > _SHOWN:
        half = _SHOWN // 2
        shown[half:-half] = [f"... {len(shown) - 2 * half} more ..."]
    return " -> ".join(shown)
