"""What a batch shows: a table of its runs, a summary of its points, remarks, and figures.

The table has one row per run. The summary has one row per point: the median with its interval, the
minimum and the maximum over its duplicates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas
from tabulate import tabulate

from snakemake_kochi.errors import KochiError, printable
from snakemake_kochi.project.grid import Batch, Grid, Repeat
from snakemake_kochi.project.plots import (
    DUPLICATE,
    QUANTITIES,
    SECONDS,
    Plot,
    Quantity,
    Reference,
    default_plots,
)
from snakemake_kochi.quantities import percent
from snakemake_kochi.tables.intervals import Measured, Points
from snakemake_kochi.tables.metrics import Outputs, measure, readers
from snakemake_kochi.tables.records import RecordedRun

WARNINGS = "run_warnings"
# Kinds of warnings that are not known of each run.
_OF_PROCESSES = ("load", "memory_pressure")
_LEAST_SECONDS = 1.0  # of runs in sum, to say something about them
_MOST_REASONS = 50


@dataclass(frozen=True)
class Report:
    """A batch. `runs`: its table, of which the columns `varying` tell the points apart. `remarks`:
    sentences, without a capital letter and a full stop. `lost`: those of them about values that are
    missing. `absent`: of each metric the runs in which it found nothing, by number, and why.
    `lacking`: what belongs below each figure. `noise`: more sentences, which a page has and a
    terminal not. `counts`: the columns with numbers of samples. `recorded`: what the record of each
    row says. `repeat`: until when points were repeated. `references`: for `kochi check`. `missing`:
    the points of the batch without any result, as far as they are known: a machine and the
    parameters."""

    experiment: str
    batch: str
    runs: pandas.DataFrame
    varying: Sequence[str]
    quantities: Mapping[str, Quantity]
    plots: Sequence[Plot]
    remarks: Sequence[str]
    lost: Sequence[str]
    absent: Mapping[str, Mapping[int, str]]
    lacking: Sequence[str]
    noise: Sequence[str]
    counts: Collection[str]
    recorded: Sequence[RecordedRun]
    repeat: Repeat | None
    references: Sequence[Reference]
    missing: Sequence[tuple[str, Mapping[str, str]]]

    @property
    def title(self) -> str:
        return f"{self.experiment} {self.batch}"

    @property
    def metrics(self) -> list[str]:
        """The columns that are metrics."""
        names = list(self.runs.columns)
        after = names[names.index(SECONDS) + 1 :]
        return [name for name in after if name != WARNINGS and name not in self.counts]

    @property
    def parameters(self) -> list[str]:
        """The columns that are parameters."""
        return list(self.runs.columns[: self.runs.columns.get_loc(DUPLICATE)])

    @property
    def machines(self) -> set[str]:
        """Those of the results, also by the names under which these are published."""
        return {name for run in self.recorded for name in (run.machine, run.published_as)}

    @cached_property
    def points(self) -> Points:
        keys = self.runs[list(self.varying)].itertuples(index=False, name=None)
        return Points.of(keys, self.recorded, self.repeat)

    @cached_property
    def measured(self) -> Mapping[str, Measured]:
        """The columns with numbers, and their intervals, if a point has several runs."""
        if not self.points.are_repeated:
            return {}
        columns = (self.runs[name] for name in (SECONDS, *self.metrics))
        return {
            str(each.name): self.points.measured(each)
            for each in columns
            if pandas.api.types.is_numeric_dtype(each) and not each.isna().all()
        }

    def numbers(self, metric: str) -> pandas.Series[float]:
        """The column of a metric. Raises KochiError if it has texts."""
        column = self.runs[metric]
        if not pandas.api.types.is_numeric_dtype(column):
            raise KochiError(f"metric '{metric}' of {self.title} is a text, and no number")
        return column

    def unit(self, metric: str) -> str:
        return self.quantities[metric].unit if metric in self.quantities else ""

    @property
    def rows(self) -> pandas.DataFrame:
        """The table, with the intervals of the points beside their runs."""
        table = self.runs.copy()
        for name, measured in self.measured.items():
            for kind, column in measured.columns().items():
                table[free_name(f"{name}_{kind}", table)] = column.array
        return table

    def csv(self) -> bytes:
        return _encoded(self.rows.to_csv(index=False))

    def markdown(self, with_remarks: bool = True, sections: Sequence[str] = ()) -> bytes:
        """The summary as a page, with sections at its end."""
        remarks = (*self.about_intervals(), *self.noise, *self.remarks) if with_remarks else ()
        return page(self.title, [self.summary, *map(sentence, remarks), *sections])

    @property
    def summary(self) -> str:
        """The points as a Markdown table."""
        return as_markdown(self.summarised())

    def summarised(self) -> pandas.DataFrame:
        """One row per point.

        The columns are the varying parameters, the number of runs, and of each measurement the
        median, its interval, the minimum and the maximum over the duplicates, with its unit: `time
        median (ms)`; of `counts` the sum.
        """
        keys = list(self.varying)
        runs = self.runs
        grouped = (
            runs.groupby(keys, sort=False, dropna=False) if keys else runs.groupby(lambda _: 0)
        )
        columns: dict[str, Any] = {"(runs)": grouped.size()}
        if self.measured and self.points.have_several_units:
            columns["(runs)"] = list(self.points.described)
        level = percent(self.points.confidence)
        for name in runs.columns[runs.columns.get_loc(SECONDS) :]:
            if not pandas.api.types.is_numeric_dtype(runs[name]) or runs[name].isna().all():
                continue
            if name in self.counts:
                columns[name] = grouped[name].sum()
                continue
            # The name of SECONDS says its unit.
            unit = self.unit(name) if name != SECONDS else ""
            in_unit = f" ({unit})" if unit else ""
            columns[f"{name} median{in_unit}"] = grouped[name].median()
            if name in self.measured and self.measured[name].has_intervals:
                columns[f"{name} {level} interval{in_unit}"] = self.measured[name].told
            for kind in ("min", "max"):
                columns[f"{name} {kind}{in_unit}"] = getattr(grouped[name], kind)()
        return pandas.DataFrame(columns).reset_index(drop=not keys)

    def draw(self, files: Sequence[Sequence[Path]], plots: Sequence[Plot] | None = None) -> None:
        """Draw some plots, by default its own ones; `files`: those of each."""
        if not (plots := self.plots if plots is None else plots):
            return
        # Only here: a batch without figures need not wait for Matplotlib.
        from snakemake_kochi.tables.figure import draw

        note = " ".join(sentence(each.partition(";")[0]) for each in self.lacking)
        for plot, own in zip(plots, files, strict=True):
            title = f"{self.title}: {plot.name}"
            measured = self.measured.get(plot.metric)
            draw(self.runs, self.parameters, plot, self.quantities, title, own, note, measured)

    def about_intervals(self) -> Iterator[str]:
        """More sentences: what the intervals cover, and what they allow for."""
        for name, measured in self.measured.items():
            yield from measured.remarks(name)
        if not self.measured:
            return
        if self.repeat is not None:
            yield from self._about_repetition(self.repeat)
        if not any(each.has_intervals for each in self.measured.values()):
            more = any(each.alike for each in self.measured.values())
            why = ", and more where neighbouring runs are alike" if more else ""
            yield f"no median has an interval: a point needs {self.points.needed}{why}"
        elif self.points.have_several_units:
            yield (
                "points that ran in several allocations or on several nodes have the interval of "
                "the mean of their medians, and each of these counts once"
            )
        else:
            yield "the intervals do not cover differences between sessions, boots and builds"

    def _about_repetition(self, repeat: Repeat) -> Iterator[str]:
        measured = self.measured.get(repeat.metric)
        if measured is None or repeat.by:  # `kochi compare` tells how sure ratios are
            return
        wide = [each for each in measured.intervals if each.half_width > repeat.until]
        of, goal = len(measured.intervals), f"within {percent(repeat.until)}"
        if not wide:
            yield f"{repeat.metric}: all {of} points are known {goal}"
        else:
            worst = max(each.half_width for each in wide)
            width = "have no interval" if math.isinf(worst) else f"up to ± {percent(worst)}"
            yield f"{repeat.metric}: {len(wide)} of {of} points are not known {goal} ({width})"


def report_of(
    runs: Sequence[RecordedRun],
    outputs: Outputs,
    shown: Batch | Grid | None,
    *,
    told_by: Mapping[str, Sequence[str]] | None = None,
    varying: Collection[str] = (),
    remarks: Sequence[str] = (),
    lacking: Sequence[str] = (),
    missing: Sequence[tuple[str, Mapping[str, str]]] = (),
) -> Report:
    """The report of some runs of one batch, at least one.

    `shown` has the metrics and plots, if they are known. `told_by`: columns before the parameters,
    which tell equal points apart. `varying`: parameters of which that is known, beside the columns
    with several values.

    The columns of its table are the parameters as texts (1.10 is not 1.1), `duplicate`,
    `run_machine`, `run_node`, `run_started`, `run_seconds`, and the metrics (see `measure`); and
    `run_warnings`, if a node was not quiet. Raises ConfigError for a wrong metric.
    """
    metrics = readers({} if shown is None else shown.metrics)
    measured = measure(runs, [metrics] * len(runs), outputs)
    table = pandas.DataFrame([run.parameters for run in runs], dtype=object)
    # Of a sub-parameter that only some points have.
    table = table.fillna("")
    for name, column in (told_by or {}).items():
        table.insert(0, free_name(name, table), list(column))
    names = list(map(str, table))
    table[DUPLICATE] = [run.duplicate for run in runs]
    table["run_machine"] = [run.machine for run in runs]
    for name, value in (("run_node", "node"), ("run_started", "started"), (SECONDS, "seconds")):
        table[name] = [run[value] for run in runs]
    counts = []
    for name, values in measured.columns.items():
        table[name] = values
        if name in measured.counts:
            counts.append(free_name(f"{name}_samples", {*table, *measured.columns}))
            table[counts[-1]] = measured.counts[name]
    if any(run["warnings"] for run in runs):
        table[WARNINGS] = [run["warnings"] or "" for run in runs]
    without = [
        f"metric `{name}` has no value in {len(found)} of {len(runs)} runs: "
        f"`{shown and shown.metrics[name]}`{why and f' ({why})'}"
        for name, found in measured.absent.items()
        for why in [next(iter(found.values()))]
    ]
    return Report(
        experiment=runs[0].experiment,
        batch=runs[0].batch,
        runs=table,
        varying=[n for n in names if n in varying or table[n].nunique(dropna=False) > 1],
        quantities=QUANTITIES if shown is None else shown.quantities,
        plots=default_plots(()) if shown is None else shown.plots,
        remarks=(*remarks, *measured.remarks, *without),
        lost=measured.remarks,
        absent=measured.absent,
        lacking=lacking,
        noise=tuple(_noise(runs)),
        counts=counts,
        recorded=runs,
        repeat=None if shown is None else shown.repeat,
        references=() if shown is None else shown.references,
        missing=missing,
    )


def free_name(name: str, taken: Collection[Any]) -> str:
    """A name of a column that is not taken."""
    while name in taken:
        name += "_"
    return name


def sentence(remark: str) -> str:
    return f"{remark[0].upper()}{remark[1:]}."


def page(title: str, parts: Sequence[str]) -> bytes:
    """Markdown with a title."""
    return _encoded("\n\n".join([f"# {title}", *parts]) + "\n")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def as_markdown(summary: pandas.DataFrame) -> str:
    """A summary as a Markdown table."""
    # As texts: numbers would be cut to six digits, also a count of nanoseconds.
    # A bar in a unit or a value would begin another column.
    columns = {
        str(name).replace("|", "\\|"): summary[name].map(_readable).str.replace("|", "\\|")
        for name in summary
    }
    table: str = pandas.DataFrame(columns).to_markdown(
        index=False, disable_numparse=True, stralign="right"
    )
    return table


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Texts as a Markdown table; a bar in one does not end its cell."""
    escaped = [[printable(cell).replace("|", "\\|") for cell in row] for row in [headers, *rows]]
    return tabulate(escaped[1:], escaped[0], tablefmt="github", disable_numparse=True)


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.6g}"
    return str(value)


# ---- remarks


def skipped(grid: Grid, of_it: str = "") -> Iterator[str]:
    """The number of skipped points for each reason."""
    found = list(grid.skipped_by_reason.items())
    for reason, count in found[:_MOST_REASONS]:
        yield f"{count} {'point is' if count == 1 else 'points are'} skipped{of_it}: {reason}"
    if more := sum(count for _, count in found[_MOST_REASONS:]):
        yield f"{more} points are skipped{of_it} for other reasons"


def _noise(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """What disturbed runs: each kind with the number of its runs, and an example; and the CPUs that
    other processes used in sum beside those of which this is not known one by one."""
    unknown = [run for run in runs if run["other_cpus"] is None]
    kinds: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        for warning in filter(None, (run["warnings"] or "").split("; ")):
            kind, _, said = warning.partition(": ")
            kinds[kind].append(said)
    if kinds:
        known = dict.fromkeys(_OF_PROCESSES, len(runs) - len(unknown))
        found = "; ".join(
            f"{kind} in {len(each)} of {known.get(kind, len(runs))} ({each[0]})"
            for kind, each in kinds.items()
        )
        count = sum(bool(run["warnings"]) for run in runs)
        aside = f" (other processes are not known for {len(unknown)})" if unknown else ""
        of = f"{count} of {len(runs)} runs{aside}"
        yield f"the node was not quiet in {of}: {found}. See `{WARNINGS}`"
    limit = max(unknown, key=lambda run: run.age)["load_limit"] if unknown else None
    counted = [run for run in unknown if run["other_cpu_seconds"] is not None]
    seconds = sum((run["seconds"] or 0.0) + (run["environment_seconds"] or 0.0) for run in counted)
    used = sum(run["other_cpu_seconds"] for run in counted)
    if limit is not None and seconds >= _LEAST_SECONDS and used > limit * seconds:
        yield (
            f"beside the {len(unknown)} runs that are too short to tell, other processes used "
            f"{used / seconds:.1f} CPUs in sum"
        )
