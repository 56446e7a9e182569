"""The state of each point of a batch, as its files say: done, stale, failed, skipped, or not run.

Nothing is locked, and no Snakemake is started: a record counts as Snakemake's rules would count it
(`changes.py`). Jobs that wait or run are known by the queues and not here; see `cli/show/batch.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

from snakemake_kochi.artifacts.record import read_record, why_edited
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.changes import Changes
from snakemake_kochi.library.files import Place
from snakemake_kochi.library.products import Products
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import read_failure

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


class BatchStates:
    """Looks at the points of one batch, again and again; a record is read again if it changed.

    `files`: those at the last look. The working directory is that of the batch's files.
    """

    def __init__(self, batch: BatchRules) -> None:
        self.batch = batch
        self.files = batch.files
        self._changes = Changes(batch)
        self._known: dict[str, tuple[tuple[int, int, int], PointState]] = {}

    @classmethod
    def of(cls, freeze: Freeze, file: str, batch: str) -> BatchStates:
        """Raises NameNotFoundError and ConfigError, as a run of the batch would."""
        return cls(BatchRules.of(Products(freeze), freeze.experiment(file), batch))

    @cached_property
    def _order(self) -> dict[int, int]:
        return {id(point): index for index, point in enumerate(self.batch.grid.points)}

    def look(self) -> list[PointState]:
        """The states now, in the order of the grid."""
        files = self.batch.files_now()
        if files.looks != self.files.looks:  # else it knows its places already
            self.files = files
        ordered = sorted(self.files.places, key=lambda place: self._order[id(place.point)])
        return [*map(self._of, ordered), *self.skipped]

    @property
    def skipped(self) -> Iterator[PointState]:
        for each in self.batch.grid.skipped:
            for duplicate in range(self.batch.grid.least):
                yield PointState(each.parameters, duplicate, "skipped", each.reason)

    def _of(self, place: Place) -> PointState:
        file, point = str(place.record), place.point
        base = PointState(point.parameters, point.duplicate, "waiting", NOT_RUN, file)
        try:
            status = os.stat(file)
        except OSError:
            self._known.pop(file, None)
            return _without_result(place, base)
        sign = (status.st_mtime_ns, status.st_size, status.st_ino)
        known = self._known.get(file)
        if known is None or known[0] != sign:
            self._known[file] = known = (sign, self._of_record(place, base))
        state = known[1]
        if state.state != "done":
            return state
        why = next((f"{each} is gone" for each in place.files if not is_there(each)), None)
        with suppress(OSError, DamagedFileError, KeyError, TypeError):
            why = why or why_edited(place.record, place.by_destination)
        return replace(state, state="stale", why=why) if why else state

    def _of_record(self, place: Place, base: PointState) -> PointState:
        try:
            record = read_record(place.record)
        except (OSError, DamagedFileError) as error:
            return replace(base, state="stale", why=f"its record cannot be read: {error}")
        seconds = record.get("seconds")
        is_same = record.get("run") == self.batch.identity(place.point)
        why = "" if is_same else self._changes.since(record, place.point)
        return replace(
            base,
            state="stale" if why else "done",
            why=why,
            seconds=float(seconds) if isinstance(seconds, int | float) else None,
            started=str(record.get("started", "")),
            ended=str(record.get("ended", "")),
            seed=record.get("seed"),
        )


def _without_result(place: Place, base: PointState) -> PointState:
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
