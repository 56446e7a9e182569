"""The short forms of an experiment, as the long ones: everything else reads only these.

`depends: [numbers:shuffled]` is `depends: [{name: numbers, recipe: shuffled}]`, `params: {n: 1}` at
the top level is `batches: {default: {params: {n: 1}}}`, `run: ./sort` is `run: {script: ./sort}`.
"""

from __future__ import annotations

from typing import Any

from snakemake_kochi.project.document import Document, Scalar, is_null, section
from snakemake_kochi.project.problems import KeyPath

DEFAULT_BATCH = "default"
_SCRIPTS = ("build", "run", "prepare")
# Keys that have no meaning for a whole file: there they are those of its only batch.
_OF_BATCH = (
    *("params", "zip", "when", "skip_if", "include", "exclude", "grids", "code"),
    *("artifacts", "duplicates", "machines"),
)

_DEFAULTS = {"params": "default_params", "duplicates": "default_duplicates"}


def write_out(document: Document) -> None:
    """Replace the short forms in a document, and give the new keys the lines of the old ones."""
    data = document.data
    if not isinstance(data, dict):
        return
    given = [key for key in _OF_BATCH if key in data]
    if section(data, "batches"):
        for key in given:
            del data[key]
            said = f"write {_DEFAULTS[key]}, or " * (key in _DEFAULTS) + "write it into a batch"
            document.problems.add((key,), f"unknown key beside 'batches'; {said}")
    elif given:
        data["batches"] = {DEFAULT_BATCH: {key: data.pop(key) for key in given}}
        for path, line in list(document.source_map.lines.items()):
            if path[:1] and path[0] in given:
                document.source_map.lines[("batches", DEFAULT_BATCH, *path)] = line
    for path, batch in ((), data), *_batches(data):
        for key in _SCRIPTS:
            _write_script(batch, key, document, path)
        _write_depends(batch)


def _batches(data: dict[str, Any]) -> list[tuple[KeyPath, dict[str, Any]]]:
    batches = section(data, "batches").items()
    return [(("batches", name), batch) for name, batch in batches if isinstance(batch, dict)]


def _write_script(data: dict[str, Any], key: str, document: Document, path: KeyPath) -> None:
    value = data.get(key)
    if isinstance(value, list) or (isinstance(value, Scalar) and not is_null(value)):
        data[key] = {"script": value}
        lines = document.source_map.lines
        lines[(*path, key, "script")] = lines[(*path, key)]


def write_out_recipes(document: Document) -> None:
    """The same for a kochi.yaml."""
    if isinstance(document.data, dict):
        for dependency in section(document.data, "dependencies").values():
            recipes = dependency.get("recipes") if isinstance(dependency, dict) else None
            for each in (dependency, *(recipes if isinstance(recipes, list) else ())):
                if isinstance(each, dict):
                    _write_depends(each)


def _write_depends(data: dict[str, Any]) -> None:
    value = data.get("depends")
    if isinstance(value, Scalar) and ":" in value:
        value = data["depends"] = [value]
    if isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, Scalar) and ":" in entry:
                name, _, recipe = entry.partition(":")
                value[index] = {"name": Scalar(name), "recipe": Scalar(recipe)}
