"""What a batch shows: a table of its runs, a summary of its points, remarks, and figures.

The table has one row per run. The summary has one row per point: the median, the minimum and the
maximum over its duplicates.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.plots import DUPLICATE, SECONDS, Plot, Quantity
from snakemake_kochi.tables.records import RecordedRun

WARNINGS = "run_warnings"
# Kinds of warnings that are not known of each run.
_OF_PROCESSES = ("load", "memory_pressure")
_LEAST_SECONDS = 1.0  # of runs in sum, to say something about them
_MOST_REASONS = 50
_SHOWN = 3


@dataclass(frozen=True)
class Report:
    """A batch. `runs`: its table, of which the columns `varying` tell the points apart. `remarks`:
    sentences, without a capital letter and a full stop. `lacking`: those of them that belong below
    each figure. `noise`: more sentences, which a page has and a terminal not."""

    experiment: str
    batch: str
    runs: pandas.DataFrame
    varying: Sequence[str]
    quantities: Mapping[str, Quantity]
    plots: Sequence[Plot]
    remarks: Sequence[str] = ()
    lacking: Sequence[str] = ()
    noise: Sequence[str] = ()

    @property
    def title(self) -> str:
        return f"{self.experiment} {self.batch}"

    @property
    def metrics(self) -> list[str]:
        """The columns that are metrics."""
        names = list(self.runs.columns)
        return [name for name in names[names.index(SECONDS) + 1 :] if name != WARNINGS]

    @property
    def parameters(self) -> list[str]:
        """The columns that are parameters."""
        return list(self.runs.columns[: self.runs.columns.get_loc(DUPLICATE)])

    def csv(self) -> bytes:
        return _encoded(self.runs.to_csv(index=False))

    def markdown(self, remarks: Sequence[str] = (), sections: Sequence[str] = ()) -> bytes:
        """The summary as a page, with remarks, and sections below these."""
        return page(self.title, [self.summary, *map(sentence, remarks), *sections])

    @property
    def summary(self) -> str:
        """The points as a Markdown table."""
        return as_markdown(summarise(self.runs, self.varying, self.quantities))

    def draw(self, files: Sequence[Sequence[Path]], plots: Sequence[Plot] | None = None) -> None:
        """Draw some plots, by default its own ones; `files`: those of each."""
        if not (plots := self.plots if plots is None else plots):
            return
        # Only here: a batch without figures need not wait for Matplotlib.
        from snakemake_kochi.tables.figure import draw

        note = " ".join(sentence(each.partition(";")[0]) for each in self.lacking)
        for plot, own in zip(plots, files, strict=True):
            title = f"{self.title}: {plot.name}"
            draw(self.runs, self.parameters, plot, self.quantities, title, own, note)


def sentence(remark: str) -> str:
    return f"{remark[0].upper()}{remark[1:]}."


def page(title: str, parts: Sequence[str]) -> bytes:
    """Markdown with a title."""
    return _encoded("\n\n".join([f"# {title}", *parts]) + "\n")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# ---- the table


def table_of(
    runs: Sequence[RecordedRun],
    found: Sequence[Mapping[str, str]],
    metrics: Sequence[str],
    files: Sequence[object],
) -> tuple[pandas.DataFrame, list[str]]:
    """The table of some runs, and remarks; `found`: what the metrics of each match in its output,
    which `files` name.

    The columns are the parameters as texts (1.10 is not 1.1), `duplicate`, `run_machine`,
    `run_node`, `run_started`, `run_seconds`, and the metrics (see `as_numbers`); and
    `run_warnings`, if a node was not quiet.
    """
    table = pandas.DataFrame([run.parameters for run in runs], dtype=object)
    # Of a sub-parameter that only some points have.
    table = table.fillna("")
    table[DUPLICATE] = [run.duplicate for run in runs]
    table["run_machine"] = [run.machine for run in runs]
    for column, value in (("run_node", "node"), ("run_started", "started"), (SECONDS, "seconds")):
        table[column] = [run[value] for run in runs]
    remarks = []
    for name in metrics:
        table[name], said = as_numbers(name, [each.get(name) for each in found], files)
        remarks += said
    if any(run["warnings"] for run in runs):
        table[WARNINGS] = [run["warnings"] or "" for run in runs]
    return table, remarks


def as_numbers(
    name: str, matches: Sequence[str | None], files: Sequence[object]
) -> tuple[pandas.Series[Any], list[str]]:
    """What a metric matches in each run as a column, and remarks; `files` name the outputs.

    If at least half of the texts are numbers, the column is numeric, and each other text is a
    missing value with a remark: one misprint must not hide all other measurements. Else the texts
    stay.
    """
    texts = pandas.Series(list(matches), dtype=object)
    found = pandas.to_numeric(texts, errors="coerce")
    lost = found.isna() & texts.notna() & (texts.astype(str).str.lower() != "nan")
    count = int(lost.sum())
    if 2 * count > texts.notna().sum():
        return texts, []
    if not count:
        return found, []
    shown = [f"{texts[index][:60]!r} in {files[index]}" for index in texts.index[lost][:_SHOWN]]
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    are = "is no number, so its value is" if count == 1 else "are no numbers, so their values are"
    return found, [f"metric '{name}': {', '.join(shown)}{more} {are} missing"]


def summarise(
    runs: pandas.DataFrame, varying: Sequence[str], quantities: Mapping[str, Quantity]
) -> pandas.DataFrame:
    """One row per point.

    The columns are the varying parameters, the number of runs, and the median, the minimum and the
    maximum of each measurement over the duplicates, with its unit: `time median (ms)`.
    """
    keys = list(varying)
    grouped = runs.groupby(keys, sort=False, dropna=False) if keys else runs.groupby(lambda _: 0)
    columns: dict[str, Any] = {"(runs)": grouped.size()}
    for name in runs.columns[runs.columns.get_loc(SECONDS) :]:
        if not pandas.api.types.is_numeric_dtype(runs[name]) or runs[name].isna().all():
            continue
        # The name of SECONDS says its unit.
        unit = quantities[name].unit if name in quantities and name != SECONDS else ""
        for kind in ("median", "min", "max"):
            columns[f"{name} {kind}{f' ({unit})' if unit else ''}"] = getattr(grouped[name], kind)()
    return pandas.DataFrame(columns).reset_index(drop=not keys)


def as_markdown(summary: pandas.DataFrame) -> str:
    """A summary as a Markdown table."""
    # As texts: numbers would be cut to six digits, also a count of nanoseconds.
    # A bar in a unit would begin another column.
    columns = {str(name).replace("|", "\\|"): summary[name].map(_readable) for name in summary}
    table: str = pandas.DataFrame(columns).to_markdown(
        index=False, disable_numparse=True, stralign="right"
    )
    return table


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


def without_value(metrics: Mapping[str, str], found: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """The metrics that match nothing in some runs."""
    for name, expression in metrics.items():
        if count := sum(name not in each for each in found):
            yield f"metric `{name}` has no value in {count} of {len(found)} runs: `{expression}`"


def noise(runs: Sequence[RecordedRun]) -> Iterator[str]:
    """What disturbed runs: each kind with the number of its runs, and an example; and what is
    known in sum of those of which it is not known one by one."""
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
    if said := list(_noise_in_sum(sorted(unknown, key=_started), min(runs, key=_started))):
        yield f"of the {len(unknown)} runs that are too short to tell: {'; '.join(said)}"


def _started(run: RecordedRun) -> str:
    return run["started"] or ""


def _noise_in_sum(unknown: Sequence[RecordedRun], first: RecordedRun) -> Iterator[str]:
    if not unknown or (limit := unknown[-1]["load_limit"]) is None:
        return
    counted = [run for run in unknown if run["other_cpu_seconds"] is not None]
    seconds = sum((run["seconds"] or 0.0) + (run["environment_seconds"] or 0.0) for run in counted)
    if seconds >= _LEAST_SECONDS:
        used = sum(run["other_cpu_seconds"] for run in counted) / seconds
        if used > limit:
            jobs = max(run["other_jobs"] or 0 for run in unknown)
            named = f"{jobs} other {'job' if jobs == 1 else 'jobs'} of Kochi"
            kochi = f", up to {named} among them" if jobs else ""
            yield f"other processes used {used:.1f} CPUs in sum{kochi}"
    if (first["load"] or 0.0) > limit:
        cpus = "" if first["threads"] is None else f" on {first['threads']} CPUs"
        last = unknown[-1]["load"]
        after = "" if last is None else f", {last:g} when the last one did"
        yield f"the load average was {first['load']:g}{cpus} when the first run began{after}"
