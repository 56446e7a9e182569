"""The table and the figures of a batch in `results/`, also of one that is not complete."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from humanfriendly.text import pluralize
from pandas import to_numeric

from snakemake_kochi.artifacts.record import read_record, why_edited
from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.library.files import BatchFiles
from snakemake_kochi.library.looks import Look
from snakemake_kochi.phases.outputs import own_output
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.project.plots import FileMetric
from snakemake_kochi.tables.metrics import in_files
from snakemake_kochi.tables.records import RecordedRun
from snakemake_kochi.tables.report import Report, page, report_of, sentence, skipped

# On the terminal; the Markdown has more.
_MOST_REASONS = 4
_MOST_LINES = 3
_MOST_IN_MARKDOWN = 50
_MOST_NAMED = 3  # of the runs that share a reason


@dataclass(frozen=True)
class Run:
    """A run and its files: its record, and all artifacts by destination."""

    point: Point
    record: Path
    files: Mapping[str, Path]


@dataclass(frozen=True)
class LeftOut:
    """Why a run has no result, or why the one that it has is `stale`.

    `output`: the last lines that it, or the phase for which it waited, printed.
    """

    reason: str
    output: Sequence[str] = ()
    stale: bool = False


def runs_of(files: BatchFiles, top: Path = Path()) -> list[Run]:
    """The runs of a batch in `results/` below a directory, whether they have ended or not."""
    return [
        Run(
            place.point,
            top / place.record,
            {dest: top / file for dest, file in place.by_destination.items()},
        )
        for place in files.places
    ]


def collect(
    grid: Grid,
    file: str,
    runs: Sequence[Run],
    table: Path,
    figures: Sequence[Sequence[Path]],
    left_out: Mapping[str, LeftOut] | None = None,
    looked: Look | None = None,
) -> None:
    """Write the table of a batch, its Markdown beside it, and the figures, each in several formats;
    `file` is that of its experiment.

    `left_out`: of an incomplete batch, the runs without a result or with a stale one, by their
    records. The files then say so, and get an old date: Snakemake takes them for out of date, and
    the next run makes them from all results. Without any result, an older table stays. `looked`: of
    a batch with `repeat`, the last look, for the Markdown.

    Of a complete batch, raises PhaseError, and writes nothing, when a metric matches in none of the
    runs, or when a result was edited.
    """
    is_whole, left_out = left_out is None, left_out or {}
    begin, markdown = f"{file}: batch {grid.batch}: ", table.with_suffix(".md")
    there = [run for run in runs if str(run.record) not in left_out]
    missing = [(run, left_out[str(run.record)]) for run in runs if str(run.record) in left_out]
    count = [_count(missing, len(runs))] if missing else []
    sections = [*_repetition(grid, looked), *_sections(grid, missing, len(runs))]
    table.parent.mkdir(parents=True, exist_ok=True)
    also: Sequence[str] = ()
    if there:
        report = read_report(begin, grid, there, count, is_whole=is_whole)
        told = {name: _told(report, grid, there, name) for name in report.absent}
        nowhere = [said for name, said in told.items() if len(report.absent[name]) == len(there)]
        if is_whole and nowhere:
            is_text = any(isinstance(grid.metrics[name], str) for name in report.absent)
            what = "expression" if is_text else "path or the column"
            raise PhaseError(
                begin + "\n".join(nowhere),
                f"Correct the {what} below metrics: in {file}, or move it to the batches that have "
                "it. Then type the same command again: it makes only the table and the plot.",
            )
        table.write_bytes(report.csv())
        markdown.write_bytes(report.markdown(sections=sections))
        oldest = min(run.record.stat().st_mtime for run in there) - 1
        if not is_whole:
            os.utime(table, (oldest, oldest))  # an interrupt may come while a figure is drawn
        report.draw(figures)
        if is_whole:
            for said in (*told.values(), *report.lost, *_without_numbers(report)):
                print(f"kochi: {begin}{said}", file=sys.stderr)
            made = ", ".join([str(markdown), *(plot[0].name for plot in figures)])
            number = pluralize(len(there), "run")
            print(f"kochi: {begin}table and plot of {number}: {made}", file=sys.stderr)
            return
        for each in (markdown, *chain.from_iterable(figures)):
            os.utime(each, (oldest, oldest))
        also = [f"kochi: {each}" for each in (*nowhere, *report.lost)]
        made = f"table and plot of {'the other' if missing else 'all'} {len(there)}: {markdown}"
    elif _has_table(markdown):
        made = f"the table of an earlier run stays: {markdown}"
    else:
        title = f"{grid.experiment} {grid.batch}"
        markdown.write_bytes(page(title, [*map(sentence, skipped(grid)), *sections]))
        made = f"see {markdown}"
    first = f"kochi: {begin}{'; '.join([*count, made])}"
    for line in (first, *_in_few_lines(grid, missing, len(runs)), *also):
        print(line, file=sys.stderr)


def read_report(
    begin: str, grid: Grid, runs: Sequence[Run], lacking: Sequence[str], *, is_whole: bool
) -> Report:
    """The report of some runs of a batch, one row each. `begin`: of messages, `lacking`: see
    `Report`. Raises DamagedFileError; and, if the batch `is_whole`, PhaseError for an edited
    result."""
    if is_whole and (edited := [why for run in runs if (why := why_edited(run.record, run.files))]):
        are = "result is" if len(edited) == 1 else "results are"
        raise PhaseError(f"{begin}{len(edited)} {are} not as the run wrote it: {edited[0]}")
    recorded = []
    for run in runs:
        try:
            recorded.append(RecordedRun.of(read_record(run.record), ""))
        except DamagedFileError as error:
            raise DamagedFileError(f"{run.record}: {error.message}") from None
    outputs = in_files([run.files for run in runs])
    skips = list(skipped(grid))
    return report_of(recorded, outputs, grid, varying=grid.varying, remarks=skips, lacking=lacking)


def _has_table(markdown: Path) -> bool:
    # Without a table the file lists only what was missing then, with the runs' output indented.
    with suppress(FileNotFoundError), markdown.open("rb") as lines:
        return any(line.startswith(b"|") for line in lines)
    return False


# ---- for people


def _told(report: Report, grid: Grid, runs: Sequence[Run], name: str) -> str:
    """A metric that finds nothing in some runs, and why, or the last lines of one of them."""
    without, of, metric = report.absent[name], len(runs), grid.metrics[name]
    number, why = next(iter(without.items()))
    if isinstance(metric, FileMetric):
        run = runs[number]
        kept = (run.files[each.dest] for each in run.point.artifacts if each.src == metric.file)
        found = f"has a value in {of - len(without)} of {of} runs only"
        found = "has no value in any run" if len(without) == of else found
        example = next((f"\nexample: {each}" for each in kept), "")
        return f"metric '{name}' {found}: {metric}: {why}{example}"
    verb, count = "matches in", f"{of - len(without)} of {of} runs only"
    if len(without) == of:
        verb = verb if of > 1 else "does not match in"
        count = f"none of the {of} runs" if of > 1 else "the only run"
    run = runs[number]
    file = next(run.files[each.dest] for each in run.point.artifacts if each.type == "stdout")
    text = own_output(read_record(run.record), file)
    shown = [line for line in text.splitlines() if line.strip()][-_MOST_LINES:]
    lines = "".join(f"\n    {line[:200]}" for line in shown)
    ends = f", whose run printed last:{lines}" if lines else ", whose run printed nothing"
    return f"metric '{name}' {verb} {count}: {metric}\nexample: {file}{ends}"


def _without_numbers(report: Report) -> Iterator[str]:
    """About figures that somebody asked for, of metrics that are texts."""
    for plot in report.plots:
        texts = report.runs[plot.metric].dropna()
        if plot.path and len(texts) and to_numeric(texts, errors="coerce").isna().all():
            yield (
                f"metric '{plot.metric}' is no number in any run, but for example "
                f"{texts.iloc[0][:60]!r}, so plot '{plot.name}' is empty"
            )


def _names(grid: Grid, runs: Sequence[Run], of: int) -> str:
    """Some of the `of` runs of a batch."""
    if len(runs) == of > _MOST_NAMED:
        return f"all {of} runs"
    labels = []
    for point in (run.point for run in runs[:_MOST_NAMED]):
        known = [name for name in grid.varying if name in point.parameters]
        values = [f"{name}={point.parameters[name]}" for name in known]
        labels.append(", ".join([*values, f"duplicate {point.duplicate}"]))
    more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
    return "; ".join(labels) + more


def _count(missing: Sequence[tuple[Run, LeftOut]], of: int) -> str:
    stale = sum(left_out.stale for _, left_out in missing)
    absent = len(missing) - stale
    have, also = ("has" if count == 1 else "have" for count in (absent or stale, stale))
    if not absent:
        return f"{stale} of {of} runs {have} a stale result"
    and_stale = f", and {stale} {also} a stale one" if stale else ""
    return f"{absent} of {of} runs {have} no result{and_stale}"


def _by_reason(missing: Sequence[tuple[Run, LeftOut]]) -> list[tuple[LeftOut, list[Run]]]:
    """The runs that share a reason, which has the first one's output."""
    groups: dict[tuple[str, bool], tuple[LeftOut, list[Run]]] = {}
    for run, why in missing:
        groups.setdefault((why.reason, why.stale), (why, []))[1].append(run)
    return list(groups.values())


def _repetition(grid: Grid, looked: Look | None) -> Iterator[str]:
    """A part of the Markdown: which points are not known well enough, and why."""
    if looked is not None:
        first, *others = looked.told(grid, _MOST_IN_MARKDOWN)
        yield "## Repetition"
        yield sentence(first)
        yield from ["\n".join(f"- {each}" for each in others)] if others else []


def _sections(grid: Grid, missing: Sequence[tuple[Run, LeftOut]], of: int) -> Iterator[str]:
    """Parts of the Markdown, one of each kind."""
    for stale, title in ((False, "Runs without a result"), (True, "Runs with a stale result")):
        if of_kind := [each for each in missing if each[1].stale == stale]:
            yield f"## {title}: {len(of_kind)}"
        for why, runs in _by_reason(of_kind)[:_MOST_IN_MARKDOWN]:
            yield f"**{_names(grid, runs, of)}**: {why.reason}"
            if why.output:
                # Indented, and not in a fence, because it may contain such a line itself.
                yield "\n".join(f"    {line}" for line in why.output)


def _in_few_lines(grid: Grid, missing: Sequence[tuple[Run, LeftOut]], of: int) -> Iterator[str]:
    """For the terminal."""
    groups = _by_reason(missing)
    for why, runs in groups[:_MOST_REASONS]:
        yield f"    {_names(grid, runs, of)}: {'stale: ' if why.stale else ''}{why.reason}"
        yield from (f"        {line[:200]}" for line in list(why.output)[-_MOST_LINES:])
    if rest := sum(len(runs) for _, runs in groups[_MOST_REASONS:]):
        yield f"    and {rest} more"
