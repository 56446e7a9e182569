"""YAML as people write it: every scalar keeps its text, every key its line, no key is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.values import implied_tag

KeyPath = tuple[str | int, ...]

_PREFIX = "tag:yaml.org,2002:"
_KINDS = {
    f"{_PREFIX}str": "string",
    f"{_PREFIX}value": "string",
    f"{_PREFIX}timestamp": "string",
    f"{_PREFIX}int": "integer",
    f"{_PREFIX}float": "number",
    f"{_PREFIX}bool": "boolean",
    f"{_PREFIX}null": "null",
}
# Aliases of aliases grow without bound from a few lines.
_MAXIMUM_NODES = 1_000_000

MAXIMUM_LINES = 20  # about one batch: thousands of points may have a problem each


class Scalar(str):
    """The text of a YAML scalar as written, and the kind (of JSON Schema) YAML takes it for."""

    kind: str

    def __new__(cls, text: str, kind: str = "string") -> Scalar:
        scalar = super().__new__(cls, text)
        scalar.kind = kind
        return scalar

    @property
    def is_true(self) -> bool:
        """The value of a scalar of kind boolean (yes, on, True, ...)."""
        return bool(yaml.SafeLoader.bool_values[self.lower()])

    @property
    def value_text(self) -> str:
        """As a parameter's value: the text, but true or false for booleans, empty for null."""
        if self.kind == "boolean":
            return "true" if self.is_true else "false"
        return "" if self.kind == "null" else str(self)

    @property
    def whole_number(self) -> int:
        """The value of a scalar of kind integer. Raises ValueError when it has too many digits."""
        node = yaml.ScalarNode(f"{_PREFIX}int", str(self))
        return int(yaml.constructor.SafeConstructor().construct_yaml_int(node))


@dataclass(frozen=True)
class Locations:
    """Where each key of a file is: lines count from 1."""

    file: str
    lines: Mapping[KeyPath, int]

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest key around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def describe(self, path: KeyPath, message: str) -> str:
        """One line for a person: `fib.yaml:12: batches.small.artifacts[0].dest: message`."""
        line = self.line(path)
        place = self.file if line is None else f"{self.file}:{line}"
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        return f"{place}: {key.removeprefix('.')}: {message}" if key else f"{place}: {message}"

    def first(self, *paths: KeyPath) -> KeyPath:
        """The first of the key paths that is in the file, else the last."""
        return next((path for path in paths if path in self.lines), paths[-1])

    def error(self, path: KeyPath, message: str) -> ConfigError:
        return ConfigError(self.describe(path, message))


class Problems:
    """Collects what is wrong with a file, so that a person sees all of it at once.

    What is wrong is replaced or left out while the rest is checked; such places are marked as
    unknown, so that nothing that only follows from one is told as a problem of its own.
    """

    def __init__(self, locations: Locations) -> None:
        self.locations = locations
        self._found: dict[str, tuple[int, int]] = {}  # message -> line, rank among its place's
        self._counts: dict[KeyPath, int] = {}
        self._unknown: set[KeyPath] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, path: KeyPath, message: str) -> None:
        text = self.locations.describe(path, message)
        if text not in self._found:
            rank = self._counts[path] = self._counts.get(path, 0) + 1
            self._found[text] = (self.locations.line(path) or 0, rank)

    def mark_unknown(self, path: KeyPath) -> None:
        self._unknown.add(path)

    def is_unknown(self, path: KeyPath) -> bool:
        return path in self._unknown

    def fork(self) -> Problems:
        """No problems yet, of the same file with the same unknown places."""
        other = Problems(self.locations)
        other._unknown = self._unknown
        return other

    def take(self, other: Problems, limit: int, place: KeyPath) -> None:
        """Add those that `other.lines(limit, place)` would show."""
        for text, line in other._shown(limit, place):
            self._found.setdefault(text, (line, 1))

    def lines(self, limit: int | None = None, place: KeyPath = ()) -> list[str]:
        """A line per problem, in the order of the file.

        With more than `limit` every key gets its first one before any gets its second, and the
        last line tells at `place` how many are left out.
        """
        return [text for text, _ in self._shown(limit, place)]

    def raise_all(self, limit: int | None = None, place: KeyPath = ()) -> None:
        """Raise one ConfigError with the lines, if there are any."""
        if self._found:
            raise ConfigError("\n".join(self.lines(limit, place)))

    def _shown(self, limit: int | None, place: KeyPath) -> list[tuple[str, int]]:
        by_rank = sorted(self._found, key=lambda text: self._found[text][1])[:limit]
        shown = [(text, self._found[text][0]) for text in by_rank]
        shown.sort(key=lambda entry: entry[1])
        left_out = len(self._found) - len(shown)
        if left_out:
            said = self.locations.describe(place, f"... and {left_out} more")
            shown.append((said, shown[-1][1]))
        return shown


@dataclass(frozen=True)
class Document:
    """A YAML file: `data` holds dicts, lists and Scalars; `problems` what is known to be wrong."""

    data: Any
    locations: Locations
    problems: Problems


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Converter:
    """Turns YAML nodes into data, noting lines. Keys are taken as text whatever they look like."""

    def __init__(self, file: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems = Problems(Locations(file, self.lines))
        self._open: set[int] = set()
        self._count = 0

    def convert(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, _line(node))
        self._count += 1
        if self._count > _MAXIMUM_NODES:
            raise self.problems.locations.error(path, "too much data; are aliases nested?")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self.problems.add(path, "an alias to something that contains it; write it out")
            return Scalar("", "null")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                self._expect_tag(node, "map", path)
                return self._mapping(node, path)
            self._expect_tag(node, "seq", path)
            return [self.convert(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self._open.remove(id(node))

    def _expect_tag(self, node: yaml.Node, tag: str, path: KeyPath) -> None:
        if node.tag != _PREFIX + tag:
            self.problems.add(path, f"the YAML tag {node.tag!r} has no meaning here; remove it")

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Scalar:
        implied = implied_tag(node.value)
        kind = _KINDS.get(node.tag)
        if kind is None or (kind != "string" and node.tag != implied):
            self.problems.add(path, f"the YAML tag {node.tag!r} does not fit here; remove it")
            kind = "string"
        return Scalar(node.value, kind)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add((*path, "?"), "a key was expected to be text")
                continue
            key = str(key_node.value)
            if key_node.tag == f"{_PREFIX}merge":
                merged |= self._merged(value_node, path)
                continue
            if key in first:
                # YAML libraries keep the last one silently.
                self.lines[(*path, key)] = _line(key_node)
                self.problems.add((*path, key), f"given twice, first in line {first[key]}")
                continue
            first[key] = self.lines[(*path, key)] = _line(key_node)
            own[key] = self.convert(value_node, (*path, key))
        return merged | own

    def _merged(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in reversed(sources):  # the first one wins
            if isinstance(source, yaml.MappingNode):
                value = self.convert(source, path)
                merged |= value if isinstance(value, dict) else {}
            else:
                self.problems.add((*path, "<<"), "a mapping to merge was expected, as in <<: *name")
        return merged


def read_yaml(file: str, text: str) -> Document:
    """Read one YAML document; an empty one is an empty mapping.

    Raises ConfigError with file and line when it is not YAML. What can be told without giving up
    (a key given twice) is left in the document's problems.
    """
    converter = _Converter(file)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = {} if node is None else converter.convert(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        if "flow mapping" in said:
            said += "; quote texts that contain { or }"
        raise _not_yaml(file, said, None if mark is None else mark.line + 1) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        said = f"the character U+{error.character:04X} is not allowed"
        raise _not_yaml(file, said, line) from error
    except RecursionError as error:
        raise _not_yaml(file, "nested too deeply", None) from error
    if isinstance(data, Scalar) and data.kind == "null":
        data = {}
    return Document(data, converter.problems.locations, converter.problems)


def read_text(file: Path, shown: str) -> str:
    """The text of a YAML file, which messages call `shown`.

    Raises FileNotFoundError, and ConfigError when it cannot be read or is not UTF-8.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{shown} cannot be read: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{shown}:{line}: UTF-8 was expected, not the byte 0x{content[error.start]:02x}",
            f"To convert it, for example from Latin-1: iconv -f latin1 -t utf-8 {shown}",
        ) from error


def _not_yaml(file: str, said: str, line: int | None) -> ConfigError:
    place = file if line is None else f"{file}:{line}"
    return ConfigError(f"{place}: not valid YAML: {said}")
