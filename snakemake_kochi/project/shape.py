"""The shape of a document: its schema says which keys it has, and how they are read.

The schemas in workflow/schemas/ are the table of keys: from them come the values, as plain data,
what is said about a wrong key or value, and the tables in the documentation. Editors read them,
too. Our own words in them:

x-read       `script`: one text, of one or several lines. `names`: a tuple of one or several. `raw`:
             as it is written, with its Scalars; else one of AMOUNTS
x-check      what a text, or each of a list, must be: one of CHECKS
x-keys       what the keys of a mapping must be: one of CHECKS
x-expected   what matches a `pattern`, for people; also one of `propertyNames`
x-instead    other names for keys
x-otherwise  what to do if none of the values of an `enum` fits

Some keys have a short form, which is read as the long one: `depends: [numbers:shuffled]` is
`depends: [{name: numbers, recipe: shuffled}]`, `params: {n: 1}` at the top level is `batches:
{default: {params: {n: 1}}}`, `run: ./sort` is `run: {script: ./sort}`.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import yaml

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.files import is_name
from snakemake_kochi.project import values
from snakemake_kochi.project.clean_rules import read_rule
from snakemake_kochi.project.document import (
    ABOVE,
    FASTEST,
    Document,
    KeyPath,
    Scalar,
    compose,
    is_null,
    section,
)
from snakemake_kochi.project.expressions import TemplateError, parse_text, parse_value
from snakemake_kochi.quantities import memory_of, walltime_of
from snakemake_kochi.resources import workflow_directory

# the names of the schemas
PROJECT, EXPERIMENT = "kochi.schema.yaml", "experiment.schema.yaml"
_UNCLEAR = re.compile(r"^[-+]?0[0-9_]|:")
# the largest count; schedulers use 32 bits
MAXIMUM_NUMBER = 2**31 - 1
# Keys of a batch whose values no parameter has.
_NO_PARAMETERS = frozenset({"artifacts", "build", "depends", "metrics", "plots", "run"})
# What a list says about each of its entries.
_OF_ENTRIES = ("x-check", "pattern", "x-expected")
_MEANT = re.compile(r"did you mean '(.*)'\?")
# Keys that have no meaning for a whole file: there they are those of its only batch.
_OF_BATCH = (
    *("params", "tasks", "zip", "when", "skip_if", "exclude", "grids", "code"),
    *("artifacts", "duplicates", "machines"),
)


def read_shape(document: Document, name: str) -> dict[str, Any]:
    """The data of a document as the schema of that name has it.

    `null` is None; nothing after a key is an empty text, list or mapping. Raises ConfigError with a
    line per problem of shape: nothing else can be said about such a file.
    """
    if name == EXPERIMENT and isinstance(document.data, dict):
        _write_out(document)
    schema = _schema(name)
    # Those of kochi.yaml, to which an experiment refers, too, have other names.
    definitions = _schema(PROJECT)["definitions"] | schema["definitions"]
    found = _Reader(definitions, document).read(document.data, schema, ())
    document.problems.raise_all()
    return found or {}


@functools.cache
def _schema(name: str) -> Any:
    text = (workflow_directory() / "schemas" / name).read_text("utf-8")
    return yaml.load(text, Loader=FASTEST)


def is_experiment(text: str) -> bool:
    """Whether a text is an experiment: a YAML mapping with a mapping under the key `run`, or, if
    it is only to be built, under both `build` and `batches`; or with parameters at its top level
    and a script.

    A text that is not valid YAML but has a line `run:` counts, too: reading it reports the error.
    """
    try:
        node = compose("", text) if re.search("run|build", text) else None
    except ConfigError:
        return re.search(r"^run\s*:", text, re.MULTILINE) is not None
    if not isinstance(node, yaml.MappingNode):
        return False
    kinds = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    mappings = {key for key, value in kinds.items() if isinstance(value, yaml.MappingNode)}
    # Files of other programs have a `build`, too.
    has_points = {"params", "batches"} & mappings or isinstance(kinds.get("tasks"), yaml.ScalarNode)
    has_batches = bool(has_points and {"run", "build"} & {*kinds})
    return has_batches or "run" in mappings


# ---- short forms


def _write_out(document: Document) -> None:
    """Replace the short forms in an experiment, and give the new keys the lines of the old ones."""
    data, lines = document.data, document.source_map.lines
    given = [key for key in _OF_BATCH if key in data]
    if data.get("batches") and not is_null(data["batches"]):
        for key in given:
            del data[key]
            said = f"write {ABOVE[key]}, or " if key in ABOVE else ""
            said += "write it into a batch"
            document.problems.add((key,), f"unknown key beside 'batches'; {said}")
    elif given:
        data["batches"] = {values.DEFAULT_BATCH: {key: data.pop(key) for key in given}}
        for path, line in list(lines.items()):
            if path[:1] and path[0] in given:
                lines[("batches", values.DEFAULT_BATCH, *path)] = line
    every = [(("batches", name), own) for name, own in section(data, "batches").items()]
    for path, own in [((), data), *every]:
        for key in ("build", "run", "prepare") if isinstance(own, dict) else ():
            value = own.get(key)
            if isinstance(value, list) or (isinstance(value, Scalar) and not is_null(value)):
                own[key] = {"script": value}
                lines[(*path, key, "script")] = lines[(*path, key)]


# ---- amounts and checks


def _amount(
    read: Callable[[str], Any], fits: Callable[[Any], bool], expected: str
) -> Callable[[str], Any]:
    def amount(text: str) -> Any:
        with suppress(ValueError):
            if fits(found := read(text)):
                return found
        raise ValueError(expected)

    return amount


def _percent(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else 0.0


def _node_seconds(text: str) -> float:
    number, _, unit = text.partition(" ")
    hours = {"node-hours": 3600, "node-hour": 3600, "node-minutes": 60}
    return float(number) * hours.get(unit.strip(), 0)


def _requirement(text: str) -> dict[str, str]:
    return dict(zip(("name", "recipe"), text.split(":", 1), strict=False))


def _is_positive(number: float) -> bool:
    return 0 < number < float("inf")


# Hosting services refuse larger files.
_SIZE = "a size like 10M was expected, from 1 MiB to 100 MiB"
_NODES = "a number of node-hours or node-minutes was expected, such as 5 node-hours"
_PERCENT = "a percentage between 0 and 100 was expected, such as 2%"
_MEASURE = "a number above 0 was expected, without its unit"
# They raise a ValueError, which says what was expected.
AMOUNTS: dict[str, Callable[[str], Any]] = {
    "age": functools.partial(read_rule, "after"),
    "day": _amount(datetime.date.fromisoformat, bool, "a day such as 2027-01-31 was expected"),
    "disk": functools.partial(read_rule, "builds_above"),
    "measure": _amount(float, _is_positive, _MEASURE),
    "memory": memory_of,
    "node_hours": _amount(_node_seconds, _is_positive, _NODES),
    "percentage": _amount(_percent, lambda p: 0 < p < 1, _PERCENT),
    "requirement": _requirement,
    "requirements": lambda text: [_requirement(text)],
    "size_in_git": _amount(lambda t: memory_of(t) << 20, lambda b: 1 <= b >> 20 <= 100, _SIZE),
    "threshold": values.threshold_of,
    "walltime": walltime_of,
}


def _name_of(kind: str) -> Callable[[str], str | None]:
    return lambda name: None if is_name(name) else f"the {kind} name {name!r} {values.NOT_IN_PATHS}"


def _pattern_problem(text: str) -> str | None:
    try:
        groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        return f"not a Python regular expression: {error}"
    said = f"one group (...) around the number was expected, not {groups}"
    return None if groups == 1 else f"{said}; write other groups as (?:...)"


def _directory_problem(text: str) -> str | None:
    if os.path.normpath(text) in ("/", "//"):
        return "this is the whole filesystem; the directory of the sources was expected"
    return values.path_problem(text)


def _refused(read: Callable[[str], Any], shown: str = "") -> Callable[[str], str | None]:
    """The check that reading succeeds."""

    def check(text: str) -> str | None:
        try:
            read(text)
        except ValueError as error:
            return f"{shown and repr(text) + ': '}{error}"
        return None

    return check


def _template(problem: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Whether a text with references is wrong whatever is substituted in it."""

    def read(text: str) -> None:
        template = parse_text(text)
        if wrong := problem(template.render(dict.fromkeys(template.names, "x"))):
            raise TemplateError(wrong)

    return _refused(read, "shown")


# Why a text, or a key, cannot be one.
CHECKS: dict[str, Callable[[str], str | None]] = {
    "directory": _directory_problem,
    "dest": _template(lambda text: values.dest_problem(values.normalise_dest(text))),
    "expression": _refused(parse_value),
    "git": lambda text: values.path_problem(text, ":" not in text.partition("/")[0]),
    "glob": values.glob_problem,
    "job_name": _template(values.line_problem),
    "kept": _refused(lambda text: read_rule("keep", [text]), "shown"),
    "line": values.line_problem,
    "path": values.path_problem,
    "pattern": _pattern_problem,
    "queue": _template(values.queue_problem),
    "src": _template(values.src_problem),
    "value": values.value_problem,
    "metric": lambda name: values.used_name_problem(name, "metric"),
    "parameter": values.name_problem,
    **{kind: _name_of(kind) for kind in ("batch", "dependency", "machine", "recipe")},
}


# ---- reading by a schema


class _Reader:
    def __init__(self, definitions: dict[str, Any], document: Document) -> None:
        self._definitions, self._problems = definitions, document.problems

    def _add(self, path: KeyPath, said: str) -> None:
        for index, (around, key) in enumerate(pairwise(path)):
            if around in ("params", "default_params") and key in _NO_PARAMETERS:
                # It is indented into the parameters before it.
                said = f"'{key}' is no parameter; indent it as far as '{around}'"
                path = path[: index + 2]
                break
        self._problems.add(path, said)

    def read(self, value: Any, schema: dict[str, Any], path: KeyPath) -> Any:
        if not schema:
            return value
        while "$ref" in schema:
            own = {key: schema[key] for key in schema if key == "pattern" or key[:2] == "x-"}
            parts = schema["$ref"].partition("#")[2].split("/")[2:]
            schema = functools.reduce(lambda at, part: at[part], parts, self._definitions) | own
        if "enum" in schema:
            return self._chosen(value, schema, path)
        how, types = schema.get("x-read"), schema["type"]
        types = {types} if isinstance(types, str) else {*types}
        found: Any
        if not types & _types_of(value):
            said = f"{_expected(types)} was expected, not {_found(value)}"
            hint = isinstance(value, dict) and any("script" in str(key) for key in path)
            self._add(path, f"{said}; quote a line that contains ': '" if hint else said)
            return None
        if isinstance(value, dict):
            found = self._mapping(value, schema, path)
        elif isinstance(value, list):
            if not value and "minItems" in schema:
                self._add(path, "the list is empty; give it an entry or remove the key")
            entry = schema["items"] | {key: schema[key] for key in _OF_ENTRIES if key in schema}
            found = [self.read(each, entry, (*path, i)) for i, each in enumerate(value)]
        elif how == "names" and "enum" in schema["items"] and value.kind != "null":
            return (self.read(value, schema["items"], path),)
        else:
            found = self._scalar(value, types, schema.get("minimum", 0), path)
            pattern = schema.get("pattern", "") if value.kind != "null" else ""
            if pattern and not re.search(pattern, found):
                self._add(path, f"{schema['x-expected']} was expected, not {_found(value)}")
        if how == "raw":
            return value
        if how == "script" and found and not isinstance(found, dict):
            found = "\n".join(map(str, value)) if isinstance(value, list) else str(value)
        if isinstance(found, str) and found:
            check = CHECKS.get(schema.get("x-check", ""))
            if check and (wrong := check(found)):
                self._add(path, wrong)
            try:
                found = AMOUNTS.get(how or "", str)(found)
            except ValueError as error:
                self._add(path, f"{found!r}: {error}")
            return (found,) if how == "names" else found
        return tuple(found) if how == "names" and found is not None else found

    def _chosen(self, value: Any, schema: dict[str, Any], path: KeyPath) -> str | None:
        choices = schema["enum"]
        if is_null(value) and None in choices:
            return None
        if value in choices:
            return str(value)
        said = nearest(str(value), filter(None, choices))
        if (otherwise := schema.get("x-otherwise")) and not _MEANT.fullmatch(said):
            said += f"; {otherwise}"
        self._add(path, f"{_found(value)} is not possible here, {said}")
        return None

    def _mapping(
        self, data: dict[str, Any], schema: dict[str, Any], path: KeyPath
    ) -> dict[str, Any]:
        known, others = schema.get("properties", {}), schema["additionalProperties"]
        ignored = "|".join(schema.get("patternProperties", ())) or "(?!)"
        instead, names = schema.get("x-instead", {}), schema.get("propertyNames")
        found, there = {}, {*data}
        for key, value in data.items():
            place = (*path, key)
            if (keys := schema.get("x-keys")) and (wrong := CHECKS[keys](key)):
                self._add(place, wrong)
            if names and not re.search(names["pattern"], key):
                self._add(place, f"{names['x-expected']} was expected, not '{_short(key)}'")
            if key in known or others is not False:
                found[key] = self.read(value, known.get(key, others), place)
            elif not re.match(ignored, key):
                said = f"did you mean '{instead[key]}'?" if key in instead else nearest(key, known)
                self._add(place, f"unknown key, {said}")
                if (meant := _MEANT.fullmatch(said)) and meant[1] not in data:
                    there.add(meant[1])
                    self.read(value, known[meant[1]], place)
        missing = [key for key in schema.get("required", ()) if key not in there]
        one_of = [each["required"][0] for each in schema.get("anyOf", ())]
        if one_of and not there & {*one_of}:
            missing = one_of[:1]  # the usual one
        if missing:
            self._add(path, f"the key {' and '.join(map(repr, missing))} is missing")
        return found

    def _scalar(self, value: Scalar, types: set[str], least: int, path: KeyPath) -> Any:
        if value.kind == "null":
            empty = {"string": "", "array": list[Any](), "object": dict[str, Any]()}
            return None if value else next((empty[each] for each in empty if each in types), None)
        if "string" in types:
            return value.value_text
        if value.kind == "boolean":
            return value.is_true
        number = MAXIMUM_NUMBER + 1
        with suppress(ValueError):  # too many digits
            number = value.whole_number
        said = f"{least} or more" if number < least else f"{MAXIMUM_NUMBER} or less"
        if _UNCLEAR.search(value):  # YAML takes 010 for 8, and 1:30 for 90
            said = "a whole number such as 10"
        if _UNCLEAR.search(value) or not least <= number <= MAXIMUM_NUMBER:
            self._add(path, f"{said} was expected, not {_short(value)}")
        return number


def _types_of(value: Any) -> set[str]:
    if isinstance(value, Scalar):
        return {value.kind, "number"} if value.kind == "integer" else {value.kind}
    return {"object" if isinstance(value, dict) else "array"}


def _expected(types: set[str]) -> str:
    words = {
        "a single value": {"string", "boolean"} <= types,
        "a text": "string" in types and "boolean" not in types,
        "a whole number": "integer" in types,
        "true or false": "boolean" in types and "string" not in types,
        "a list": "array" in types,
        "a mapping (key: value)": "object" in types,
    }
    return " or ".join(word for word, is_possible in words.items() if is_possible)


def _found(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value.kind == "null":
        return "nothing"
    if value.kind == "boolean":
        return f"{value} (quote it to make it a text)"
    return f"the {'text' if value.kind == 'string' else 'number'} '{_short(value)}'"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
