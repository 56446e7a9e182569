"""YAML as people write it: every scalar keeps its text and every key its line; no key is lost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from snakemake_kochi.errors import ConfigError, printable
from snakemake_kochi.project.problems import KeyPath, Problems, SourceMap
from snakemake_kochi.project.values import implied_tag, unusable_character

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
# More than a person writes, and read in seconds. Aliases of aliases grow without bound from a few
# lines, and the parser in C crashes the process when it runs out of stack.
MAXIMUM_NODES = 100_000
MAXIMUM_DEPTH = 100
_MOST_READ_AGAIN = 500_000  # characters, for a better message


class Scalar(str):
    """The text of a YAML scalar as written, the kind (of JSON Schema) YAML takes it for, and
    whether it is without quotes."""

    kind: str
    is_plain: bool

    def __new__(cls, text: str, kind: str = "string", is_plain: bool = False) -> Scalar:
        scalar = super().__new__(cls, text)
        scalar.kind, scalar.is_plain = kind, is_plain
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
    """A YAML file: `data` has dicts, lists and Scalars; `problems` what is wrong, `remarks` what is
    probably not intended."""

    data: Any
    source_map: SourceMap
    problems: Problems
    remarks: Problems


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Converter:
    """Turns YAML nodes into data, noting lines. Keys are taken as text whatever they look like."""

    def __init__(self, file: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems = Problems(SourceMap(file, self.lines))
        self._open: set[int] = set()

    def convert(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            self.problems.add(
                path, "the alias refers to a value that contains it; write the value out"
            )
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
        kind = _KINDS.get(node.tag)
        if kind is None or (kind != "string" and node.tag != implied_tag(node.value)):
            self.problems.add(path, f"the YAML tag {node.tag!r} does not fit here; remove it")
            kind = "string"
        return Scalar(self._text(node, path), kind, not node.style)

    def _text(self, node: yaml.ScalarNode, path: KeyPath) -> str:
        """A text that can be an argument, a part of a path, and written to a file."""
        text = str(node.value)
        if wrong := unusable_character(text):
            self.problems.add(path, wrong)
            text = re.sub("[\0\ud800-\udfff]", "", text)
        return text

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add((*path, "?"), "a key must be a text")
                continue
            key = self._text(key_node, path)
            if key_node.tag == f"{_PREFIX}merge":
                merged |= self._merged(value_node, path)
                continue
            if key in first:
                # YAML libraries keep the last one silently.
                self.lines[(*path, key)] = _line(key_node)
                self.problems.add((*path, key), f"duplicate key, first in line {first[key]}")
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


class _Bounded:
    """Keeps a loader of PyYAML, which composes by recursion, within the bounds of a document."""

    _depth = 0
    _nodes = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        self._depth += 1
        self._nodes += 1
        if self._depth > MAXIMUM_DEPTH:
            raise _bound(current_node, f"nested too deeply, in more than {MAXIMUM_DEPTH} levels")
        if self._nodes > MAXIMUM_NODES:
            raise _bound(current_node, f"too much data, more than {MAXIMUM_NODES} keys and values")

    def ascend_resolver(self) -> None:
        self._depth -= 1


def _bound(around: yaml.Node | None, said: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, said, None if around is None else around.start_mark)


class _Loader(_Bounded, yaml.SafeLoader):
    pass


# Ten times faster, with less precise errors. PyYAML may have been built without it.
FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _FastLoader(_Bounded, FASTEST):
    pass


def compose(file: str, text: str) -> yaml.Node | None:
    """The nodes of a YAML document, None for an empty one. Raises ConfigError with file and line
    when it is not YAML, or too much."""
    if (found := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + 1
        said = f"the character U+{ord(found[0]):04X} is not allowed"
        raise _not_yaml(file, said, line)
    try:
        try:
            node = yaml.compose(text, Loader=_FastLoader)
        except yaml.MarkedYAMLError:
            if len(text) > _MOST_READ_AGAIN:
                raise
            node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        if (mistake := _mistake(said, error, text.splitlines())) is not None:
            raise _not_yaml(file, mistake[1], mistake[0] + 1) from error
        raise _not_yaml(file, said, None if mark is None else mark.line + 1) from error
    if node is not None and (size := _expanded_size(node)) > MAXIMUM_NODES:
        about = str(size) if size < 10**9 else "more than a billion"
        raise ConfigError(
            f"{file}: too much data, {about} keys and values when its aliases are expanded; "
            f"at most {MAXIMUM_NODES} are possible"
        )
    return node


def _mistake(
    said: str, error: yaml.MarkedYAMLError, lines: Sequence[str]
) -> tuple[int, str] | None:
    """A common mistake behind what the parser said: its line, counted from 0, and what to type."""
    mark, around = error.problem_mark, error.context_mark
    if mark is None:
        return None
    line = lines[mark.line] if mark.line < len(lines) else ""
    if r"'\t' that cannot start" in said:
        return mark.line, "a tab is no indentation in YAML; use spaces"
    if "mapping values are not allowed" in said:
        key, _, value = line.partition(": ")
        if ": " in value and value.strip()[:1] not in ("'", '"'):
            quoted = "'" + value.strip().replace("'", "''") + "'"
            return (
                mark.line,
                f"a text that contains ': ' must be quoted; write {key.strip()}: {quoted}",
            )
        above = lines[mark.line - 1] if mark.line else ""
        if ": " in above and _spaces(above) < _spaces(line):
            return mark.line, f"wrong indentation; {_indentations(lines, mark.line)}"
        return mark.line, (
            "a second ': ' belongs to one key; quote a text that contains ': ', and write a blank "
            "after the ':' of the key above"
        )
    if "expected ':'" in said and around is not None:
        what = lines[around.line].strip()
        return around.line, (
            f"KEY: VALUE was expected, not '{printable(what, 100)}'; indent the lines of a script "
            "deeper than its key, and end a key with ':'"
        )
    if "block mapping" in said and "start>'" in said:
        return mark.line, f"wrong indentation; {_indentations(lines, mark.line)}"
    if "quoted scalar" in said and "end of" in said and around is not None:
        return around.line, "a quote of this line is not closed; add it at the end of its text"
    if "flow node" in said and "<stream end>" in said:
        last = max(index for index, text in enumerate(lines) if "[" in text or "{" in text)
        return last, "a bracket of this line is not closed"
    for kind, brackets in (("flow mapping", "{}"), ("flow sequence", "[]")):
        if kind in said and around is not None:
            return _in_brackets(brackets, mark, around.line, line)
    for part, advice in _ADVICE.items():
        if part in said:
            return mark.line, f"{said}; {advice}"
    return None


# What the parser says -> what to type.
_SINGLE = "in single quotes, write '' for '"
_ADVICE = {
    "escape character": "write a regular expression in single quotes",
    "cannot start any token": "quote a text that begins with this character",
    "undefined alias": "quote a text that begins with *",
    "<block end>, but found '<scalar>'": f"a key ends with ':'; {_SINGLE}",
    "<block end>": "check the indentation of this line and of the one above",
}


def _in_brackets(brackets: str, mark: yaml.Mark, start: int, line: str) -> tuple[int, str]:
    """What is wrong between brackets: where the next key begins before they are closed, it is in
    the line in which they were opened."""
    opening, closing = brackets[0], brackets[1]
    found = line[mark.column : mark.column + 1]
    advice = "quote a text that contains any of [ ] { } and ': '"
    if mark.line > start and found in ("", ":", "-"):
        said = f"the {opening} of this line is not closed before line {mark.line + 1}"
        return start, f"{said}; add {closing}, or {advice}"
    said = f"after the {opening} of line {start + 1}, ',' or {closing} was expected, not '{found}'"
    return mark.line, f"{said}; {advice}; {_SINGLE}"


def _indentations(lines: Sequence[str], number: int) -> str:
    """By how many spaces a line may be indented: as the nearest of those around it."""
    own = _spaces(lines[number])
    around: dict[int, str] = {}
    for index in range(number - 1, -1, -1):
        text, spaces = lines[index].strip(), _spaces(lines[index])
        if text and not text.startswith("#") and spaces < min(around, default=spaces + 1):
            key = printable(text.partition(":")[0], 40)
            around[spaces] = f"by {spaces} as '{key}' in line {index + 1}"
    less, more = ([n for n in around if (n > own) == is_more] for is_more in (False, True))
    nearest = [*([min(more)] if more else []), *([max(less)] if less else [])]
    of = "space" if own == 1 else "spaces"
    return f"indent it {', or '.join(around[n] for n in nearest)}, not by {own} {of}"


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _expanded_size(top: yaml.Node) -> int:
    """How many nodes there are, counting those for which an alias stands again."""
    sizes: dict[int, int] = {}
    left = [(top, False)]
    while left:
        node, is_counted = left.pop()
        if is_counted:
            sizes[id(node)] = 1 + sum(sizes[id(each)] for each in _parts(node))
        elif id(node) not in sizes:
            # Inside itself it counts nothing: that is a problem of its own.
            sizes[id(node)] = 0
            left.append((node, True))
            left += [(each, False) for each in _parts(node)]
    return sizes[id(top)]


def _parts(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def read_yaml(file: str, text: str) -> Document:
    """Read one YAML document; an empty one is an empty mapping.

    Raises ConfigError with file and line when it is not YAML, or too large. Errors after which
    reading can go on (a key given twice) are in the document's problems.
    """
    converter = _Converter(file)
    node = compose(file, text)
    data = {} if node is None else converter.convert(node, ())
    if is_null(data):
        data = {}
    source_map = converter.problems.source_map
    return Document(data, source_map, converter.problems, Problems(source_map))


def is_null(value: Any) -> bool:
    """Whether null is written, or nothing, after a key."""
    return isinstance(value, Scalar) and value.kind == "null"


def section(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A mapping in a mapping; empty if it is missing or nothing is written after its key."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def names(value: Any) -> tuple[str, ...] | None:
    """A filter by names, from one name or a list."""
    if value is None or is_null(value):
        return None
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


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
    return decode_text(content, shown)


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


def _not_yaml(file: str, said: str, line: int | None) -> ConfigError:
    place = file if line is None else f"{file}:{line}"
    return ConfigError(f"{place}: not valid YAML: {said}")
