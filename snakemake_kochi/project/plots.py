"""The figures of a batch as experiments choose them. `tables/figure.py` draws them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.document import optional_text
from snakemake_kochi.project.metrics import SECONDS
from snakemake_kochi.project.problems import KeyPath, Problems
from snakemake_kochi.project.values import encode_component, has_control_character

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.grid import Batch, Point

DUPLICATE = "duplicate"
MACHINE = "machine"  # the column of a table with the results of several machines
# So many can be told apart by colour, marker and line style together.
MOST_LINES = 12
_LONGEST_STEM = 100  # of the part of a file's name that a metric gives


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


def read_plots(data: Any, path: KeyPath, problems: Problems) -> tuple[Plot, ...] | None:
    """The figures below a key `plots`; None if none is given."""
    if not isinstance(data, list):
        return None
    plots = []
    first: dict[str, int] = {}
    for index, entry in enumerate(data):
        if not isinstance(entry, dict) or not entry.get("metric"):
            continue  # which was noted
        plot = _read_plot(entry, (*path, index))
        other = first.setdefault(plot.name, index)
        if other != index:
            said = f"plots[{other}] is called '{plot.name}', too; give one of them a name: ..."
            problems.add((*path, index), said)
            continue
        if has_control_character(plot.name):
            problems.add((*path, index, "name"), "one line of text was expected")
        if plot.scale == "log" and "y_from_zero" in entry and plot.y_from_zero:
            said = "a logarithmic axis has no zero; remove this key, or use scale: linear"
            problems.add((*path, index, "y_from_zero"), said)
        used = [name for key, name in plot.parameters if key != "where"]
        for name in dict.fromkeys(name for name in used if used.count(name) > 1):
            said = f"'{name}' can be used once: for x, for lines, or for panels"
            problems.add((*path, index), said)
        plots.append(plot)
    return tuple(plots)


def _read_plot(entry: Mapping[str, Any], path: KeyPath) -> Plot:
    metric = str(entry["metric"])
    where = entry.get("where")
    return Plot(
        name=optional_text(entry.get("name")) or metric,
        metric=metric,
        x=optional_text(entry.get("x")) or "",
        lines=optional_text(entry.get("lines")) or "",
        panels=_texts(entry.get("panels")),
        where=FrozenDict(
            (name, _texts(value))
            for name, value in (where if isinstance(where, dict) else {}).items()
        ),
        scale=optional_text(entry.get("scale")) or "",
        x_scale=optional_text(entry.get("x_scale")) or "",
        y_from_zero="y_from_zero" not in entry or entry["y_from_zero"].is_true,
        path=path,
    )


def _texts(value: Any) -> tuple[str, ...]:
    entries = value if isinstance(value, list) else [value]
    return tuple(each.value_text for each in entries if each is not None)


def batch_plots(
    top: Mapping[str, Any],
    batch: Mapping[str, Any],
    path: KeyPath,
    metrics: Collection[str],
    problems: Problems,
) -> tuple[Plot, ...]:
    """The figures of a batch at a key path: its own, else those of the file that it has metrics
    for, else one for each metric."""
    own = read_plots(batch.get("plots"), (*path, "plots"), problems)
    if own is not None:
        return own
    common = read_plots(top.get("plots"), ("plots",), problems) or ()
    some = [plot for plot in common if plot.metric in (*metrics, SECONDS)]
    return tuple(some) or default_plots(metrics)


# ---- checks


def check_plots(experiment: Experiment, problems: Problems) -> None:
    """Note each name in plots that is neither a metric nor a parameter."""
    batches = experiment.batches.values()
    everywhere = [(batch.metrics, _names_for_plots(experiment, batch)) for batch in batches]
    metrics = {name for known, _ in everywhere for name in known} | experiment.metrics.keys()
    parameters = {name for _, known in everywhere for name in known}
    _check(experiment.plots or (), metrics, parameters | {*experiment.default_parameters}, problems)
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
        sections: list[KeyPath] = [("default_params",), ("batches",), (*plot.path[:-2], "params")]
        if plot.metric not in (*metrics, SECONDS):
            places: list[KeyPath] = [("metrics",), (*plot.path[:-2], "metrics"), ("batches",)]
            own = (plot.metric,), (plot.metric, "pattern")
            wrong = (place for top in places for place in (top, *((*top, *each) for each in own)))
            if not any(map(problems.is_unknown, wrong)):
                said = nearest(plot.metric, [*metrics, SECONDS])
                problems.add((*plot.path, "metric"), f"there is no metric '{plot.metric}', {said}")
        for key, name in plot.parameters:
            if name not in parameters and not any(map(problems.is_unknown, sections)):
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
