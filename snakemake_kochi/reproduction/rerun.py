"""A rerun: where its results go, whether an interrupted one goes on, and what came out.

reruns/<digest>.json   {"version", "below", "started" (ISO 8601)}: a rerun of a group of records
                       that has not ended; the next rerun of the same group goes on with it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from snakemake_kochi.artifacts.record import read_record
from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import make_directory, random_word, read_json, to_json, write_atomically
from snakemake_kochi.library.files import BatchFiles
from snakemake_kochi.location import Location
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.freeze import Freeze
from snakemake_kochi.phases.products import Failure, read_failure
from snakemake_kochi.project.grid import Point
from snakemake_kochi.project.recipes import requirements_at
from snakemake_kochi.reproduction.comparison import (
    ComparedOutput,
    Originals,
    OutputState,
    compare,
)
from snakemake_kochi.reproduction.environment import (
    Difference,
    differences,
    environment_here,
)
from snakemake_kochi.reproduction.restoration import Group, restore
from snakemake_kochi.reproduction.subject import Subject

VERSION = 1
DIRECTORY = "reruns"
PointState = Literal[OutputState, "uncompared", "failed"]
# From the best to the worst: the worst state of its outputs is that of a point.
_ORDER: tuple[OutputState, ...] = ("identical", "metrics", "unknown", "differs", "missing")


@dataclass(frozen=True)
class Reproduced:
    """What came out of one record.

    `state`: "uncompared" if the record has no output to compare. `rerun`: the identity of the new
    record, "" if the run failed, for `reason`. `files`: the new outputs, relative to the project.
    """

    subject: Subject
    state: PointState
    rerun: str
    outputs: tuple[ComparedOutput, ...]
    environment: tuple[Difference, ...]
    files: tuple[str, ...]
    reason: str = ""

    @property
    def is_reproduced(self) -> bool:
        """Whether the outputs are the same, but for values of metrics."""
        return self.state in ("identical", "metrics")


@dataclass(frozen=True)
class Rerun:
    """A rerun of a group of records.

    `goes_on_since`: when an interrupted one began, "" for none.
    """

    group: Group
    freeze: Freeze
    remarks: tuple[str, ...]
    marker: Path
    goes_on_since: str = ""

    @classmethod
    def prepare(cls, location: Location, group: Group) -> Rerun:
        """Restore code, recipes and points; nothing runs yet. Raises as `restore`."""
        paths = location.project_paths
        marker = paths.rerun(f"{location.machine.name}-{group.digest}")
        since, below = "", f"{DIRECTORY}/{datetime.now():%Y%m%dT%H%M%S}-{random_word(2)}"
        with suppress(FileNotFoundError, DamagedFileError, KeyError):
            found = read_json(marker, VERSION)
            since, below = str(found["started"]), str(found["below"])
        restored = restore(location, group, below)
        return cls(group, restored.freeze, restored.remarks, marker, since)

    @property
    def below(self) -> str:
        assert self.freeze.rerun is not None
        return self.freeze.rerun.below

    @property
    def working(self) -> WorkingPaths:
        return WorkingPaths(self.freeze.directory, self.freeze.machine_name)

    @property
    def directory(self) -> str:
        """Where its results are, relative to the project."""
        own = WorkingPaths(Path(), self.freeze.machine_name).results
        return f"{own}/{self.below}"

    def begin(self) -> None:
        make_directory(self.marker.parent)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        content = {"version": VERSION, "below": self.below, "started": self.goes_on_since or now}
        write_atomically(self.marker, to_json(content))

    def end(self) -> None:
        """Call when its Snakemake has ended, whatever came out."""
        self.marker.unlink(missing_ok=True)

    def differences_here(self) -> Iterator[list[Difference]]:
        """How this host differs from the environment of each record, as far as nothing of the
        repository has to be executed to know it."""
        for file in self.freeze.files_to_run:
            experiment = self.freeze.experiment(file)
            for batch in experiment.batches:
                grid = experiment.grid(batch, self.freeze.machine_name)
                facts = BatchFreeze.of(self.freeze, experiment, batch).facts
                here: dict[str, dict[str, Any]] = {}
                for subject in self.group.subjects:
                    if (subject.experiment, subject.batch) == (file, batch):
                        build = str(subject.record.get("build"))
                        required = requirements_at(grid.requirements, subject.parameters)
                        recipes = self.freeze.recipes(required, f"{file}: batch {batch}")
                        if build not in here:
                            here[build] = environment_here(self.freeze, recipes, facts, build)
                        yield differences(subject.record, here[build])

    @cached_property
    def records(self) -> Mapping[str, str]:
        """The files of the new records, relative to the project, by the repeated record."""
        return {
            place.point.rerun_of: str(place.record)
            for batch in self._batches
            for place in batch.places
        }

    @cached_property
    def _points(self) -> Mapping[str, tuple[Point, BatchFiles]]:
        return {
            place.point.rerun_of: (place.point, batch)
            for batch in self._batches
            for place in batch.places
        }

    @cached_property
    def _batches(self) -> tuple[BatchFiles, ...]:
        experiments = [self.freeze.experiment(file) for file in self.freeze.files_to_run]
        machine = self.freeze.machine_name
        return tuple(
            BatchFiles.of(experiment.name, experiment.grid(batch, machine))
            for experiment in experiments
            for batch in experiment.batches
        )

    def outcomes(self) -> Iterator[Reproduced]:
        """What came out, in the order of the records. Call after `end`."""
        originals = Originals(self.freeze.directory)
        for subject in self.group.subjects:
            yield self._outcome(subject, originals)

    def _outcome(self, subject: Subject, originals: Originals) -> Reproduced:
        file = self.records[subject.identity]
        try:
            record = read_record(self.freeze.directory / file)
        except FileNotFoundError:
            failure = read_failure(self.freeze.directory / file)
            if failure is None or failure.stopped:
                failure = Failure("the run was not finished")
            reason = "\n".join([failure.reason, *failure.output[-_MOST_LINES:]])
            return Reproduced(subject, "failed", "", (), (), (), reason)
        point, batch = self._points[subject.identity]
        results = self.working.results
        files = {
            artifact.dest.removeprefix(f"{self.below}/"): results / artifact.dest
            for artifact in point.artifacts
        }
        # Files with measurements are compared as they are.
        metrics = {k: v for k, v in batch.grid.metrics.items() if isinstance(v, str)}
        compared = tuple(compare(originals, subject, record, files, metrics))
        states = [each.state for each in compared]
        return Reproduced(
            subject,
            max(states, key=_ORDER.index) if states else "uncompared",
            record["identity"],
            compared,
            tuple(differences(subject.record, record)),
            tuple(f"{self.directory}/{dest}" for dest in files),
        )


_MOST_LINES = 4
