"""An experiment reduced to points that were recorded: what a rerun runs, instead of the grids.

The values in a record are resolved already. So a rerun on another machine has the values of the
machine of the record, and costs as much as its points, however large the grid was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.grid import (
    Artifact,
    Batch,
    Point,
    PointTexts,
    Recorded,
    point_problems,
)
from snakemake_kochi.project.requests import Requests
from snakemake_kochi.project.values import encode_component

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.machine_facts import Facts


def only_recorded(
    experiment: Experiment, recorded: Mapping[str, Sequence[Recorded]], below: str
) -> Experiment:
    """The experiment with these batches and points only, with all artifacts in the directory
    `below`.

    Raises NameNotFoundError for a batch that the experiment does not have.
    """
    batches = {}
    for name, points in recorded.items():
        batch = experiment.batch(name)
        artifacts = (Artifact(a.type, f"{below}/{a.dest}", a.src) for a in batch.artifacts)
        batches[name] = replace(
            batch, artifacts=tuple(artifacts), recorded=tuple(points), below=below
        )
    return replace(experiment, batches=FrozenDict(batches), remarks=())


def recorded_points(
    file: str, batch: Batch, names: Sequence[str], facts: Facts
) -> tuple[Point, ...]:
    """The points of a batch that were recorded.

    `names`: the parameters of the batch in the experiment `file`. Raises ConfigError for
    a point with others, or with values that no such point has.
    """
    return tuple(_points(file, batch, names, facts))


def _points(file: str, batch: Batch, names: Sequence[str], facts: Facts) -> Iterator[Point]:
    texts = PointTexts.parse(batch.job_name, batch.queue, batch.artifacts)
    requests = Requests(batch.run)
    for each in batch.recorded or ():
        where = f"{file}: batch '{batch.name}', record {each.identity}"
        differing = sorted(({*each.parameters} ^ {*names}) - batch.sometimes)
        if differing:
            raise ConfigError(
                f"{where}: it does not have the parameters of the batch, but differs in "
                f"{', '.join(differing)}",
                "Was the record edited? A record describes the code that it names.",
            )
        # In the order of the file, as in the grid.
        parameters = FrozenDict(
            (name, each.parameters[name]) for name in names if name in each.parameters
        )
        encoded = {name: encode_component(value) for name, value in parameters.items()}
        encoded["batch_name"] = encode_component(batch.name)
        point = texts.point(parameters, batch.name, each.duplicate, encoded)
        for _, wrong in point_problems(point):
            raise ConfigError(f"{where}: {wrong}")
        request, problems = requests.of({**facts.values, **parameters})
        for key, wrong in problems.items():
            raise ConfigError(f"{where}: run.{'.'.join(map(str, key))}: {wrong}")
        yield replace(point, request=request, rerun_of=each.identity)
