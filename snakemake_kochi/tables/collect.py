"""The table and the figures of a batch in `results/`, also of one that is not complete."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from pandas import to_numeric

from snakemake_kochi.artifacts.record import read_record, why_edited
from snakemake_kochi.errors import ConfigError, DamagedFileError, PhaseError
from snakemake_kochi.files import answered
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.phases.outputs import own_output
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.tables.records import Metrics, RecordedRun, compiled
from snakemake_kochi.tables.report import (
    Report,
    noise,
    page,
    sentence,
    skipped,
    table_of,
    without_value,
)

# On the terminal; the Markdown has more.
_MOST_REASONS = 4
_MOST_LINES = 3
_MOST_IN_MARKDOWN = 50
_MOST_NAMED = 3  # of the runs that share a reason


@dataclass(frozen=True)
class Run:
    """A run and its files. `captured`: the artifact with its output, if any; `files`: all
    artifacts, by destination."""

    point: Point
    record: Path
    captured: Path | None
    files: Mapping[str, Path] = FrozenDict()


@dataclass(frozen=True)
class LeftOut:
    """Why a run has no result, or why the one that it has is `stale`.

    `output`: the last lines that it, or the phase for which it waited, printed.
    """

    reason: str
    output: Sequence[str] = ()
    stale: bool = False


@dataclass(frozen=True)
class Target:
    """The files of a batch; `figures`: those of each of its plots, in several formats."""

    table: Path
    markdown: Path
    figures: tuple[tuple[Path, ...], ...]


def collect(
    grid: Grid,
    file: str,
    runs: Sequence[Run],
    target: Target,
    left_out: Mapping[str, LeftOut] | None = None,
) -> None:
    """Write the table and the figures of a batch; `file` is that of its experiment.

    `left_out`: of an incomplete batch, the runs without a result or with a stale one, by their
    records. The files then say so, and get an old date: Snakemake takes them for out of date, and
    the next run makes them from all results. Without any result, an older table stays.

    Of a complete batch, raises PhaseError, and writes nothing, when a metric matches in none of the
    runs, or when a result was edited.
    """
    is_whole, left_out = left_out is None, left_out or {}
    edited = _edited(runs, left_out)
    begin = f"{file}: batch {grid.batch}: "
    if is_whole and edited:
        are = "result is" if len(edited) == 1 else "results are"
        why = next(iter(edited.values())).reason
        raise PhaseError(f"{begin}{len(edited)} {are} not as the run wrote it: {why}")
    left_out = {**left_out, **edited}
    there = [run for run in runs if str(run.record) not in left_out]
    missing = [(run, left_out[str(run.record)]) for run in runs if str(run.record) in left_out]
    count = [_count(missing, len(runs))] if missing else []
    sections = list(_without_result(grid, missing, len(runs)))
    also: list[str] = []
    target.markdown.parent.mkdir(parents=True, exist_ok=True)
    if there:
        report, told, lost = _report(grid, there, count)
        nowhere = [said for said, is_all in told.items() if is_all]
        if is_whole and nowhere:
            raise PhaseError(begin + "\n".join(nowhere), _hint(file))
        target.table.write_bytes(report.csv())
        target.markdown.write_bytes(report.markdown(report.remarks, sections))
        report.draw(target.figures)
        if is_whole:
            for said in (*told, *lost, *_without_numbers(report)):
                print(f"kochi: {begin}{said}", file=sys.stderr)
            return
        _date_back(target, there)
        also = [f"kochi: {each}" for each in (*nowhere, *lost)]
        made = f"table and plot of {'the other' if missing else 'all'} {len(there)}: "
        made += str(target.markdown)
    elif _has_table(target.markdown):
        made = f"the table of an earlier run stays: {target.markdown}"
    else:
        title = f"{grid.experiment} {grid.batch}"
        target.markdown.write_bytes(page(title, [*map(sentence, skipped(grid)), *sections]))
        made = f"see {target.markdown}"
    first = f"kochi: {begin}{'; '.join([*count, made])}"
    for line in (first, *_in_few_lines(grid, missing, len(runs)), *also):
        print(line, file=sys.stderr)


def _report(
    grid: Grid, runs: Sequence[Run], lacking: Sequence[str]
) -> tuple[Report, dict[str, bool], list[str]]:
    """The report of some runs; what is to be said of each metric without a match in some of them,
    and whether it has none at all; and values that are no numbers."""
    captured = [run.captured for run in runs]
    recorded, found = read_results([run.record for run in runs], captured, compiled(grid.metrics))
    table, lost = table_of(recorded, found, list(grid.metrics), captured)
    told = {}
    for name in grid.metrics:
        if without := [run for run, own in zip(runs, found, strict=True) if name not in own]:
            told[_told(grid, name, without, len(runs))] = len(without) == len(runs)
    remarks = (*skipped(grid), *noise(recorded), *lost, *without_value(grid.metrics, found))
    named = (grid.experiment, grid.batch)
    report = Report(*named, table, grid.varying, grid.quantities, grid.plots, remarks, lacking)
    return report, told, lost


# ---- files


def _edited(runs: Sequence[Run], left_out: Mapping[str, LeftOut]) -> dict[str, LeftOut]:
    """The other runs whose result is not what they wrote, by their records."""
    found = {}
    for run in runs:
        if (key := str(run.record)) not in left_out and (why := why_edited(run.record, run.files)):
            found[key] = LeftOut(why, stale=True)
    return found


def read_results(
    records: Sequence[Path], captured: Sequence[Path | None], metrics: Metrics
) -> tuple[list[RecordedRun], list[dict[str, str]]]:
    """Runs from the files of their records, and what metrics match in the artifacts with their
    outputs. Raises ConfigError if there are none, DamagedFileError, OSError."""
    runs, found = [], []
    for file, output in zip(records, captured, strict=True):
        record = read_record(file)
        try:
            run = RecordedRun.of(record, str(record.get("identity")))
        except DamagedFileError as error:
            raise DamagedFileError(f"{file}: {error.message}") from None
        if metrics and output is None:
            raise ConfigError(
                "metrics are read from the runs' standard output, but no artifact keeps it",
                "Add an artifact of type stdout to the batch.",
            )
        runs.append(run)
        content = answered(output.read_bytes) if metrics and output is not None else b""
        found.append(run.matches(content, metrics) if metrics else {})
    return runs, found


def _has_table(markdown: Path) -> bool:
    # Without a table the file lists only what was missing then, with the runs' output indented.
    with suppress(FileNotFoundError), markdown.open("rb") as lines:
        return any(line.startswith(b"|") for line in lines)
    return False


def _date_back(target: Target, runs: Sequence[Run]) -> None:
    oldest = min(run.record.stat().st_mtime for run in runs) - 1
    for file in (target.table, target.markdown, *chain.from_iterable(target.figures)):
        os.utime(file, (oldest, oldest))


# ---- for people


def _told(grid: Grid, name: str, without: Sequence[Run], of: int) -> str:
    """A metric that matches nothing in some of the runs, with the last lines of one of them."""
    expression, first = grid.metrics[name], without[0]
    is_all = len(without) == of
    verb, count = "matches in", f"{of - len(without)} of {of} runs only"
    if is_all:
        verb = verb if of > 1 else "does not match in"
        count = f"none of the {of} runs" if of > 1 else "the only run"
    assert first.captured is not None
    text = own_output(read_record(first.record), first.captured)
    shown = [line for line in text.splitlines() if line.strip()][-_MOST_LINES:]
    lines = "".join(f"\n    {line[:200]}" for line in shown)
    ends = f", whose run printed last:{lines}" if lines else ", whose run printed nothing"
    return f"metric '{name}' {verb} {count}: {expression}\nexample: {first.captured}{ends}"


def _without_numbers(report: Report) -> Iterator[str]:
    """About figures that somebody asked for, of metrics that are texts."""
    for plot in report.plots:
        texts = report.runs[plot.metric].dropna()
        if plot.path and len(texts) and to_numeric(texts, errors="coerce").isna().all():
            yield (
                f"metric '{plot.metric}' is no number in any run, but for example "
                f"{texts.iloc[0][:60]!r}, so plot '{plot.name}' is empty"
            )


def _hint(file: str) -> str:
    return (
        f"Correct the expression below metrics: in {file}, or move it to the batches that print "
        "it. Then type the same command again: it makes only the table and the plot."
    )


def _label(grid: Grid, point: Point) -> str:
    known = [name for name in grid.varying if name in point.parameters]
    values = [f"{name}={point.parameters[name]}" for name in known]
    return ", ".join([*values, f"duplicate {point.duplicate}"])


def _names(grid: Grid, runs: Sequence[Run], of: int) -> str:
    """Some of the `of` runs of a batch."""
    if len(runs) == of > _MOST_NAMED:
        return f"all {of} runs"
    names = "; ".join(_label(grid, run.point) for run in runs[:_MOST_NAMED])
    return names if len(runs) <= _MOST_NAMED else f"{names} and {len(runs) - _MOST_NAMED} more"


def _count(missing: Sequence[tuple[Run, LeftOut]], of: int) -> str:
    stale = sum(left_out.stale for _, left_out in missing)
    absent = len(missing) - stale
    have, also = ("has" if count == 1 else "have" for count in (absent or stale, stale))
    if not absent:
        return f"{stale} of {of} runs {have} a stale result"
    and_stale = f", and {stale} {also} a stale one" if stale else ""
    return f"{absent} of {of} runs {have} no result{and_stale}"


def _without_result(grid: Grid, missing: Sequence[tuple[Run, LeftOut]], of: int) -> Iterator[str]:
    """Parts of the Markdown: a section of each kind."""
    for stale, title in ((False, "Runs without a result"), (True, "Runs with a stale result")):
        of_kind = [each for each in missing if each[1].stale == stale]
        if of_kind:
            yield f"## {title}: {len(of_kind)}"
        for (reason, _), (runs, output) in list(_by_reason(of_kind).items())[:_MOST_IN_MARKDOWN]:
            yield f"**{_names(grid, runs, of)}**: {reason}"
            if output:
                # Indented, and not in a fence, because it may contain such a line itself.
                yield "\n".join(f"    {line}" for line in output)


def _in_few_lines(grid: Grid, missing: Sequence[tuple[Run, LeftOut]], of: int) -> Iterator[str]:
    """For the terminal."""
    groups = _by_reason(missing)
    for (reason, stale), (runs, output) in list(groups.items())[:_MOST_REASONS]:
        yield f"    {_names(grid, runs, of)}: {'stale: ' if stale else ''}{reason}"
        yield from (f"        {line[:200]}" for line in list(output)[-_MOST_LINES:])
    if len(groups) > _MOST_REASONS:
        rest = sum(len(runs) for runs, _ in list(groups.values())[_MOST_REASONS:])
        yield f"    and {rest} more"


def _by_reason(
    missing: Sequence[tuple[Run, LeftOut]],
) -> Mapping[tuple[str, bool], tuple[list[Run], Sequence[str]]]:
    """The runs that share a reason, and whether they are stale, with the first one's output."""
    runs: dict[tuple[str, bool], list[Run]] = defaultdict(list)
    output: dict[tuple[str, bool], Sequence[str]] = {}
    for run, left_out in missing:
        key = (left_out.reason, left_out.stale)
        runs[key].append(run)
        output.setdefault(key, left_out.output)
    return {key: (found, output[key]) for key, found in runs.items()}
