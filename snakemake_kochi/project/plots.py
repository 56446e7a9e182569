"""Metrics, figures and references of a batch as experiments choose them; `tables/` makes them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.values import encode_component

if TYPE_CHECKING:
    from snakemake_kochi.project.document import KeyPath, Problems
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.grid import Point

DUPLICATE = "duplicate"
MACHINE = "machine"  # the column of a table with the results of several machines
# So many can be told apart by colour, marker and line style together.
MOST_LINES = 12
SECONDS = "run_seconds"


@dataclass(frozen=True)
class Quantity:
    """How a measurement is shown: plain texts, empty if not given."""

    unit: str = ""
    label: str = ""


QUANTITIES: Mapping[str, Quantity] = FrozenDict({SECONDS: Quantity("s")})


@dataclass(frozen=True)
class FileMetric:
    """A measurement in a file of the workspace, which an artifact keeps: `kind` is json or csv,
    `place` a path such as `a.b[0]` or a column."""

    kind: str
    file: str
    place: str

    def __str__(self) -> str:
        return f"{_PLACES[self.kind]} {self.place} of {self.file}"

    @property
    def steps(self) -> list[str | int]:
        """The keys and indices of a path."""
        found = re.findall(r"([^.\[\]]+)|\[(\d+)\]", self.place)
        return [key or int(index) for key, index in found]


# A regular expression with one group, for the output of the run; or a place in a file.
Metric = str | FileMetric
_PLACES = {"pattern": "", "json": "path", "csv": "column"}


@dataclass(frozen=True)
class Plot:
    """A figure of one measurement, given at the key `path`.

    `name` tells it from the other figures of its batch. `x`, `lines` and `panels` are parameters
    (`x` also the duplicate) or MACHINE, empty where the figure chooses. `where`: only points with
    one of these values. The scales are log, linear or empty, for one that fits the values.
    """

    name: str
    metric: str
    x: str = ""
    lines: str = ""
    panels: tuple[str, ...] = ()
    where: Mapping[str, tuple[str, ...]] = FrozenDict()
    scale: str = ""
    x_scale: str = ""
    y_from_zero: bool = True
    path: KeyPath = field(default=(), repr=False, compare=False)

    @property
    def is_of_batch(self) -> bool:
        """Whether it is given for one batch, and not for all of an experiment."""
        return self.path[:1] == ("batches",)

    @property
    def axes(self) -> list[tuple[str, str]]:
        """The keys and the parameters that they name."""
        named = [("x", self.x), ("lines", self.lines), *(("panels", name) for name in self.panels)]
        return [(key, name) for key, name in named if name and (key, name) != ("x", DUPLICATE)]


def default_plots(metrics: Iterable[str]) -> tuple[Plot, ...]:
    """One figure for each metric, or of the run's seconds where there is none."""
    return tuple(Plot(name, name) for name in metrics) or (Plot(SECONDS, SECONDS),)


def stems(batch: str, plots: Sequence[Plot]) -> list[str]:
    """The names of the files of figures, without their suffixes: of the first one that of the
    batch. The comma keeps the others apart from other batches, whose names have none."""
    first = encode_component(batch)
    return [first, *(f"{first},{encode_component(plot.name)}" for plot in plots[1:])]


@dataclass(frozen=True)
class Reference:
    """What a metric was, or is to be: a `value`, or that of the results in a `commit` of an
    artifact branch. `machine`: only there, empty for all. `where`: only points with one of these
    values. `within`: the difference that does not matter, a fraction. `reason`: why a worse result
    is accepted `until` a day."""

    metric: str
    value: float | None = None
    commit: str = ""
    machine: str = ""
    where: Mapping[str, tuple[str, ...]] = FrozenDict()
    within: float = 0.05
    reason: str = ""
    until: datetime.date | None = None

    def has(self, parameters: Mapping[str, str]) -> bool:
        return all(parameters.get(name, "") in values for name, values in self.where.items())

    @property
    def named(self) -> str:
        return self.commit[:12] if self.value is None else f"{self.value:g}"


# ---- reading and checks


def read_metrics(
    data: Mapping[str, Any], path: KeyPath, problems: Problems
) -> tuple[dict[str, Metric], dict[str, Quantity]]:
    """The metrics in a section at a key path, each given alone or beside its unit, and how their
    measurements are shown."""
    metrics: dict[str, Metric] = {}
    shown = dict(QUANTITIES)
    for name, written in data.items():
        keys = written if isinstance(written, dict) else {"pattern": written}
        kind, *others = [each for each in _PLACES if each in keys] or ["pattern"]
        for other in others:
            said = f"a metric has one of 'pattern', 'json' and 'csv'; remove this or '{kind}'"
            problems.add((*path, name, other), said)
        for owner, key in _PLACES.items():
            if key in keys and kind != owner:
                said = f"'{key}' is for a metric with '{owner}'; remove it"
                problems.add((*path, name, key), said)
        if (key := _PLACES[kind]) and key not in keys:
            problems.add((*path, name), f"the key '{key}' is missing")
        own = keys.get(kind, "")
        metrics[name] = FileMetric(kind, own, keys.get(key, "")) if key else own
        shown[name] = Quantity(keys.get("unit", ""), keys.get("label", ""))
    return metrics, shown


def read_plots(
    data: Sequence[Mapping[str, Any]], path: KeyPath, problems: Problems
) -> tuple[Plot, ...]:
    """The figures below a key `plots`."""
    plots: dict[str, Plot] = {}
    for index, entry in enumerate(data):
        given = {key: value for key, value in entry.items() if value is not None and value != ""}
        given |= {"where": _where(entry), "path": (*path, index)}
        plot = Plot(**({"name": entry["metric"]} | given))
        if (other := plots.setdefault(plot.name, plot)) is not plot:
            said = f"plots[{other.path[-1]}] is called '{plot.name}', too; give one of them a name"
            problems.add(plot.path, f"{said}: ...")
        if plot.scale == "log" and entry.get("y_from_zero"):
            said = "a logarithmic axis has no zero; remove this key, or use scale: linear"
            problems.add((*plot.path, "y_from_zero"), said)
        used = [name for _, name in plot.axes]
        for name in {name for name in used if used.count(name) > 1}:
            said = f"'{name}' can be used once: for x, for lines, or for panels"
            problems.add(plot.path, said)
    return tuple(plots.values())


def read_references(
    data: Sequence[Mapping[str, Any]],
    metrics: Collection[str],
    parameters: Collection[str],
    path: KeyPath,
    problems: Problems,
) -> tuple[Reference, ...]:
    """Those below a key `references`, of a batch with these metrics and parameters."""
    references, known = [], [*metrics, SECONDS]
    for index, entry in enumerate(data):
        given = {key: value for key, value in entry.items() if key != "accepted"}
        given |= {"metric": entry.get("metric", known[0]), "where": _where(entry)}
        references.append(reference := Reference(**given, **entry.get("accepted", {})))
        problems.check_known((*path, index, "metric"), "metric", reference.metric, known)
        for name in reference.where:
            problems.check_known((*path, index, "where", name), "parameter", name, parameters)
        if "value" in entry and "commit" in entry:
            said = "a reference has a value or a commit; remove one"
            problems.add((*path, index, "commit"), said)
    return tuple(references)


def _where(entry: Mapping[str, Any]) -> FrozenDict[str, tuple[str, ...]]:
    texts = entry.get("where", {}).items()
    return FrozenDict((name, tuple(text or "" for text in values)) for name, values in texts)


def check_plots(experiment: Experiment, problems: Problems) -> None:
    """Note each name in plots that is neither a metric nor a parameter."""
    metrics, parameters = {*experiment.metrics, SECONDS}, {*experiment.default_parameters}
    every: list[tuple[Iterable[Plot], set[str], set[str]]] = []
    for batch in experiment.batches.values():
        known = {*batch.metrics, SECONDS}
        own = {*experiment.parameters_of(batch), *([MACHINE] if batch.machines[1:] else [])}
        every.append(((plot for plot in batch.plots if plot.is_of_batch), known, own))
        metrics, parameters = metrics | known, parameters | own
    for plots, known, own in [(experiment.plots, metrics, parameters), *every]:
        for plot in plots:
            problems.check_known((*plot.path, "metric"), "metric", plot.metric, known)
            for key, name in (*plot.axes, *(("where", name) for name in plot.where)):
                problems.check_known((*plot.path, key), "parameter", name, own)


def note_plot_problems(plots: Iterable[Plot], points: Sequence[Point], problems: Problems) -> None:
    """Note, before anything runs, what makes a figure of these points unreadable or empty."""
    names = points[0].parameters if points else ()
    for plot in plots:
        shown = points
        for name in [each for each in plot.where if each in names]:  # others are of other batches
            known = dict.fromkeys(point.parameters.get(name, "") for point in points)
            for text in [t for t in plot.where[name] if t not in known and plot.is_of_batch]:
                said = f"no point has {name} = '{text}', {nearest(text, known)}"
                problems.add((*plot.path, "where", name), said)
            shown = [p for p in shown if p.parameters.get(name, "") in plot.where[name]]
        count = len({point.parameters.get(plot.lines) for point in shown})
        if plot.lines and count > MOST_LINES:
            problems.add((*plot.path, "lines"), too_many_lines(plot.lines, count))


def too_many_lines(name: str, count: int) -> str:
    """The message for a parameter with too many values."""
    return (
        f"'{name}' has {count} values, and at most {MOST_LINES} lines can be told apart; use it "
        f"for x or panels, or choose some values: where: {{{name}: [...]}}"
    )
