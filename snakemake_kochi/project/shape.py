"""The shape of a document, checked against its JSON schema and reported in plain words."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.document import Document, KeyPath, Scalar
from snakemake_kochi.resources import workflow_directory

# What is wrong inside one entry of these says nothing about the rest of the file; and what stands
# for the entry then. It is not removed: the entries after it would answer to wrong key paths.
_INDEPENDENT: dict[str, Any] = {
    "artifacts": None,
    "depends": None,
    "default_params": Scalar("", "null"),
    "params": Scalar("", "null"),
    "envs": Scalar("", "null"),
}


def _is_kind(*kinds: str) -> Any:
    return lambda checker, instance: isinstance(instance, Scalar) and instance.kind in kinds


def _minimum(
    validator: Any, minimum: int, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if not validator.is_type(instance, "integer"):
        return
    try:
        too_small = instance.whole_number < minimum
    except ValueError:
        too_small = True
    if too_small:
        yield jsonschema.ValidationError(f"{minimum} or more was expected, not {instance}")


@functools.cache
def _validator(name: str) -> Any:
    schema = yaml.safe_load((workflow_directory() / "schemas" / name).read_text("utf-8"))
    base: Any = jsonschema.Draft7Validator
    checker = base.TYPE_CHECKER.redefine_many(
        {kind: _is_kind(kind) for kind in ("string", "integer", "boolean", "null")}
        | {"number": _is_kind("integer", "number")}
    )
    extend: Any = jsonschema.validators.extend
    return extend(base, {"minimum": _minimum}, type_checker=checker)(schema)


def check_shape(document: Document, schema: str) -> bool:
    """Add what is wrong with the document's shape to its problems.

    Unknown keys are repaired in the data (renamed to the key probably meant, or dropped) and a
    wrong artifact, requirement or parameter is replaced, so that the meaning of the rest can be
    checked too. Returns False when that would make no sense.
    """
    validator = _validator(schema)
    for error in list(validator.iter_errors(document.data)):
        if error.validator == "additionalProperties":
            _repair_unknown_keys(document, error)
    sound = True
    dropped: set[KeyPath] = set()
    for error in list(validator.iter_errors(document.data)):
        path = tuple(error.absolute_path)
        document.problems.add(path, _in_words(error))
        entry = _independent_entry(path)
        if entry is None:
            sound = False
        else:
            dropped.add(entry)
    if sound:
        for entry in dropped:
            _follow(document.data, entry[:-1])[entry[-1]] = _INDEPENDENT[str(entry[-2])]
    return sound


def _repair_unknown_keys(document: Document, error: Any) -> None:
    path = tuple(error.absolute_path)
    known = list(error.schema.get("properties", {}))
    patterns = error.schema.get("patternProperties", {})
    mapping = _follow(document.data, path)
    unknown = [
        key
        for key in mapping
        if key not in known and not any(re.search(pattern, key) for pattern in patterns)
    ]
    for key in unknown:
        said = nearest(key, known)
        document.problems.add((*path, key), f"unknown key, {said}")
        value = mapping.pop(key)
        meant = re.fullmatch(r"did you mean '(.*)'\?", said)
        if meant and meant[1] not in mapping:
            mapping[meant[1]] = value


def _follow(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _independent_entry(path: KeyPath) -> KeyPath | None:
    # Below these keys the next one is a name of the user's, which may be one of ours.
    start = 2 if path[:1] in (("batches",), ("dependencies",), ("machines",)) else 0
    for index in range(start, len(path) - 1):
        if path[index] in _INDEPENDENT:
            return path[: index + 2]
    return None


def _in_words(error: Any) -> str:
    instance = error.instance
    match error.validator:
        case "required":
            missing = [key for key in error.validator_value if key not in instance]
            return f"the key {' and '.join(map(repr, missing))} is missing"
        case "type":
            said = f"{_expected(error.validator_value)} was expected, not {_found(instance)}"
            if isinstance(instance, dict) and "script" in str(error.absolute_path):
                said += "; quote a line that contains ': '"
            return said
        case "enum":
            said = nearest(str(instance), error.validator_value)
            return f"{_found(instance)} is not possible here, {said}"
        case "minItems":
            return "the list is empty; give it an entry or remove the key"
        case _:
            return str(error.message)


def _expected(types: str | list[str]) -> str:
    names = {types} if isinstance(types, str) else set(types)
    words = []
    if {"string", "boolean"} <= names:
        words.append("a single value")
    elif "string" in names:
        words.append("a text")
    words += [
        word
        for kind, word in (
            ("integer", "a whole number"),
            ("boolean", "true or false"),
            ("array", "a list"),
            ("object", "a mapping (key: value)"),
        )
        if kind in names and not (kind == "boolean" and "string" in names)
    ]
    return " or ".join(words)


def _found(instance: Any) -> str:
    if isinstance(instance, dict):
        return "a mapping"
    if isinstance(instance, list):
        return "a list"
    if instance.kind == "null":
        return "nothing"
    if instance.kind == "boolean":
        return f"{instance} (quote it if a text is meant)"
    kind = "text" if instance.kind == "string" else "number"
    shown = instance if len(instance) <= 60 else f"{instance[:57]}..."
    return f"the {kind} '{shown}'"
