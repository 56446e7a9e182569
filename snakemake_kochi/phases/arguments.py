"""The arguments of the phase `run`, read without argparse, which takes a tenth of a short run.

Only what `RUN_COMMAND` of the rule library, and its additions, write is read here. Anything else,
and anything wrong, is left to the parser of all phases, which has the same answers (see the tests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# With one value each, which may follow an equals sign.
_SINGLE: Mapping[str, Callable[[str], Any]] = {
    "--duplicate": int,
    "--rerun-of": str,
    "--launcher": str,
    "--timeout": float,
    "--build": Path,
    "--prepared": Path,
    "--record": Path,
    "--batch": str,
    "--code": str,
}
# With any number of values.
_SEVERAL: Mapping[str, Callable[[str], Any]] = {
    "--parameters": str,
    "--installs": Path,
    "--artifacts": Path,
}
_RESOURCE = "--resource"  # with one value, each time
_REQUIRED = ("duplicate", "build", "record")


class Options(SimpleNamespace):
    """The options of a phase, by their names."""


def run_options(words: Sequence[str]) -> Options | None:
    """The options of a `run` with these arguments; None if the parser has to read them."""
    if len(words) < 2 or words[0] != "run" or words[1].startswith("-"):
        return None
    found: dict[str, Any] = {}
    resource: list[str] = []
    position, end = 2, len(words)
    while position < end:
        word = words[position]
        position += 1
        name, equals, value = word.partition("=")
        if name in found or (equals and name in _SEVERAL):
            return None
        if name in _SEVERAL:
            first = position
            while position < end and not words[position].startswith("-"):
                position += 1
            found[name] = list(map(_SEVERAL[name], words[first:position]))
            continue
        if name not in _SINGLE and name != _RESOURCE:
            return None
        if not equals:
            if position == end or words[position].startswith("-"):
                return None
            value = words[position]
            position += 1
        if name == _RESOURCE:
            resource.append(value)
            continue
        try:
            found[name] = _SINGLE[name](value)
        except ValueError:
            return None
    options = {name[2:].replace("-", "_"): value for name, value in found.items()}
    if not all(name in options for name in _REQUIRED):
        return None
    return Options(**{**_defaults(), **options}, experiment=words[1], resource=resource)


def _defaults() -> dict[str, Any]:
    return {
        "rerun_of": "",
        "launcher": "",
        "timeout": None,
        "prepared": None,
        "artifacts": [],
        "batch": "",
        "parameters": [],
        "code": "",
        "installs": [],
    }
