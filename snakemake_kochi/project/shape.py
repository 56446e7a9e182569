"""The shape of a document: whether it is an experiment, and what contradicts its JSON schema."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import yaml

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.project.document import FASTEST, Document, Scalar, compose, is_null
from snakemake_kochi.project.problems import KeyPath
from snakemake_kochi.resources import workflow_directory

if TYPE_CHECKING:
    import jsonschema

# What replaces a wrong value while the rest is checked: present and harmless.
_NO_VALUE = Scalar("", "null")
_SCRIPT = Scalar(":")
_TEXT = Scalar("x")
_ABSENT = object()
# Keys of a batch whose values no parameter has.
_NO_PARAMETERS = frozenset({"artifacts", "build", "depends", "metrics", "plots", "run"})
_UNCLEAR = re.compile(r"^[-+]?0[0-9_]|:")
# the largest count; schedulers use 32 bits
MAXIMUM_NUMBER = 2**31 - 1


def _is_kind(*kinds: str) -> Any:
    return lambda checker, instance: isinstance(instance, Scalar) and instance.kind in kinds


def _minimum(
    validator: Any, minimum: int, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    import jsonschema

    if not validator.is_type(instance, "integer"):
        return
    if _UNCLEAR.search(instance):  # YAML takes 010 for 8, and 1:30 for 90
        said = f"a whole number such as 10 was expected, not {_short(instance)}"
        yield jsonschema.ValidationError(said)
        return
    try:
        number = instance.whole_number
    except ValueError:  # too many digits
        number = MAXIMUM_NUMBER + 1
    if number < minimum:
        yield jsonschema.ValidationError(f"{minimum} or more was expected, not {_short(instance)}")
    if number > MAXIMUM_NUMBER:
        said = f"{MAXIMUM_NUMBER} or less was expected, not {_short(instance)}"
        yield jsonschema.ValidationError(said)


def _enum(
    validator: Any, choices: list[str | None], instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    import jsonschema

    if instance not in choices and not (None in choices and is_null(instance)):
        yield jsonschema.ValidationError("")  # see _in_words


@functools.cache
def _validator(name: str) -> Any:
    import jsonschema

    text = (workflow_directory() / "schemas" / name).read_text("utf-8")
    schema = yaml.load(text, Loader=FASTEST)
    base: Any = jsonschema.Draft7Validator
    checker = base.TYPE_CHECKER.redefine_many(
        {kind: _is_kind(kind) for kind in ("string", "integer", "boolean", "null")}
        | {"number": _is_kind("integer", "number")}
    )
    extend: Any = jsonschema.validators.extend
    return extend(base, {"minimum": _minimum, "enum": _enum}, type_checker=checker)(schema)


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
    mappings = {
        key.value
        for key, value in node.value
        if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.MappingNode)
    }
    # Files of other programs have a `build`, too.
    if "run" in mappings or {"build", "batches"} <= mappings:
        return True
    scripts = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    return bool(mappings & {"params", "batches"}) and bool(scripts & {"run", "build"})


def check_shape(document: Document, schema: str) -> bool:
    """Add the problems of the document's shape.

    Unknown keys are repaired in the data (renamed to the key that was probably intended, or
    dropped), and wrong values are replaced and marked as unknown, so that the meaning of the rest
    can be checked, too. Returns False when that makes no sense.
    """
    validator = _validator(schema)
    for error in list(validator.iter_errors(document.data)):
        _move_out_of_parameters(document, tuple(error.absolute_path))
    for error in list(validator.iter_errors(document.data)):
        if error.validator == "additionalProperties":
            _repair_unknown_keys(document, error)
    wrong: list[KeyPath] = []
    for error in list(validator.iter_errors(document.data)):
        path = tuple(error.absolute_path)
        document.problems.add(path, _in_words(error))
        if error.validator == "required":
            missing = [key for key in error.validator_value if key not in error.instance]
            wrong += [(*path, key) for key in missing]
        else:
            wrong.append(path)
    if () in wrong:
        return False
    for path in sorted(wrong, key=len):  # the content of a wrong value is gone with it
        _replace(document, path)
    return True


def _move_out_of_parameters(document: Document, path: KeyPath) -> None:
    """Repair a key of a batch or an experiment that is indented into the parameters before it."""
    for index, (section, key) in enumerate(pairwise(path)):
        if section in ("params", "default_params") and key in _NO_PARAMETERS:
            inner, outer = (_follow(document.data, path[:end]) for end in (index + 1, index))
            if isinstance(inner, dict) and isinstance(outer, dict) and key in inner:
                said = f"'{key}' is no parameter; indent it as far as '{section}'"
                document.problems.add(path[: index + 2], said)
                outer.setdefault(key, inner.pop(key))
            return


def _replace(document: Document, path: KeyPath) -> None:
    place, stand_in = _stand_in(path)
    document.problems.mark_unknown(place)
    lost = _lost_with(place)
    if lost:
        document.problems.mark_unknown(lost)
    container = _follow(document.data, place[:-1])
    key: Any = place[-1]
    if stand_in is not _ABSENT and isinstance(container, dict | list):
        container[key] = stand_in
    elif isinstance(container, dict):
        container.pop(key, None)


def _lost_with(place: KeyPath) -> KeyPath | None:
    """The list of names, the recipes of a dependency or the parameters of all batches, that is
    incomplete without a wrong value."""
    match place:
        case ("dependencies", _, "recipes", _) | ("dependencies", _, "recipes", _, "name"):
            return place[:3]
        case ("batches", _) | ("batches", _, "params"):
            return place[:1]
    return None


def _stand_in(path: KeyPath) -> tuple[KeyPath, Any]:
    """Where to replace a wrong value at a key path, and by what. Nothing is removed from a list:
    the following entries would get wrong key paths."""
    # Below these keys the next key is a name that the user chose, and may equal one of our keys.
    depth = 2 if path[0] in ("batches", "dependencies", "machines") else 0
    if path[0] == "dependencies" and path[2:3] == ("recipes",) and len(path) > 3:
        depth = 4
    match path[depth:]:
        case ():
            return path, {2: _ABSENT, 4: None}[depth]
        case ("params" | "default_params" | "envs", _, *_):
            return path[: depth + 2], _NO_VALUE
        case ("grids", int(), *inner) if inner:
            place, stand_in = _stand_in((*path[:depth], *inner))
            return (*path[: depth + 2], *place[depth:]), stand_in
        case ("include", int(), _, *_):
            return path[: depth + 3], _NO_VALUE
        case ("artifacts", _, "type", *_):
            return path[: depth + 3], Scalar("unknown")
        case ("artifacts", _, "src", *_):
            return path[: depth + 3], _TEXT
        case ("artifacts" | "depends", _, *_):
            return path[: depth + 2], None
        case (_, "depend_params", _):
            return path, None
        case ("sources", _):
            return path, _TEXT
        case ("run" | "build",):
            return path, {"script": _SCRIPT}
        case ("run" | "build", "script", *_):
            return path[: depth + 2], _SCRIPT
        case ("before_script" | "script" | "after_script" | "activate_script", *_):
            return path[: depth + 1], _SCRIPT
        case ("recipes",):
            return path, []
        case ("name",) if depth == 4:
            return path, Scalar(f"recipes[{path[3]}]")
        case (*_, int()):  # a line of a script on which nothing else depends
            return path[:-1], _ABSENT
        case _:
            return path, _ABSENT


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
    instead = error.schema.get("x-instead", {})  # our own word: other names for keys
    for key in unknown:
        said = f"did you mean '{instead[key]}'?" if key in instead else nearest(key, known)
        document.problems.add((*path, key), f"unknown key, {said}")
        value = mapping.pop(key)
        meant = re.fullmatch(r"did you mean '(.*)'\?", said)
        if meant and meant[1] not in mapping:
            mapping[meant[1]] = value


def _follow(data: Any, path: KeyPath) -> Any:
    """The value at a key path; None if there is nothing any more."""
    for part in path:
        if isinstance(data, dict):
            data = data.get(str(part))
        elif isinstance(data, list):
            data = data[int(part)]
        else:
            return None
    return data


def _in_words(error: Any) -> str:
    instance = error.instance
    match error.validator:
        case "required":
            missing = [key for key in error.validator_value if key not in instance]
            return f"the key {' and '.join(map(repr, missing))} is missing"
        case "anyOf":  # one of several keys; the first is the usual one
            return f"the key '{error.validator_value[0]['required'][0]}' is missing"
        case "type":
            said = f"{_expected(error.validator_value)} was expected, not {_found(instance)}"
            if isinstance(instance, dict) and "script" in str(error.absolute_path):
                said += "; quote a line that contains ': '"
            return said
        case "pattern":
            return f"{error.schema['x-expected']} was expected, not {_found(instance)}"
        case "enum":
            said = nearest(str(instance), list(filter(None, error.validator_value)))
            otherwise = error.schema.get("x-otherwise")  # our own word
            if otherwise is not None and not said.startswith("did you mean"):
                said += f"; {otherwise}"
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
        return f"{instance} (quote it to make it a text)"
    kind = "text" if instance.kind == "string" else "number"
    return f"the {kind} '{_short(instance)}'"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
