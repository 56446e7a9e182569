"""The shape of a document: its schema says which keys it has, and how they are read.

The schemas in workflow/schemas/ are the table of keys: from them come the values, as plain data,
and what is said about a wrong key or value. Editors read them, too. Our own words in them:

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
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import yaml

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.files import is_name
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
from snakemake_kochi.project.grid import job_name_problem, queue_problem
from snakemake_kochi.project.values import (
    DEFAULT_BATCH,
    dest_problem,
    glob_problem,
    has_control_character,
    metric_problem,
    name_problem,
    normalise_dest,
    path_problem,
    src_problem,
    threshold_of,
    value_problem,
)
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
    *("params", "zip", "when", "skip_if", "exclude", "grids", "code"),
    *("artifacts", "duplicates", "machines"),
)


def read_shape(document: Document, name: str) -> dict[str, Any]:
    """The data of a document as the schema of that name has it.

    `null` is None; nothing after a key is an empty text, list or mapping. Raises ConfigError with a
    line per problem of shape: nothing else can be said about such a file.
    """
    if name == EXPERIMENT:
        write_out(document)
    schema = _schema(name)
    found = _Reader(schema["definitions"], document).read(document.data, schema, ())
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
    if not re.search("run|build", text):
        return False
    try:
        node = compose("", text)
    except ConfigError:
        return re.search(r"^run\s*:", text, re.MULTILINE) is not None
    if not isinstance(node, yaml.MappingNode):
        return False
    kinds = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    mappings = {key for key, value in kinds.items() if isinstance(value, yaml.MappingNode)}
    # Files of other programs have a `build`, too.
    if "run" in mappings or {"build", "batches"} <= mappings:
        return True
    return bool(mappings & {"params", "batches"}) and bool({*kinds} & {"run", "build"})


# ---- short forms


def write_out(document: Document) -> None:
    """Replace the short forms in an experiment, and give the new keys the lines of the old ones."""
    data, lines = document.data, document.source_map.lines
    if not isinstance(data, dict):
        return
    given = [key for key in _OF_BATCH if key in data]
    batches = data.get("batches")
    if batches is not None and batches != {} and not is_null(batches):
        for key in given:
            del data[key]
            said = f"write {ABOVE[key]}, or " if key in ABOVE else ""
            said += "write it into a batch"
            document.problems.add((key,), f"unknown key beside 'batches'; {said}")
    elif given:
        data["batches"] = {DEFAULT_BATCH: {key: data.pop(key) for key in given}}
        for path, line in list(lines.items()):
            if path[:1] and path[0] in given:
                lines[("batches", DEFAULT_BATCH, *path)] = line
    every = [(("batches", name), own) for name, own in section(data, "batches").items()]
    for path, own in [((), data), *every]:
        for key in ("build", "run", "prepare") if isinstance(own, dict) else ():
            value = own.get(key)
            if isinstance(value, list) or (isinstance(value, Scalar) and not is_null(value)):
                own[key] = {"script": value}
                lines[(*path, key, "script")] = lines[(*path, key)]


# ---- amounts and checks


def _size_in_git(text: str) -> int:
    """In bytes. Hosting services refuse files of more than 100 MiB."""
    with suppress(ValueError):
        if 1 <= (size := memory_of(text)) <= 100:
            return size << 20
    raise ValueError("a size like 10M was expected, from 1 MiB to 100 MiB")


def _fraction(text: str) -> float:
    with suppress(ValueError):
        if text.endswith("%") and 0 < (percent := float(text[:-1])) < 100:
            return percent / 100
    raise ValueError("a percentage between 0 and 100 was expected, such as 2%")


def _node_seconds(text: str) -> float:
    number, _, unit = text.partition(" ")
    seconds = {"node-hours": 3600, "node-hour": 3600, "node-minutes": 60}.get(unit.strip(), 0)
    with suppress(ValueError):
        if 0 < (found := float(number) * seconds) < math.inf:
            return found
    raise ValueError("a number of node-hours or node-minutes was expected, such as 5 node-hours")


def _measure(text: str) -> float:
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise ValueError("a number above 0 was expected, without its unit")


def _day(text: str) -> datetime.date:
    with suppress(ValueError):
        return datetime.date.fromisoformat(text)
    raise ValueError("a day such as 2027-01-31 was expected")


def _requirement(text: str) -> dict[str, str]:
    return dict(zip(("name", "recipe"), text.split(":", 1), strict=False))


# They raise a ValueError, which says what was expected.
AMOUNTS: dict[str, Callable[[str], Any]] = {
    "age": functools.partial(read_rule, "after"),
    "day": _day,
    "disk": functools.partial(read_rule, "builds_above"),
    "measure": _measure,
    "memory": memory_of,
    "node_hours": _node_seconds,
    "percentage": _fraction,
    "requirement": _requirement,
    "requirements": lambda text: [_requirement(text)],
    "size_in_git": _size_in_git,
    "threshold": threshold_of,
    "walltime": walltime_of,
}


def _name_of(kind: str) -> Callable[[str], str | None]:
    said = (
        f"the {kind} name {{!r}} cannot be used in paths; 1 to 128 letters, digits and any of "
        "._+@=- were expected, not starting with a dot or dash"
    )
    return lambda name: None if is_name(name) else said.format(name)


def _pattern_problem(text: str) -> str | None:
    try:
        groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        return f"not a Python regular expression: {error}"
    if groups == 1:
        return None
    said = f"one group (...) around the number was expected, not {groups}"
    return f"{said}; write other groups as (?:...)"


def _kept_problem(text: str) -> str | None:
    try:
        read_rule("keep", [text])
    except ValueError as error:
        return f"{text!r}: {error}"
    return None


def _directory_problem(text: str) -> str | None:
    if os.path.normpath(text) in ("/", "//"):
        return "this is the whole filesystem; the directory of the sources was expected"
    return path_problem(text)


def _expression_problem(text: str) -> str | None:
    try:
        parse_value(text)
    except TemplateError as error:
        return str(error)
    return None


def _template(problem: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Whether a text with references is wrong whatever is substituted in it."""

    def check(text: str) -> str | None:
        try:
            template = parse_text(text)
            wrong = problem(template.render(dict.fromkeys(template.names, "x")))
        except TemplateError as error:
            wrong = str(error)
        return f"{text!r}: {wrong}" if wrong else None

    return check


# Why a text, or a key, cannot be one.
CHECKS: dict[str, Callable[[str], str | None]] = {
    "directory": _directory_problem,
    "dest": _template(lambda text: dest_problem(normalise_dest(text))),
    "expression": _expression_problem,
    "git": lambda text: path_problem(text, ":" not in text.partition("/")[0]),
    "glob": glob_problem,
    "job_name": _template(job_name_problem),
    "kept": _kept_problem,
    "line": lambda text: "one line of text was expected" if has_control_character(text) else None,
    "path": path_problem,
    "pattern": _pattern_problem,
    "queue": _template(queue_problem),
    "src": _template(src_problem),
    "value": value_problem,
    "metric": metric_problem,
    "parameter": name_problem,
    **{kind: _name_of(kind) for kind in ("batch", "dependency", "machine", "recipe")},
}


# ---- reading by a schema


class _Reader:
    def __init__(self, definitions: dict[str, Any], document: Document) -> None:
        self._definitions = definitions
        self._problems = document.problems

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
        if "$ref" in schema:
            own = {key: schema[key] for key in schema if key == "pattern" or key[:2] == "x-"}
            parts = schema["$ref"].split("/")[2:]
            schema = functools.reduce(lambda at, part: at[part], parts, self._definitions) | own
        how, check = schema.get("x-read"), schema.get("x-check")
        if "enum" in schema:
            return self._chosen(value, schema, path)
        types = {schema["type"]} if isinstance(schema["type"], str) else {*schema["type"]}
        if not types & _types_of(value):
            said = f"{_expected(types)} was expected, not {_found(value)}"
            hint = isinstance(value, dict) and any("script" in str(key) for key in path)
            self._add(path, f"{said}; quote a line that contains ': '" if hint else said)
            return None
        found: Any
        if isinstance(value, dict):
            found = self._mapping(value, schema, path)
        elif isinstance(value, list):
            if not value and "minItems" in schema:
                self._add(path, "the list is empty; give it an entry or remove the key")
            entry = schema["items"] | {key: schema[key] for key in _OF_ENTRIES if key in schema}
            found = [self.read(each, entry, (*path, i)) for i, each in enumerate(value)]
        elif "then" in schema and value.kind != "null":  # as an entry of the list
            return (self.read(value, schema["then"], path),)
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
            return self._text(found, how, check, path)
        return tuple(found) if how == "names" and found is not None else found

    def _text(self, text: str, how: str | None, check: str | None, path: KeyPath) -> Any:
        if check and (wrong := CHECKS[check](text)):
            self._add(path, wrong)
        if how in AMOUNTS:
            try:
                return AMOUNTS[how](text)
            except ValueError as error:
                self._add(path, f"{text!r}: {error}")
        return (text,) if how == "names" else text

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

    def _scalar(self, value: Scalar, types: set[str], minimum: int, path: KeyPath) -> Any:
        if value.kind == "null":
            empty: tuple[tuple[str, Any], ...] = (("string", ""), ("array", []), ("object", {}))
            return None if value else next((each for kind, each in empty if kind in types), None)
        if "string" in types:
            return value.value_text
        if value.kind == "boolean":
            return value.is_true
        if _UNCLEAR.search(value):  # YAML takes 010 for 8, and 1:30 for 90
            self._add(path, f"a whole number such as 10 was expected, not {_short(value)}")
            return None
        try:
            number = value.whole_number
        except ValueError:  # too many digits
            number = MAXIMUM_NUMBER + 1
        if number < minimum:
            self._add(path, f"{minimum} or more was expected, not {_short(value)}")
        if number > MAXIMUM_NUMBER:
            self._add(path, f"{MAXIMUM_NUMBER} or less was expected, not {_short(value)}")
        return number


def _types_of(value: Any) -> set[str]:
    if isinstance(value, Scalar):
        return {value.kind, "number"} if value.kind == "integer" else {value.kind}
    return {"object" if isinstance(value, dict) else "array"}


def _expected(types: set[str]) -> str:
    has_text = "string" in types
    words = ["a single value" if "boolean" in types else "a text"] if has_text else []
    words += ["a whole number"] if "integer" in types else []
    words += ["true or false"] if "boolean" in types and not has_text else []
    words += ["a list"] if "array" in types else []
    words += ["a mapping (key: value)"] if "object" in types else []
    return " or ".join(words)


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
