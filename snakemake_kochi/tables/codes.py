"""Which results are of the same code, as their records alone say.

A result is of the same code if nothing that determines results differs: the scripts, the source
files, the recipes and the builds, each compared with that of the same thing. So results from before
a change of the documentation, and the variants of one batch, are of one code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snakemake_kochi.tables.records import RecordedRun

# What determines a result: of what it is (a word for people, then what tells it from others of the
# kind) -> its text or digest.
Traits = Mapping[tuple[str, ...], str]

_SOURCES = "source files"
_SHORT = 12  # digits of a commit


def traits_of(record: Mapping[str, Any], published_as: str) -> Traits:
    """The traits of the code of a record, which anyone may have written."""
    return {key: sys.intern(text) for key, text in _traits(record, published_as)}


def _traits(record: Mapping[str, Any], published_as: str) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, word in (("run_script", "run script"), ("build_script", "build script")):
        if isinstance(text := record.get(key), str):
            yield (word,), text
    with suppress(KeyError, TypeError, AttributeError):
        place = (published_as, str(record["machine"]))
        # Of another commit, the points with this parameter are meant to have other code.
        code = str(record["parameters"].get("code", "")) if record.get("configuration") else ""
        if sources := (record.get("built") or {}).get("sources"):
            yield (_SOURCES, code), str(sources)
        recipes = record.get("recipes") or ()
        names = [f"{each['dependency']}:{each['recipe']}" for each in recipes]
        # Points that name their recipes may have others than the rest.
        values = set(map(str, record["parameters"].values()))
        own = [name for name in names if _is_of_point(name.partition(":")[2], values)]
        variant = (*place, code, *own)
        if "recipes" in record:
            dependencies = " ".join(str(each["dependency"]) for each in recipes)
            yield ("set of recipes", *variant), dependencies
        for name, each in zip(names, recipes, strict=True):
            yield (f"recipe {name}", *place), str(each["digest"])
            if name not in own:
                dependency, _, recipe = name.partition(":")
                yield (f"recipe of {dependency}", *variant), recipe
        if build := record.get("build"):
            parameters = record["build_parameters"]
            yield ("build", "parameters", *variant), " ".join(parameters)
            seen = (f"{name}={value}" for name, value in parameters.items())
            yield ("build", *map(sys.intern, (*place, code, *seen, *names))), str(build)


def _is_of_point(recipe: str, values: set[str]) -> bool:
    """Whether the name of a recipe was probably made of a point's parameters."""
    return any(value == recipe or (len(value) > 1 and value in recipe) for value in values)


def codes_of(runs: Sequence[RecordedRun]) -> tuple[list[int], list[str]]:
    """Of each run the number of its code, 0 for the present one, which is that of the newest run;
    and in what the others differ from that, in words. The newest run is the last one."""
    codes: list[dict[tuple[str, ...], str]] = []
    numbers = []
    known: dict[frozenset[tuple[tuple[str, ...], str]], int] = {}
    for run in reversed(runs):
        key = frozenset(run.code.items())
        if key not in known:
            same = (n for n, code in enumerate(codes) if not _differences(run.code, code))
            known[key] = next(same, len(codes))
            if known[key] == len(codes):
                codes.append({})
            codes[known[key]] |= run.code
        numbers.append(known[key])
    words = (each for code in codes[1:] for each in _differences(code, codes[0]))
    found = (f"{'other' if each == _SOURCES else 'another'} {each}" for each in words)
    return numbers[::-1], list(dict.fromkeys(found))


def labels_of(runs: Sequence[RecordedRun], numbers: Sequence[int]) -> list[str]:
    """A text for the code of each run: the commit of the newest run with this code, and `+` with
    the id of the code if it had changes that were not committed."""
    newest = dict(zip(numbers, runs, strict=True))  # the last of each, in their order
    labels: dict[int, str] = {}
    for number, run in sorted(newest.items()):
        label = (run["commit"] or "no commit")[:_SHORT]
        label += f"+{str(run['tree'])[:_SHORT]}" if run["dirty"] else ""
        count = sum(each.partition(" (")[0] == label for each in labels.values())
        # Of one commit with several commits of a remote source, for example.
        labels[number] = f"{label} ({count + 1})" if count else label
    return [labels[number] for number in numbers]


def _differences(one: Traits, other: Traits) -> list[str]:
    found = [key[0] for key, value in one.items() if other.get(key, value) != value]
    # The build differs with each of the others.
    return [each for each in found if each != "build"] or found
