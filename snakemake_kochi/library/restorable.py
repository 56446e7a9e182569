"""Which records of an artifact branch are those of the present code, so that they count as done.

A record counts for a point if what determines its run, its build and its installations is what
determines them here. All of these are computed anew: of a record that somebody else wrote, nothing
is believed but the commit of a remote source, and that the files are those of the run.

An installation or a build of another computer is not here. As after KOCHI_ROOT was emptied, a file
says which one it is, and the phase that needs it makes it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.files import is_there
from snakemake_kochi.library.batch import BatchRules, recorded_preparation
from snakemake_kochi.library.outputs import Digests, Made, Outputs
from snakemake_kochi.library.variants import Variant
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.build import describe_build, describe_preparation
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.install import as_recorded
from snakemake_kochi.phases.products import (
    Build,
    Install,
    digest_of,
    merge,
    write_build,
    write_manifest,
)
from snakemake_kochi.project.grid import Point
from snakemake_kochi.project.recipes import Recipe

# Older than any result: Snakemake takes a younger input for a change.
_OLD = (1, 1)
_KEYS = (
    *("identity", "experiment", "batch", "parameters", "duplicate", "build_parameters", "ended"),
    *("run_parameters", "build_script", "run_script", "snapshot", "recipes", "build", "run"),
    *("artifacts", "node", "preparation"),
)


def summary_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a record that matter here: a record may have a long difference."""
    kept = {key: record.get(key) for key in _KEYS}
    if isinstance(snapshot := kept["snapshot"], dict):
        kept["snapshot"] = {key: snapshot.get(key) for key in ("tree", "base", "dirty")}
    return kept


@dataclass(frozen=True)
class Place:
    """A point of a batch, and where its files are: `files` by destination."""

    batch: BatchRules
    point: Point
    files: Mapping[str, Path]
    record: Path

    @property
    def variant(self) -> Variant:
        return self.batch.variants.at(self.point)

    @property
    def build_file(self) -> str:
        return self.batch.build_file(self.point)

    @property
    def identity(self) -> str:
        """What determines the run."""
        return self.batch.identity(self.point)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells the point from others, whatever its code."""
        return _key(self.batch.grid.batch, self.point.parameters, self.point.duplicate)


def places(batch: BatchRules) -> Iterator[Place]:
    """The points of a batch."""
    for group in batch.files.groups:
        for values, point in group.points.items():
            wildcards = dict(zip(group.keys, values, strict=True))
            files = [Path(pattern.format(**wildcards)) for pattern in group.artifacts]
            names = (artifact.dest for artifact in point.artifacts)
            record = Path(group.record.format(**wildcards))
            yield Place(batch, point, dict(zip(names, files, strict=True)), record)


def _key(batch: str, parameters: Mapping[str, str], duplicate: int) -> tuple[str, ...]:
    return (batch, str(duplicate), *(f"{name}={parameters[name]}" for name in sorted(parameters)))


@dataclass
class Restorable:
    """The records that count for the points of some batches.

    `found`: by the place's record, the place and the record that counts for it. `reasons`: why the
    newest record of the same point does not count. `newest`: that record.
    """

    found: dict[Path, tuple[Place, Mapping[str, Any]]] = field(default_factory=dict)
    reasons: dict[Path, str] = field(default_factory=dict)
    newest: dict[Path, Mapping[str, Any]] = field(default_factory=dict)


class Restoration:
    """Compares records with the code of one freeze, and remembers what they were made with."""

    def __init__(self, freeze: Freeze) -> None:
        self._freeze = freeze
        self._outputs = Outputs(freeze)
        self._made = Made()
        self._described: dict[tuple[str, ...], str] = {}
        # The installations and builds that chosen records used, by the files that stand for them.
        self._chosen: dict[str, Digests] = {}
        self._installs: dict[str, tuple[Install, ...]] = {}
        self._builds: dict[str, Build] = {}

    def choose(self, batch: BatchRules, records: Iterable[Mapping[str, Any]]) -> Restorable:
        """The newest record that counts for each point of a batch."""
        by_run: dict[str, list[Mapping[str, Any]]] = {}
        by_point: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for record in sorted(records, key=lambda each: str(each["ended"]), reverse=True):
            with suppress(KeyError, TypeError, AttributeError):  # edited by hand
                key = _key(record["batch"], record["parameters"], int(record["duplicate"]))
                by_point.setdefault(key, []).append(record)
                by_run.setdefault(str(record["run"]), []).append(record)
        chosen = Restorable()
        for place in places(batch):
            same = by_point.get(place.key, [])
            if same:
                chosen.newest[place.record] = same[0]
                chosen.reasons[place.record] = self._difference(place, same[0])
            candidates = by_run.get(place.identity, [])
            if not place.files:
                # Nothing but the parameters says which of the points such a record is of.
                candidates = [each for each in candidates if each in same]
            for record in sorted(candidates, key=lambda each: each not in same):
                reason = self._why_not(place, record)
                if not reason:
                    chosen.found[place.record] = (place, record)
                    chosen.reasons.pop(place.record, None)
                    break
                chosen.newest.setdefault(place.record, record)
                chosen.reasons[place.record] = reason
        return chosen

    def remember(self) -> None:
        """Write which installations and builds the chosen records used, where this is not known
        yet. Their names say what determined them."""
        for file, installs in self._installs.items():
            for each in (WorkingPaths.remembered(Path(file)), Path(file)):
                if not is_there(each):
                    write_manifest(each, self._freeze.machine_name, installs)
                    os.utime(each, _OLD)
        for file, build in self._builds.items():
            if not is_there(file):
                write_build(Path(file), build)

    def _why_not(self, place: Place, record: Mapping[str, Any]) -> str:
        """Why a record with the run of a place does not count; "" if it does."""
        try:
            own = {(a["type"], a["dest"], a["src"]): a for a in record["artifacts"]}
            for artifact in place.point.artifacts:
                found = own[artifact.type, artifact.dest, artifact.src]
                if artifact.type != "stats" and not found.get("sha256"):
                    return f"by an earlier release, without the digest of {artifact.dest}"
            sets = self._sets(place, {each["dependency"]: each for each in record["recipes"]})
            recorded = recorded_preparation(record)
        except (KeyError, TypeError, AttributeError):
            return "by hand: its record was edited"
        installs = merge(sets.values()) if sets is not None else ()
        digest = self._build_digest(place, installs) if sets is not None else ""
        if sets is None or record["build"] != digest:
            return "with other recipes, or from another build"
        paths, machine = self._freeze.paths, self._freeze.machine_name
        builds = {place.build_file: Build(digest, paths.build(machine, digest).tree)}
        if (file := place.batch.prepared_for(place.point)) is not None:
            digest = self._prepared_digest(place, installs)
            if recorded != digest:
                return "with something else prepared"
            builds[file] = Build(digest, paths.prepared(machine, digest).tree)
        products = [(file, {i.dependency: i.digest for i in s}) for file, s in sets.items()]
        products += [(file, {"": build.digest}) for file, build in builds.items()]
        for file, digests in products:
            known = self._chosen.get(file) or self._made.digests(file, ())
            if known is not None and known != digests:
                return "with another installation or build than the one that is in use here"
            self._chosen[file] = digests
        self._installs |= sets
        self._builds |= builds
        return ""

    def _sets(
        self, place: Place, recorded: Mapping[str, Any]
    ) -> dict[str, tuple[Install, ...]] | None:
        """The installations that a run used, by the files that stand for them; None if they were
        made by other recipes."""
        sets = {}
        for recipe in place.variant.recipes:
            if (made := self._set_of(recipe, recorded)) is None:
                return None
            sets[self._outputs.manifest(recipe)] = made
        return sets

    def _set_of(self, recipe: Recipe, recorded: Mapping[str, Any]) -> tuple[Install, ...] | None:
        needed = []
        for each in self._outputs.depends(recipe):
            if (made := self._set_of(each, recorded)) is None:
                return None
            needed.append(made)
        if recipe.dependency not in recorded:
            return None
        return as_recorded(self._freeze, recipe, merge(needed), recorded[recipe.dependency])

    def _build_digest(self, place: Place, installs: Sequence[Install]) -> str:
        batch = place.batch
        # All that determines a build of this library, but for the digests of its installations.
        key = (place.build_file, *(each.digest for each in installs))
        if key not in self._described:
            phase = batch.grid.build
            variables = place.point.environment(phase)
            self._described[key] = digest_of(
                describe_build(place.variant.freeze, batch.experiment, phase, variables, installs)
            )
        return self._described[key]

    def _prepared_digest(self, place: Place, installs: Sequence[Install]) -> str:
        batch = place.batch
        step = batch.grid.prepare
        assert step is not None
        seen = step.environment(place.point.parameters)
        return digest_of(describe_preparation(self._freeze, batch.experiment, step, seen, installs))

    def _difference(self, place: Place, record: Mapping[str, Any]) -> str:
        """In which part a record of the same point differs from the code here, for people."""
        grid = place.batch.grid
        made = {(a.get("type"), a.get("dest"), a.get("src")) for a in record["artifacts"] or ()}
        used = {f"{r.get('dependency')}:{r.get('recipe')}" for r in record["recipes"] or ()}
        recipes = place.variant.recipes
        if record["run_script"] != grid.run.script:
            return "by another run script"
        if record["build_script"] != grid.build.script:
            return "by another build script"
        if used != set(map(str, recipes)):
            return "with other recipes"
        if made != {(a.type, a.dest, a.src) for a in place.point.artifacts}:
            return "with other artifacts"
        return "from other source files or recipes"
