"""Which results are of the same code: one table must not put old and new code into one point.

The present code is that of the newest run. A result is of it if nothing that determines results
differs: the scripts, the source files, the recipes and the builds, each compared with that of the
same thing. So results from before a change of the documentation, and the variants of one batch,
are of one code. The records alone say this, also in a clone without the code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_SHORT = 12  # digits of a commit
_SOURCES = "source files"

# What determines a result: of what it is (a word for people, then what tells it from others of the
# kind) -> its text or digest.
Traits = Mapping[tuple[str, ...], str]


def traits_of(record: Mapping[str, Any], published_as: str) -> Traits:
    """The traits of the code of a record, which anyone may have written."""
    return dict(_traits(record, published_as))


def _traits(record: Mapping[str, Any], published_as: str) -> Iterator[tuple[tuple[str, ...], str]]:
    for key, word in (("run_script", "run script"), ("build_script", "build script")):
        if isinstance(text := record.get(key), str):
            yield (word,), sys.intern(text)
    with suppress(KeyError, TypeError, AttributeError):
        place = (published_as, str(record["machine"]))
        # Of another commit, the points with this parameter are meant to have other code.
        code = str(record["parameters"].get("code", "")) if record.get("configuration") else ""
        if sources := (record.get("built") or {}).get("sources"):
            yield (_SOURCES, code), sys.intern(str(sources))
        recipes = record.get("recipes") or ()
        names = [f"{each['dependency']}:{each['recipe']}" for each in recipes]
        # Points that name their recipes may have others than the rest.
        values = set(map(str, record["parameters"].values()))
        own = [name for name in names if _is_of_point(name.partition(":")[2], values)]
        variant = (*place, code, *own)
        if "recipes" in record:
            dependencies = " ".join(str(each["dependency"]) for each in recipes)
            yield ("set of recipes", *variant), sys.intern(dependencies)
        for name, each in zip(names, recipes, strict=True):
            yield (f"recipe {name}", *place), sys.intern(str(each["digest"]))
            if name not in own:
                dependency, _, recipe = name.partition(":")
                yield (f"recipe of {dependency}", *variant), sys.intern(recipe)
        if build := record.get("build"):
            parameters = record["build_parameters"]
            yield ("build", "parameters", *variant), sys.intern(" ".join(parameters))
            seen = (f"{name}={value}" for name, value in parameters.items())
            named = (*place, code, *seen, *names)
            yield ("build", *map(sys.intern, named)), sys.intern(str(build))


def _is_of_point(recipe: str, values: set[str]) -> bool:
    """Whether the name of a recipe was probably made of a point's parameters."""
    return any(value == recipe or (len(value) > 1 and value in recipe) for value in values)


@dataclass(frozen=True)
class Codes:
    """The codes of some runs: of each run the number of its code, 0 for the present one.

    `differences`: in what the others differ from the present one, in words.
    """

    of_runs: Sequence[int]
    differences: Sequence[str]

    @classmethod
    def of(cls, runs: Sequence[tuple[str, Traits]]) -> Codes:
        """`runs`: when each began (ISO 8601, UTC), and the traits of its code."""
        codes: list[dict[tuple[str, ...], str]] = []
        numbers = [0] * len(runs)
        known: dict[frozenset[tuple[tuple[str, ...], str]], int] = {}
        for index in sorted(range(len(runs)), key=lambda each: runs[each][0], reverse=True):
            traits = runs[index][1]
            key = frozenset(traits.items())
            if key not in known:
                same = (n for n, code in enumerate(codes) if not _differences(traits, code))
                known[key] = next(same, len(codes))
                if known[key] == len(codes):
                    codes.append({})
                codes[known[key]] |= traits
            numbers[index] = known[key]
        words = (each for code in codes[1:] for each in _differences(code, codes[0]))
        found = (f"{'other' if each == _SOURCES else 'another'} {each}" for each in words)
        return cls(numbers, list(dict.fromkeys(found)))

    def labels(self, runs: Sequence[tuple[str, str, bool, str]]) -> list[str]:
        """A text for the code of each run: the commit of the newest run with this code.

        `runs`: when each began, its commit, whether it had changes, and the id of its tree.
        """
        newest: dict[int, tuple[str, str, bool, str]] = {}
        for number, run in zip(self.of_runs, runs, strict=True):
            newest[number] = max(newest.get(number, run), run)
        labels: dict[int, str] = {}
        for number, (_, commit, dirty, tree) in sorted(newest.items()):
            label = (commit or "no commit")[:_SHORT] + (f"+{tree[:_SHORT]}" if dirty else "")
            count = sum(each.partition(" (")[0] == label for each in labels.values())
            # Of one commit with several commits of a remote source, for example.
            labels[number] = f"{label} ({count + 1})" if count else label
        return [labels[number] for number in self.of_runs]


def _differences(one: Traits, other: Traits) -> list[str]:
    found = [key[0] for key, value in one.items() if other.get(key, value) != value]
    # The build differs with each of the others.
    return [each for each in found if each != "build"] or found
