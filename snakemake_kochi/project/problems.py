"""The problems of a file that people write, each with its line and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from snakemake_kochi.errors import ConfigError, printable
from snakemake_kochi.files import is_name

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
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

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

    def error(self, path: KeyPath, message: str) -> ConfigError:
        return ConfigError(self.describe(path, message))


class Problems:
    """Collects the problems of a file, to report all of them at once.

    A wrong value is replaced or left out while the rest is checked. Its key is marked as unknown,
    so that mere consequences are not reported as problems of their own.
    """

    def __init__(self, source_map: SourceMap) -> None:
        self.source_map = source_map
        self._found: dict[str, tuple[int, int]] = {}  # message -> line, rank within its key
        self._counts: dict[KeyPath, int] = {}
        self._unknown: set[KeyPath] = set()
        self._examples: set[KeyPath] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: KeyPath, message: str) -> None:
        text = self.source_map.describe(path, message)
        if text not in self._found:
            rank = self._counts[path] = self._counts.get(path, 0) + 1
            self._found[text] = (self.source_map.line(path) or 0, rank)

    def add_once(self, path: KeyPath, message: str, shared: KeyPath) -> None:
        """Add it, unless the same problem was added at `shared`, from which it may follow."""
        if self.source_map.describe(shared, message) not in self._found:
            self.add(path, message)

    def add_example(self, path: KeyPath, message: str) -> None:
        """Add a problem that many points may have. Of a key that batches share, only the first of
        all batches is added."""
        if path[0] == "batches":
            self.add(path, message)
        elif path not in self._examples:
            self._examples.add(path)
            self.add(path, message)

    def mark_unknown(self, path: KeyPath) -> None:
        self._unknown.add(path)

    def is_unknown(self, path: KeyPath) -> bool:
        return path in self._unknown

    def fork(self) -> Problems:
        """An empty collection for the same file, with the same unknown keys and shared examples."""
        other = Problems(self.source_map)
        other._unknown = self._unknown
        other._examples = self._examples
        return other

    def take(self, other: Problems, limit: int, path: KeyPath) -> None:
        """Add the problems that `other.lines(limit, path)` would show."""
        for text, line in other._shown(limit, path):
            self._found.setdefault(text, (line, 1))

    def lines(self, limit: int | None = None, path: KeyPath = ()) -> list[str]:
        """A line per problem, in the order of the file.

        With more than `limit` problems, every key gets its first one before any gets its second,
        and the last line tells at `path` how many were left out.
        """
        return [text for text, _ in self._shown(limit, path)]

    def raise_all(self, limit: int | None = _MOST_LINES, path: KeyPath = ()) -> None:
        """Raise one ConfigError with the lines, if there are any."""
        if self._found:
            raise ConfigError("\n".join(self.lines(limit, path)))

    def _shown(self, limit: int | None, path: KeyPath) -> list[tuple[str, int]]:
        by_rank = sorted(self._found, key=lambda text: self._found[text][1])[:limit]
        shown = [(text, self._found[text][0]) for text in by_rank]
        shown.sort(key=lambda entry: entry[1])
        left_out = len(self._found) - len(shown)
        if left_out:
            said = self.source_map.describe(path, f"... and {left_out} more")
            shown.append((said, shown[-1][1]))
        return shown


def chain(names: Sequence[object]) -> str:
    """`a -> b -> c`; of a long chain the beginning and the end."""
    shown = [str(name) for name in names]
    if len(shown) > _SHOWN:
        half = _SHOWN // 2
        shown[half:-half] = [f"... {len(shown) - 2 * half} more ..."]
    return " -> ".join(shown)


class Notes(Protocol):
    """An object that notes problems."""

    def add(self, path: KeyPath, message: str) -> None: ...


def check_name(kind: str, name: str, path: KeyPath, problems: Notes) -> None:
    """Note a name that cannot be used in paths."""
    if not is_name(name):
        problems.add(
            path,
            f"the {kind} name {name!r} cannot be used in paths; 1 to 128 letters, digits and any "
            "of ._+@=- were expected, not starting with a dot or dash",
        )
