"""The metrics and the figures of a batch as experiments choose them; `tables/` makes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.values import encode_component

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.grid import Batch, Point

DUPLICATE = "duplicate"
MACHINE = "machine"  # the column of a table with the results of several machines
# So many can be told apart by colour, marker and line style together.
MOST_LINES = 12
_LONGEST_STEM = 100  # of the part of a file's name that a metric gives


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
_PLACES = {"json": "path", "csv": "column"}
_PATH = re.compile(r"([^.\[\]]+|\[\d{1,9}\])(\.[^.\[\]]+|\[\d{1,9}\])*")


def read_metrics(
    data: Mapping[str, Any], place: Callable[..., KeyPath], problems: Problems
) -> tuple[dict[str, Metric], dict[str, Quantity]]:
    """The metrics in a section `metrics`, each given alone or beside its unit, and how their
    measurements are shown. `place` gives the key path of keys."""
    metrics: dict[str, Metric] = {}
    every = {k: v if isinstance(v, dict) else {"pattern": v} for k, v in data.items()}
    for name, keys in every.items():
        kinds = [kind for kind in ("pattern", *_PLACES) if kind in keys]
        for other in kinds[1:]:
            said = f"a metric has one of 'pattern', 'json' and 'csv'; remove this or '{kinds[0]}'"
            problems.add(place("metrics", name, other), said)
        kind = kinds[0] if kinds else "pattern"
        for owner, key in _PLACES.items():
            if key in keys and kind != owner:
                said = f"'{key}' is for a metric with '{owner}'; remove it"
                problems.add(place("metrics", name, key), said)
            elif key not in keys and kind == owner:
                problems.add(place("metrics", name), f"the key '{key}' is missing")
        if kind == "pattern":
            metrics[name] = keys.get("pattern", "")
        else:
            metrics[name] = FileMetric(kind, keys[kind], keys.get(_PLACES[kind], ""))
        if kind == "json" and "path" in keys and not _PATH.fullmatch(keys["path"]):
            said = f"{keys['path']!r}: keys and indices such as a.b[0] were expected"
            problems.add(place("metrics", name, "path"), said)
    shown = {k: Quantity(v.get("unit", ""), v.get("label", "")) for k, v in every.items()}
    return metrics, {**QUANTITIES, **shown}


@dataclass(frozen=True)
class Plot:
    """A figure of one measurement.

    `name` tells it from the other figures of its batch. `x`, `lines` and `panels` are parameters
    (`x` also the duplicate) or MACHINE, empty where the figure chooses. `where`: only points with
    one of these values. The scales are log, linear or empty, for one that fits the values. `path`
    is its place in the file.
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
    def parameters(self) -> Iterator[tuple[str, str]]:
        """The keys and the parameters that they name."""
        yield from (("x", self.x),) if self.x not in ("", DUPLICATE) else ()
        yield from (("lines", self.lines),) if self.lines else ()
        yield from (("panels", name) for name in self.panels)
        yield from (("where", name) for name in self.where)


def default_plots(metrics: Iterable[str]) -> tuple[Plot, ...]:
    """One figure for each metric, or of the run's seconds where there is none."""
    return tuple(Plot(name, name) for name in metrics) or (Plot(SECONDS, SECONDS),)


def stems(batch: str, plots: Sequence[Plot]) -> list[str]:
    """The names of the files of figures, without their suffixes.

    The first figure has that of the batch. The comma keeps the others apart from the files of other
    batches, whose names have none.
    """
    first = encode_component(batch)
    return [first, *(f"{first},{_short(plot.name)}" for plot in plots[1:])]


def _short(name: str) -> str:
    encoded = encode_component(name)
    if len(encoded) <= _LONGEST_STEM:
        return encoded
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{encoded[:16]}%{digest[:16]}"


# ---- reading


def read_plots(
    data: Sequence[Mapping[str, Any]], path: KeyPath, problems: Problems
) -> tuple[Plot, ...]:
    """The figures below a key `plots`."""
    plots: dict[str, Plot] = {}
    for index, entry in enumerate(data):
        texts = {key: entry.get(key) or "" for key in ("x", "lines", "scale", "x_scale")}
        where = {
            name: tuple(text or "" for text in values)
            for name, values in entry.get("where", {}).items()
        }
        plot = Plot(
            entry.get("name") or entry["metric"],
            entry["metric"],
            panels=entry.get("panels", ()),
            where=FrozenDict(where),
            y_from_zero=entry.get("y_from_zero", True),
            path=(*path, index),
            **texts,
        )
        if (other := plots.setdefault(plot.name, plot)) is not plot:
            said = f"plots[{other.path[-1]}] is called '{plot.name}', too; give one of them a name"
            problems.add(plot.path, f"{said}: ...")
        if plot.scale == "log" and entry.get("y_from_zero"):
            said = "a logarithmic axis has no zero; remove this key, or use scale: linear"
            problems.add((*plot.path, "y_from_zero"), said)
        used = [name for key, name in plot.parameters if key != "where"]
        for name in dict.fromkeys(name for name in used if used.count(name) > 1):
            said = f"'{name}' can be used once: for x, for lines, or for panels"
            problems.add(plot.path, said)
    return tuple(plots.values())


# ---- checks


def batch_plots(above: Iterable[Plot], metrics: Collection[str]) -> tuple[Plot, ...]:
    """The figures of a batch without its own: those of the file that it has metrics for, else one
    for each metric."""
    some = tuple(plot for plot in above if plot.metric in (*metrics, SECONDS))
    return some or default_plots(metrics)


def check_plots(experiment: Experiment, problems: Problems) -> None:
    """Note each name in plots that is neither a metric nor a parameter."""
    batches = experiment.batches.values()
    everywhere = [(batch.metrics, _names_for_plots(experiment, batch)) for batch in batches]
    metrics = {name for known, _ in everywhere for name in known} | experiment.metrics.keys()
    parameters = {name for _, known in everywhere for name in known}
    _check(experiment.plots, metrics, parameters | {*experiment.default_parameters}, problems)
    for batch, (metrics_of_it, parameters_of_it) in zip(batches, everywhere, strict=True):
        own = [plot for plot in batch.plots if plot.is_of_batch]
        _check(own, metrics_of_it, parameters_of_it, problems)


def _names_for_plots(experiment: Experiment, batch: Batch) -> tuple[str, ...]:
    """The parameters of a batch, and MACHINE if its table has several."""
    own = experiment.parameters_of(batch)
    return (*own, MACHINE) if len(batch.machines) > 1 else own


def _check(
    plots: Iterable[Plot],
    metrics: Collection[str],
    parameters: Collection[str],
    problems: Problems,
) -> None:
    for plot in plots:
        if plot.metric not in (*metrics, SECONDS):
            said = nearest(plot.metric, [*metrics, SECONDS])
            problems.add((*plot.path, "metric"), f"there is no metric '{plot.metric}', {said}")
        for key, name in plot.parameters:
            if name not in parameters:
                said = f"there is no parameter '{name}', {nearest(name, parameters)}"
                problems.add((*plot.path, key), said)


def note_plot_problems(plots: Iterable[Plot], points: Sequence[Point], problems: Problems) -> None:
    """Note, before anything runs, what makes a figure of these points unreadable or empty."""
    for plot in plots:
        shown = points
        for name, wanted in plot.where.items():
            if not any(name in point.parameters for point in points[:1]):
                continue  # a parameter of other batches
            known = dict.fromkeys(point.parameters.get(name, "") for point in points)
            for text in wanted if plot.is_of_batch else ():
                if text not in known:
                    said = f"no point has {name} = '{text}', {nearest(text, known)}"
                    problems.add((*plot.path, "where", name), said)
            shown = [point for point in shown if point.parameters.get(name, "") in wanted]
        if plot.lines:
            count = len({point.parameters.get(plot.lines) for point in shown})
            if count > MOST_LINES:
                problems.add((*plot.path, "lines"), too_many_lines(plot.lines, count))


def too_many_lines(name: str, count: int) -> str:
    """The message for a parameter with too many values."""
    return (
        f"'{name}' has {count} values, and at most {MOST_LINES} lines can be told apart; use it "
        f"for x or panels, or choose some values: where: {{{name}: [...]}}"
    )
