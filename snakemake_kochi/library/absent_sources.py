"""Which code stands for the source of a recipe that is a directory of another computer.

Recorded results say which code they used, and the project's repository has it. Results of other
versions of the project may have used other code, so each candidate is compared with the project.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from snakemake_kochi.library.library import Library
from snakemake_kochi.library.restorable import Restoration
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.sources import Sources, determining, is_missing, is_source_of
from snakemake_kochi.project.recipes import Recipe

# By experiment's file and batch.
_Records = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]


def absent_sources(freeze: Freeze, records: _Records, preferred: Sources) -> Sources:
    """A source for each recipe whose directory is missing, by `dependency:recipe`.

    It is the one of the newest result that counts in this freeze if its sources are used; if there
    is none, `preferred`, else that of the newest result. If results count with a `preferred`
    source, it is used. A recipe that no result used is left out.
    """
    absent = {str(each): each for each in freeze.all_recipes if is_missing(each, freeze.project)}
    chosen: dict[str, Mapping[str, str]] = {}
    candidates = _candidates(absent, records) if absent else []

    def number_of_preferred(candidate: tuple[Sources, Any]) -> int:
        return sum(
            _is_same(source, preferred.get(name, {})) for name, source in candidate[0].items()
        )

    for sources, used in sorted(candidates, key=number_of_preferred, reverse=True):
        fits = all(_is_same(chosen.get(name, source), source) for name, source in sources.items())
        if fits and sources.keys() - chosen.keys() and _counts(freeze, {**chosen, **sources}, used):
            chosen |= sources
    chosen = {**{n: s for n, s in preferred.items() if n in absent}, **chosen}
    for sources, _ in candidates:
        chosen = {**sources, **chosen}
    return {
        name: preferred[name] if _is_same(source, preferred.get(name, {})) else source
        for name, source in chosen.items()
    }


def _candidates(
    absent: Mapping[str, Recipe], records: _Records
) -> list[tuple[Sources, dict[tuple[str, str], Any]]]:
    """The sources that results used together, those of the newest result first, with the records
    of these results."""
    found: dict[str, tuple[Sources, dict[tuple[str, str], Any]]] = {}
    newest = sorted(
        ((str(record["ended"]), key, record) for key, some in records.items() for record in some),
        key=lambda each: each[0],
        reverse=True,
    )
    for _, key, record in newest:
        sources = {}
        for each in record["recipes"] or ():
            name, source = f"{each.get('dependency')}:{each.get('recipe')}", each.get("source")
            if name in absent and is_source_of(absent[name], source or {}):
                sources[name] = dict(source)
        if sources:
            what = json.dumps({name: determining(source) for name, source in sources.items()})
            _, used = found.setdefault(what, (sources, {}))
            used.setdefault(key, []).append(record)
    return list(found.values())


def _is_same(source: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return determining(source) == determining(other)


def _counts(freeze: Freeze, sources: Sources, records: _Records) -> bool:
    """Whether one of these results counts if the sources are used."""
    without = {name: why for name, why in freeze.without_source.items() if name not in sources}
    trial = replace(freeze, sources={**freeze.sources, **sources}, without_source=without)
    restoration = Restoration(trial)
    return any(
        restoration.choose(batch, records[key]).found
        for batch in Library(trial).batches
        if (key := (batch.experiment.file, batch.grid.batch)) in records
    )
