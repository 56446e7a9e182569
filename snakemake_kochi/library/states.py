"""The state of each point of a batch, as its files say: done, stale, failed, skipped, or not run.

Nothing is locked, and no Snakemake is started: a record counts as Snakemake's rules would count it
(`BatchRules.agrees`). Jobs that wait or run are known by the queues and not here; see
`cli/show/batch.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from snakemake_kochi.artifacts.record import read_record, why_edited
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.changes import Changes
from snakemake_kochi.library.outputs import Kept, Outputs
from snakemake_kochi.library.restorable import Place, places
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import read_failure
from snakemake_kochi.project.experiment import Experiment

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
        kept = Kept()
        return [*(self._of(place, kept) for place in self.places), *self.skipped]

    @property
    def skipped(self) -> Iterator[PointState]:
        duplicates = self.batch.experiment.batch(self.batch.grid.batch).duplicates
        for each in self.batch.grid.skipped:
            for duplicate in range(duplicates):
                yield PointState(each.parameters, duplicate, "skipped", each.reason)

    def _of(self, place: Place, kept: Kept) -> PointState:
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
            self._known[file] = known = (sign, self._of_record(place, base, kept))
        state = known[1]
        if state.state == "done" and (gone := _first_missing(place)):
            return replace(state, state="stale", why=f"{gone} is gone")
        if state.state == "done":
            with suppress(OSError, DamagedFileError, KeyError, TypeError):
                if why := why_edited(place.record, place.files):
                    return replace(state, state="stale", why=why)
        return state

    def _of_record(self, place: Place, base: PointState, kept: Kept) -> PointState:
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
        if why := self._why_stale(place, record, kept):
            return replace(state, state="stale", why="; ".join(why))
        return state

    def _why_stale(self, place: Place, record: Mapping[str, Any], kept: Kept) -> list[str]:
        if self._changes is None:
            self._changes = Changes(self.freeze, self.batch)
        if record.get("run") != self._identity(place):
            return self._changes.since(record, place.point)
        if self.batch.agrees(record, kept, place.point):
            return []
        made = kept.made(place.build_file, place.variant.installs)
        other = list(self._changes.installed(record, made)) or ["its build or preparation changed"]
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
