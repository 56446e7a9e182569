"""The points of a batch with their states, from its files, its jobs in queues, and its runs."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.begun import Begun
from snakemake_kochi.enqueue.experiment_files import globs_with
from snakemake_kochi.library.library import name_of
from snakemake_kochi.library.looks import Look
from snakemake_kochi.library.states import STATES, BatchStates, PointState
from snakemake_kochi.location import Location
from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, have_read, take_freeze
from snakemake_kochi.project.conditions import Where
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.queue.paused import PausedBatch, list_paused
from snakemake_kochi.queue.runs import LiveJob, MakingWatch, RunView

_NOT_SUBMITTED = "its run has not submitted it yet"


@dataclass(frozen=True)
class Seen:
    """A batch at one moment. `states`: of the selected points.

    `runs` are those that make files of the batch; `since` is when the first of them began, in
    seconds since the epoch, also for a run of another executor, of which only the lock of Snakemake
    is known (`is_locked`). `looked`: the last look of a batch with `repeat`.
    """

    states: Sequence[PointState]
    runs: Sequence[RunView]
    paused: PausedBatch | None
    is_locked: bool
    since: float | None
    moment: float
    looked: Look | None = None

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(state.state for state in self.states)
        return {state: found[state] for state in STATES}

    @property
    def is_going_on(self) -> bool:
        return bool(self.runs) or self.is_locked

    @property
    def is_complete(self) -> bool:
        return all(each.state in ("done", "skipped") for each in self.states)


class Points:
    """Looks at the points of one batch. The working directory is the project's."""

    def __init__(
        self, location: Location, file: str, batch: str, conditions: Sequence[str]
    ) -> None:
        """`file` is the path of the experiment in the project. Raises KochiError, for conditions
        that select no point, too."""
        project, machine = location.require_project(), location.machine.name
        os.chdir(project.directory)
        globs = globs_with(project, file) or EXPERIMENT_GLOBS
        freeze = take_freeze(Path.cwd(), machine, globs, named=file)
        have_read()
        self._states = BatchStates.of(freeze, file, batch)
        self._where = Where.parse(conditions) if conditions else None
        self._begun = Begun(location.project_paths, machine)
        self._making = MakingWatch(location.machine_paths, os.path.realpath(project.directory))
        self._paused = PausedBatch(os.getcwd(), file, batch, "", "").digest
        self._machine = location.machine_paths
        self._file = file
        if self._where is not None:
            skipped = ((each.parameters, each.duplicate) for each in self._states.skipped)
            points = ((each.parameters, each.duplicate) for each in self.grid.points)
            self._where.check([*points, *skipped], name_of(self.grid))

    @property
    def grid(self) -> Grid:
        return self._states.batch.grid

    @property
    def order(self) -> str:
        """The order in which runs start, see `Batch`."""
        return self._states.batch.experiment.batch(self.grid.batch).order

    def look(self) -> Seen:
        # The queues first: a job that ends meanwhile is found by its record.
        living, jobs = self._making.look()
        begun = {_key(record) for record in self._begun.look() if self._is_own(record)}
        locks = list(Path(".snakemake", "locks").glob("*.lock"))
        paused = next((p for p in list_paused(self._machine) if p.digest == self._paused), None)
        states = [
            self._with_job(state, living, jobs.get(state.record), begun, paused is not None)
            for state in self._states.look()
            if self._where is None or self._where.has(state.parameters, state.duplicate)
        ]
        records = {state.record for state in states}
        runs = [r for r in living if r.outputs is None or not records.isdisjoint(r.outputs)]
        is_locked = bool(locks) and not living
        looks = self._states.files.looks or (None,)
        since = _since(runs, locks)
        return Seen(states, runs, paused, is_locked, since, time.time(), looks[-1])

    def _is_own(self, record: Mapping[str, Any]) -> bool:
        return record.get("experiment") == self._file and record.get("batch") == self.grid.batch

    def _with_job(
        self,
        state: PointState,
        runs: Sequence[RunView],
        job: LiveJob | None,
        begun: set[object],
        is_paused: bool,
    ) -> PointState:
        if state.state == "skipped":
            return state
        if job is not None:
            return _of_job(state, job, is_paused)
        if begun and (state.duplicate, *sorted(state.parameters.items())) in begun:
            return replace(state, state="running", why="")
        is_to_run = any(
            run.makes(state.record) and not _ended_in(state, seconds_of(run.started))
            for run in runs
        )
        if state.state == "done" or (state.state == "failed" and not state.told) or not is_to_run:
            return state
        before = f" ({state.state}: {state.why})" if state.state != "waiting" else ""
        return replace(state, state="waiting", why=f"{_NOT_SUBMITTED}{before}")


def _key(record: Mapping[str, Any]) -> object:
    with suppress(KeyError, TypeError, AttributeError):
        return (record["duplicate"], *sorted(record["parameters"].items()))
    return None


def _of_job(state: PointState, job: LiveJob, is_paused: bool) -> PointState:
    if job.worker is None:
        why = "paused" if is_paused else f"in queue {job.queue}"
        return replace(state, state="waiting", why=why, job=job.job, seconds=None)
    started = job.started or ""
    why = f"worker {job.worker}"
    return replace(state, state="running", why=why, job=job.job, started=started, seconds=None)


def _since(runs: Iterable[RunView], locks: Iterable[Path]) -> float | None:
    times = [time for run in runs if (time := seconds_of(run.started)) is not None]
    if not times:
        with suppress(OSError):
            times = [lock.stat().st_mtime for lock in locks]
    return min(times, default=None)


def seconds_of(moment: str) -> float | None:
    """An ISO 8601 time in seconds since the epoch."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None


def seconds_left(seen: Seen) -> float | None:
    """The expected time until the points that wait or run have ended; None if it is not known, or
    if nobody makes them: the lock alone may be that of a killed run.

    A point is expected to take as long as its other duplicates, or as the mean of all results; as
    many of them at a time as since the run began.
    """
    if seen.since is None or seen.paused is not None:
        return None
    if not seen.runs and all(each.state != "running" for each in seen.states):
        return None
    known: dict[object, list[float]] = defaultdict(list)
    for each in seen.states:
        if each.seconds is not None:
            known[_parameters(each)].append(each.seconds)
    if not known:
        return None
    every = [seconds for some in known.values() for seconds in some]
    mean = sum(every) / len(every)
    done = [each for each in seen.states if each.state == "done" and _ended_in(each, seen.since)]
    begins = [start for each in done if (start := seconds_of(each.started)) is not None]
    work = sum(each.seconds or 0.0 for each in done)
    left = 0.0
    for each in seen.states:
        own = known.get(_parameters(each))
        expected = sum(own) / len(own) if own else mean
        if each.state == "waiting":
            left += expected
        elif each.state == "running":
            start = seconds_of(each.started)
            lasted = max(0.0, seen.moment - start) if start is not None else 0.0
            begins += [start] if start is not None else []
            work += lasted
            left += max(0.0, expected - lasted)
    if not done or not begins or work <= 0:
        return None
    at_a_time = work / max(seen.moment - min(begins), 0.001)
    return left / at_a_time


def _parameters(state: PointState) -> object:
    return tuple(state.parameters.items())


def _ended_in(state: PointState, since: float | None) -> bool:
    """Whether its result was made since then."""
    ended = seconds_of(state.ended)
    return ended is not None and since is not None and ended >= since
