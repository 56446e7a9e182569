"""The state of each point of a batch, as its files say: done, stale, failed, skipped, or not run.

Nothing is locked, and no Snakemake is started: a record counts as Snakemake's rules would count it
(`BatchRules.agrees`). Jobs that wait or run are known by the queues and not here; see
`cli/show/batch.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from snakemake_kochi.artifacts.record import read_record, why_edited
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.outputs import Made, Outputs
from snakemake_kochi.library.restorable import Place, places
from snakemake_kochi.phases.batch_freeze import shown_variables
from snakemake_kochi.phases.build import sources_of
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import read_failure
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Phase, Point
from snakemake_kochi.project.recipes import Recipe
from snakemake_kochi.snapshot import list_entries

State = Literal["skipped", "waiting", "running", "done", "failed", "stale"]
STATES: tuple[State, ...] = get_args(State)
NOT_RUN = "not run yet"
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class PointState:
    """The state of a point, and why, in a few words.

    `record` is the file of its record relative to the working directory, "" for a skipped point.
    `seconds` and `ended` are those of its result, if there is one. `output`: the last lines that a
    failed run printed. `told`: its failure is one of an earlier run. `job`: its job in a queue.
    `seed`: that of the rounds in which its result was made.
    """

    parameters: Mapping[str, str]
    duplicate: int
    state: State
    why: str = ""
    record: str = ""
    seconds: float | None = None
    started: str = ""
    ended: str = ""
    output: tuple[str, ...] = ()
    told: bool = False
    job: int | None = None
    seed: int | None = None

    @property
    def point(self) -> str:
        """The point as `--again` takes it."""
        values = [f"{name}={value}" for name, value in self.parameters.items()]
        return ",".join([*values, f"duplicate={self.duplicate}"])


@dataclass
class BatchStates:
    """Looks at the points of one batch, again and again; a record is read again if it changed.

    The working directory is that of the batch's files.
    """

    freeze: Freeze
    batch: BatchRules
    _places: list[Place] = field(default_factory=list)
    _known: dict[str, tuple[tuple[int, int, int], PointState]] = field(default_factory=dict)
    _changes: Changes | None = None
    _identities: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, freeze: Freeze, experiment: Experiment, batch: str) -> BatchStates:
        """Raises NameNotFoundError and ConfigError, as a run of the batch would."""
        return cls(freeze, BatchRules.of(Outputs(freeze), experiment, batch))

    @property
    def places(self) -> Sequence[Place]:
        """The points that are not skipped, in the order of the grid."""
        if not self._places:
            order = {id(point): index for index, point in enumerate(self.batch.grid.points)}
            self._places = sorted(places(self.batch), key=lambda place: order[id(place.point)])
        return self._places

    def look(self) -> list[PointState]:
        """The states now."""
        made = Made()
        return [*(self._of(place, made) for place in self.places), *self.skipped]

    @property
    def skipped(self) -> Iterator[PointState]:
        duplicates = self.batch.experiment.batch(self.batch.grid.batch).duplicates
        for each in self.batch.grid.skipped:
            for duplicate in range(duplicates):
                yield PointState(each.parameters, duplicate, "skipped", each.reason)

    def _of(self, place: Place, made: Made) -> PointState:
        file = str(place.record)
        base = PointState(place.point.parameters, place.point.duplicate, "waiting", NOT_RUN, file)
        try:
            found = os.stat(file)
        except OSError:
            self._known.pop(file, None)
            if (failure := read_failure(place.record)) is None:
                return base
            if failure.stopped:
                return replace(base, why=INTERRUPTED)
            return replace(
                base,
                state="failed",
                why=failure.reason,
                output=failure.output,
                told=failure.told,
                job=failure.job,
            )
        sign = (found.st_mtime_ns, found.st_size, found.st_ino)
        known = self._known.get(file)
        if known is None or known[0] != sign:
            self._known[file] = known = (sign, self._of_record(place, base, made))
        state = known[1]
        if state.state == "done" and (gone := _first_missing(place)):
            return replace(state, state="stale", why=f"{gone} is gone")
        if state.state == "done":
            with suppress(OSError, DamagedFileError, KeyError, TypeError):
                if why := why_edited(place.record, place.files):
                    return replace(state, state="stale", why=why)
        return state

    def _of_record(self, place: Place, base: PointState, made: Made) -> PointState:
        try:
            record = read_record(place.record)
        except (OSError, DamagedFileError) as error:
            return replace(base, state="stale", why=f"its record cannot be read: {error}")
        state = replace(
            base,
            state="done",
            why="",
            seconds=_number(record.get("seconds")),
            started=str(record.get("started", "")),
            ended=str(record.get("ended", "")),
            seed=record.get("seed"),
        )
        if why := self._why_stale(place, record, made):
            return replace(state, state="stale", why="; ".join(why))
        return state

    def _why_stale(self, place: Place, record: Mapping[str, Any], made: Made) -> list[str]:
        if self._changes is None:
            self._changes = Changes(self.freeze, self.batch)
        if record.get("run") != self._identity(place):
            return self._changes.since(record, place.point)
        if self.batch.agrees(record, made, place.point):
            return []
        now = made.digests(place.build_file, place.variant.installs)
        other = list(self._changes.installed(record, now)) or ["its build or preparation changed"]
        return self._changes.since(record, place.point, other)

    def _identity(self, place: Place) -> str:
        file = str(place.record)
        if file not in self._identities:
            self._identities[file] = place.identity
        return self._identities[file]


def _first_missing(place: Place) -> str:
    return next((str(file) for file in place.files.values() if not is_there(file)), "")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


_MOST_FILES = 3
_SHORT = 12  # digits of an id
_OTHER_CODE = "source files or recipes changed (the code of that run is not here)"
_OBJECT = re.compile(r"[0-9a-f]{40,64}")
_UNNAMED = (
    "load_env_script, strict, the text of a launcher or the details of isolation changed, or "
    "something else that records do not have"
)

_Sources = dict[str, tuple[str, str]]  # path -> object, mode


class Changes:
    """Compares records of a batch with what would run now."""

    def __init__(self, freeze: Freeze, batch: BatchRules) -> None:
        self._freeze = freeze
        self._batch = batch
        self._sources: dict[str, _Sources | None] = {}

    def since(
        self, record: Mapping[str, Any], point: Point, otherwise: Sequence[str] = (_UNNAMED,)
    ) -> list[str]:
        """What differs, the most telling first, or `otherwise`; never empty.

        The record may be of anybody: keys that it should have may be missing.
        """
        try:
            found = list(self._since(record, point))
            if not found and self._sources_in(str(record["snapshot"]["tree"])) is None:
                found = [_OTHER_CODE]
            return found or list(otherwise)
        except (KeyError, TypeError, AttributeError):
            return ["its record was edited"]

    def _since(self, record: Mapping[str, Any], point: Point) -> Iterator[str]:
        grid = self._batch.grid
        if record["run_script"] != grid.run.script:
            yield "run script changed"
        if record["build_script"] != grid.build.script:
            yield "build script changed"
        variant = self._batch.variants.at(point)
        yield from self._of_sources(record, variant.freeze)
        seen = (("run_parameters", grid.run), ("build_parameters", grid.build))
        told = (each for key, phase in seen for each in _of_parameters(record[key], phase, point))
        yield from dict.fromkeys(told)
        yield from self._of_recipes(record["recipes"], variant.recipes)
        made = {(a.get("type"), a.get("dest"), a.get("src")) for a in record["artifacts"]}
        if made != {(each.type, each.dest, each.src) for each in point.artifacts}:
            yield "artifacts changed"
        yield from self._around(record, point)

    def _around(self, record: Mapping[str, Any], point: Point) -> Iterator[str]:
        """What differs around the run script."""
        grid = self._batch.grid
        if (record.get("isolation") is None) != (grid.run.isolation is None):
            yield "isolation of the run changed"
        placement = self._batch.placement(point)
        if (record.get("launcher") or {}).get("name", "") != placement.launcher.name:
            yield "launcher changed"
        step = grid.prepare
        made = (record.get("preparation") or {}).get("prepare") or {}
        if made.get("script") != (step.script if step else None):
            yield "prepare script changed"

    # ---- the code

    def _of_sources(self, record: Mapping[str, Any], freeze: Freeze) -> Iterator[str]:
        now, tree = freeze.snapshot.tree, str(record["snapshot"]["tree"])
        if tree == now:
            return
        present, before = self._sources_in(now), self._sources_in(tree)
        if before is None or present is None:
            return
        paths = [
            path for path in sorted({*before, *present}) if before.get(path) != present.get(path)
        ]
        for path in paths[:_MOST_FILES]:
            if path not in before:
                yield f"{path} is new"
            else:
                yield f"{path} changed" if path in present else f"{path} is gone"
        if (more := len(paths) - _MOST_FILES) > 0:
            yield f"{more} more source file{'s' if more > 1 else ''} changed"

    def _sources_in(self, tree: str) -> _Sources | None:
        """The source files of the experiment in a snapshot; None if it is not there any more."""
        if tree not in self._sources:
            self._sources[tree] = None
            if not _OBJECT.fullmatch(tree):  # a record of somebody else: it is no option of git
                return None
            with suppress(KochiError):
                entries = list_entries(self._freeze.paths.store, tree)
                found = sources_of(entries, self._freeze, self._batch.experiment)
                self._sources[tree] = {each.path: (each.object, each.mode) for each in found}
        return self._sources[tree]

    # ---- recipes

    def _of_recipes(
        self, recorded: Sequence[Mapping[str, Any]], recipes: Sequence[Recipe]
    ) -> Iterator[str]:
        used = {str(each["dependency"]): each for each in recorded}
        needed = {each.dependency: each for each in recipes}
        for dependency in needed.keys() | used.keys():
            if dependency not in needed:
                yield f"recipe {dependency}:{used[dependency]['recipe']} is not used any more"
                continue
            recipe = needed[dependency]
            if dependency not in used:
                yield f"recipe {recipe} is used now"
            elif used[dependency]["recipe"] != recipe.name:
                yield f"recipe {recipe} instead of {dependency}:{used[dependency]['recipe']}"
            else:
                yield from (
                    f"recipe {recipe}: {what}" for what in self._in_recipe(recipe, used[dependency])
                )

    def _in_recipe(self, recipe: Recipe, recorded: Mapping[str, Any]) -> Iterator[str]:
        if recorded.get("script") not in (None, recipe.install_script):
            yield "its script changed"
        if recorded.get("envs") not in (None, shown_variables(recipe.envs)):
            yield "its envs changed"
        if recorded.get("activate_script") not in (None, recipe.activate_script):
            yield "its activate_script changed"
        now = self._freeze.sources.get(str(recipe), {})
        before = recorded.get("source") or {}
        if "commit" in now and now["commit"] != before.get("commit"):
            yield f"new commit {now['commit'][:_SHORT]}"
        elif "tree" in now and now["tree"] != before.get("tree"):
            yield f"directory {recipe.mirror_dir} changed"

    def installed(
        self, record: Mapping[str, Any], digests: Mapping[str, str] | None
    ) -> Iterator[str]:
        """What differs if a run has the identity that it would have now. `digests`: those of the
        present build ("") and installations; None if they are not known."""
        if digests is None:
            yield "its build or an installation is not known any more"
            return
        for each in record["recipes"]:
            if digests.get(each["dependency"]) != each["digest"]:
                yield f"recipe {each['dependency']}:{each['recipe']} was installed anew"


def _of_parameters(seen: Mapping[str, str], phase: Phase, point: Point) -> Iterator[str]:
    now = {n: point.parameters[n] for n in phase.depend_params if n in point.parameters}
    for name in dict.fromkeys((*seen, *now)):
        if name not in now:
            yield f"parameter {name} is not seen any more"
        elif name not in seen:
            yield f"parameter {name} is seen now"
        elif seen[name] != now[name]:
            yield f"parameter {name} is {now[name]}, was {seen[name]}"
