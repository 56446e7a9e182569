"""YAML as people write it: every scalar keeps its text and every key its line; no key is lost.

What is wrong with a file is collected with its lines and keys, and reported at once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from snakemake_kochi.errors import ConfigError, nearest, printable
from snakemake_kochi.project.values import unusable_character

KeyPath = tuple[str | int, ...]

_PREFIX = "tag:yaml.org,2002:"
_RESOLVER: Any = yaml.resolver.Resolver()
_KINDS = {
    **dict.fromkeys(("str", "value", "timestamp"), "string"),
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "null": "null",
}
# More than a person writes, and read in seconds. Aliases of aliases grow without bound from a few
# lines, and the parser in C crashes the process when it runs out of stack.
MAXIMUM_NODES = 100_000
MAXIMUM_DEPTH = 100
_MOST_READ_AGAIN = 500_000  # characters, for a better message
MAXIMUM_LINES = 20  # per batch
_MOST_LINES = 100  # per file
_MOST_OF_KEY = 9
# What batches take from the file, by the keys that they have for it.
ABOVE = {
    "params": "default_params",
    "name": "default_name",
    "queue": "default_queue",
    "duplicates": "default_duplicates",
}


# ---- problems


@dataclass(frozen=True)
class SourceMap:
    """The line of each key of a file, counted from 1."""

    file: str
    lines: dict[KeyPath, int]

    def at(self, path: KeyPath) -> KeyPath:
        """Where a key of a batch is written: in the batch, or in the file for all batches."""
        own = path[2:] if path[:1] == ("batches",) else path
        shared = (ABOVE.get(str(own[0]), own[0]), *own[1:]) if own else path
        return next((each for each in (path, shared) if each in self.lines), path)

    def line(self, path: KeyPath) -> int | None:
        """The line of a key, or of the nearest key around it."""
        around = (path[:length] for length in range(len(path), -1, -1))
        return next((self.lines[each] for each in around if each in self.lines), None)

    def position(self, path: KeyPath) -> str:
        """For a person: `fib.yaml:12: batches.small.artifacts[0].dest`."""
        path = self.at(path)
        line = self.line(path)
        position = self.file if line is None else f"{self.file}:{line}"
        if path[:2] == ("batches", "default") and ("batches",) not in self.lines:
            path = path[2:]  # the only batch of a file is written at its top level
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        return f"{position}: {printable(key.removeprefix('.'), 300)}" if key else position

    def describe(self, path: KeyPath, message: str) -> str:
        """One line for a person: the position and the message."""
        return f"{self.position(path)}: {printable(message, 900)}"

    def error(self, path: KeyPath, message: str) -> ConfigError:
        return ConfigError(self.describe(path, message))


class Problems:
    """Collects the problems of a file, to report all of them at once; of a key the first, since
    a million points may have one each."""

    def __init__(self, source_map: SourceMap) -> None:
        self.source_map = source_map
        self._lines: dict[str, int] = {}  # by the whole messages
        self._counts = Counter[KeyPath]()
        self._left_out = set[int]()  # hashes of further messages

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, path: KeyPath, message: str) -> None:
        at = self.source_map.at(path)
        text = self.source_map.describe(at, message)
        if text not in self._lines and self._counts[at] == _MOST_OF_KEY:
            self._left_out.add(hash(text))
        elif text not in self._lines:
            self._lines[text] = self.source_map.line(at) or 0
            self._counts[at] += 1

    def add_first(self, path: KeyPath, message: str) -> None:
        """Add it, unless its key has a problem already."""
        if self.source_map.at(path) not in self._counts:
            self.add(path, message)

    def add_example(self, path: KeyPath, message: str) -> None:
        """Add a problem of a point; of a key that batches share, only the first."""
        is_shared = self.source_map.at(path)[:1] != ("batches",)
        (self.add_first if is_shared else self.add)(path, message)

    def check_known(self, path: KeyPath, what: str, name: str, known: Collection[str]) -> None:
        """Note a name that is not known."""
        if name not in known:
            self.add(path, f"there is no {what} '{name}', {nearest(name, known)}")

    def noting(self, path: KeyPath) -> AbstractContextManager[None, bool]:
        """Notes a ValueError at a key path."""
        return _Noting(self, path)

    def lines(self, limit: int, path: KeyPath = ()) -> list[str]:
        """A line per problem, in the order of the file; the last one tells, at `path`, how many are
        left out."""
        shown = sorted(self._lines, key=lambda text: self._lines[text])
        left_out = len(self._left_out) + len(shown[limit:])
        more = [self.source_map.describe(path, f"... and {left_out} more")] if left_out else []
        return shown[:limit] + more

    def raise_all(self, limit: int = _MOST_LINES, path: KeyPath = ()) -> None:
        """Raise one ConfigError with the lines, if there are any."""
        if self._lines:
            raise ConfigError("\n".join(self.lines(limit, path)))


@dataclass(frozen=True)
class _Noting(AbstractContextManager[None, bool]):
    problems: Problems
    path: KeyPath

    def __exit__(self, kind: object, error: object, traceback: object) -> bool:
        if is_noted := isinstance(error, ValueError):
            self.problems.add(self.path, str(error))
        return is_noted


# ---- data


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
class Document:
    """A YAML file: `data` has dicts, lists and Scalars; `problems` what is wrong."""

    data: Any
    problems: Problems

    @property
    def source_map(self) -> SourceMap:
        return self.problems.source_map


def is_null(value: Any) -> bool:
    """Whether null is written, or nothing, after a key."""
    return isinstance(value, Scalar) and value.kind == "null"


def section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A mapping in a mapping; empty if it is missing or nothing is written after its key."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def merged(*levels: Mapping[str, Any]) -> dict[str, Any]:
    """The data of levels, of which each overrides the one before, key by key; None removes a key.

    The time limit of a script is one key with two names: `timeout` replaces a `runtime` in
    `resources`, and the reverse.
    """
    found: dict[str, Any] = {}
    for own in levels:
        if "timeout" in own:
            section(found, "resources").pop("runtime", None)
        elif "runtime" in section(own, "resources"):
            found.pop("timeout", None)
        for key, value in own.items():
            if value is None:
                found.pop(key, None)
            else:
                is_mapping = isinstance(value, dict)
                found[key] = merged(section(found, key), value) if is_mapping else value
    return found


# ---- reading


def read_text(file: Path, shown: str) -> str:
    """The text of a YAML file, which messages call `shown`.

    Raises FileNotFoundError, and ConfigError when it cannot be read or is not UTF-8.
    """
    try:
        return decode_text(file.read_bytes(), shown)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"{shown} cannot be read: {error.strerror}") from error


def decode_text(content: bytes, shown: str) -> str:
    """The text of a YAML file with this content. Raises ConfigError when it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{shown}:{line}: UTF-8 was expected, not the byte 0x{content[error.start]:02x}",
            f"To convert it, for example from Latin-1: iconv -f latin1 -t utf-8 {shown}",
        ) from error


def read_yaml(file: str, text: str) -> Document:
    """Read one YAML document; an empty one is an empty mapping.

    Raises ConfigError with file and line when it is not YAML, or too large. Errors after which
    reading can go on (a key given twice) are in the document's problems.
    """
    converter = _Converter(file)
    node = compose(file, text)
    data = {} if node is None else converter.convert(node, ())
    return Document({} if is_null(data) else data, converter.problems)


class _Converter:
    """Turns YAML nodes into data, noting lines. Keys are taken as text whatever they look like."""

    def __init__(self, file: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems = Problems(SourceMap(file, self.lines))
        self._open: set[int] = set()
        self._count = 0

    def convert(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        if self._count > MAXIMUM_NODES or len(self._open) > MAXIMUM_DEPTH:
            raise ConfigError(
                f"{self.problems.source_map.file}: too much data, when its aliases are expanded; "
                f"at most {MAXIMUM_NODES} keys and values in {MAXIMUM_DEPTH} levels are possible"
            )
        # What YAML takes it for; a tag may make it a text.
        implied = _RESOLVER.resolve(type(node), node.value, (True, False))
        is_foreign = node.tag not in (implied, f"{_PREFIX}str")
        if is_foreign:
            self.problems.add(path, f"the YAML tag {node.tag!r} does not fit here; remove it")
        if isinstance(node, yaml.ScalarNode):
            kind = "str" if is_foreign else node.tag.removeprefix(_PREFIX)
            return Scalar(self._text(node, path), _KINDS.get(kind, "string"))
        if id(node) in self._open:
            said = "the alias refers to a value that contains it; write the value out"
            self.problems.add(path, said)
            return Scalar("", "null")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            return [self.convert(item, (*path, i)) for i, item in enumerate(node.value)]
        finally:
            self._open.remove(id(node))

    def _text(self, node: yaml.Node, path: KeyPath) -> str:
        """A text that can be an argument, a part of a path, and written to a file."""
        if wrong := unusable_character(node.value):
            self.problems.add(path, wrong)
            return re.sub("[\0\ud800-\udfff]", "", node.value)
        return str(node.value)

    def _mapping(self, node: yaml.Node, path: KeyPath) -> dict[str, Any]:
        own, inherited = dict[str, Any](), dict[str, Any]()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add((*path, "?"), "a key must be a text")
                continue
            key, line = self._text(key_node, path), key_node.start_mark.line + 1
            if key_node.tag == f"{_PREFIX}merge":
                is_list = isinstance(value_node, yaml.SequenceNode)
                # The first one wins.
                for source in reversed(value_node.value) if is_list else [value_node]:
                    value = self.convert(source, path)
                    if isinstance(value, dict):
                        inherited |= value
                    else:
                        said = "a mapping to merge was expected, as in <<: *name"
                        self.problems.add((*path, "<<"), said)
            elif key in own:  # YAML libraries keep the last one silently
                said = f"duplicate key, first in line {self.lines[(*path, key)]}"
                self.lines[(*path, key)] = line
                self.problems.add((*path, key), said)
            else:
                self.lines[(*path, key)] = line
                own[key] = self.convert(value_node, (*path, key))
        return inherited | own


class _Bounded:
    """Keeps a loader of PyYAML, which composes by recursion, within the bounds of a document."""

    _depth = _nodes = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        self._depth += 1
        self._nodes += 1
        said = f"nested too deeply, in more than {MAXIMUM_DEPTH} levels"
        if self._nodes > MAXIMUM_NODES:
            said = f"too much data, more than {MAXIMUM_NODES} keys and values"
        if self._depth > MAXIMUM_DEPTH or self._nodes > MAXIMUM_NODES:
            mark = None if current_node is None else current_node.start_mark
            raise yaml.MarkedYAMLError(None, None, said, mark)

    def ascend_resolver(self) -> None:
        self._depth -= 1


# Ten times faster, with less precise errors. PyYAML may have been built without it.
FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LOADER: Any = type("Loader", (_Bounded, yaml.SafeLoader), {})
_FAST_LOADER: Any = type("FastLoader", (_Bounded, FASTEST), {})


def compose(file: str, text: str) -> yaml.Node | None:
    """The nodes of a YAML document, None for an empty one. Raises ConfigError with file and line
    when it is not YAML, or too much."""
    if (found := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        said = f"the character U+{ord(found[0]):04X} is not allowed"
        raise ConfigError(f"{file}:{line}: not valid YAML: {said}")
    try:
        try:
            return yaml.compose(text, Loader=_FAST_LOADER)
        except yaml.MarkedYAMLError:
            if len(text) > _MOST_READ_AGAIN:
                raise
            return yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        said = " ".join(part for part in (error.context, error.problem) if part)
        advice = next((each for each in _ADVICE if re.search(each[0], said)), None)
        mark, around = error.problem_mark, error.context_mark
        if mark is None or (advice is not None and advice[1] and around is not None):
            mark = around
        last = len(text.splitlines())
        place = file if mark is None else f"{file}:{min(mark.line + 1, last)}"
        said += f"; {advice[2]}" if advice is not None else ""
        raise ConfigError(f"{place}: not valid YAML: {said}") from error


# What the parser says, whether the mistake is where it began to read, and what to type.
_ADVICE = (
    (
        "mapping values are not allowed",
        False,
        "wrong indentation, or a text that contains ': ' must be quoted, or no blank after a ':'",
    ),
    ("expected ':'", True, "indent the lines of a script deeper than its key, end a key with ':'"),
    ("quoted scalar.*end of", True, "a quote of this line is not closed"),
    (
        "flow (mapping|sequence|node)",
        True,
        "a bracket is not closed, or quote a text that contains [ ] { } or ': '; in single quotes, "
        "write '' for '",
    ),
    (r"'\\t' that cannot start", False, "a tab is no indentation in YAML; use spaces"),
    ("escape character", False, "write a regular expression in single quotes"),
    ("cannot start any token", False, "quote a text that begins with this character"),
    ("undefined alias", False, "quote a text that begins with *"),
    ("block end>, but found '<scalar>'", False, "in single quotes, write '' for '"),
    ("block mapping", False, "wrong indentation: a key is indented as the one above or around it"),
)
