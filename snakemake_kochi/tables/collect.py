"""The table and the figures of a batch in `results/`, also of one that is not complete."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from humanfriendly.text import pluralize

from snakemake_kochi.artifacts.record import read_record, why_edited
from snakemake_kochi.errors import DamagedFileError, PhaseError
from snakemake_kochi.library.files import Place
from snakemake_kochi.library.looks import Look
from snakemake_kochi.phases.outputs import own_output
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.plots import FileMetric
from snakemake_kochi.tables.metrics import in_files
from snakemake_kochi.tables.records import RecordedRun
from snakemake_kochi.tables.report import Report, report_of, sentence, skipped

_MOST_LINES = 3  # of the output of a run
_MOST_IN_MARKDOWN = 50  # points


def collect(
    grid: Grid,
    file: str,
    runs: Sequence[Place],
    table: Path,
    figures: Sequence[Sequence[Path]],
    left_out: Mapping[str, bool] | None = None,
    looked: Look | None = None,
) -> None:
    """Write the table of a batch, its Markdown beside it, and the figures, each in several formats;
    `file` is that of its experiment.

    `left_out`: of an incomplete batch, the runs without a result or with a stale one, by their
    records, and whether that is stale. The files then say so, and get an old date: Snakemake takes
    them for out of date, and the next run makes them from all results. Without any result, an older
    table stays. `looked`: of a batch with `repeat`, the last look, for the Markdown.

    Of a complete batch, raises PhaseError, and writes nothing, when a metric matches in none of the
    runs, or when a result was edited.
    """
    is_whole, left_out = left_out is None, left_out or {}
    begin, markdown = f"{file}: batch {grid.batch}: ", table.with_suffix(".md")
    there = [run for run in runs if str(run.record) not in left_out]
    stale = [left_out[str(run.record)] for run in runs if str(run.record) in left_out]
    count = [_count(stale, len(runs))] if stale else []
    why = f"to see why, type: {shlex.join(['kochi', 'show', 'batch', file, grid.batch])}"
    table.parent.mkdir(parents=True, exist_ok=True)
    also: Sequence[str] = ()
    if there:
        lacking = [f"{each}; {why}" for each in count]
        report = read_report(begin, grid, there, lacking, is_whole=is_whole)
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
        markdown.write_bytes(report.markdown(sections=[*_repetition(grid, looked)]))
        oldest = min(run.record.stat().st_mtime for run in there) - 1
        if not is_whole:
            os.utime(table, (oldest, oldest))  # an interrupt may come while a figure is drawn
        report.draw(figures)
        if is_whole:
            for said in (*told.values(), *report.lost):
                print(f"kochi: {begin}{said}", file=sys.stderr)
            made = ", ".join([str(markdown), *(plot[0].name for plot in figures)])
            number = pluralize(len(there), "run")
            print(f"kochi: {begin}table and plot of {number}: {made}", file=sys.stderr)
            return
        for each in (markdown, *chain.from_iterable(figures)):
            os.utime(each, (oldest, oldest))
        also = [f"kochi: {each}" for each in (*nowhere, *report.lost)]
        count.append(
            f"table and plot of {'the other' if stale else 'all'} {len(there)}: {markdown}"
        )
    else:
        count += [f"the table of an earlier run stays: {markdown}"] if table.exists() else []
    also = [*([f"kochi: {why}"] if stale else []), *also]
    for line in (f"kochi: {begin}{'; '.join(count)}", *also):
        print(line, file=sys.stderr)


def read_report(
    begin: str, grid: Grid, runs: Sequence[Place], lacking: Sequence[str], *, is_whole: bool
) -> Report:
    """The report of some runs of a batch, one row each. `begin`: of messages, `lacking`: see
    `Report`. Raises DamagedFileError; and, if the batch `is_whole`, PhaseError for an edited
    result."""
    whys = (why_edited(run.record, run.by_destination) for run in runs if is_whole)
    if edited := [*filter(None, whys)]:
        are = "result is" if len(edited) == 1 else "results are"
        raise PhaseError(f"{begin}{len(edited)} {are} not as the run wrote it: {edited[0]}")
    recorded = []
    for run in runs:
        try:
            recorded.append(RecordedRun.of(read_record(run.record), ""))
        except DamagedFileError as error:
            raise DamagedFileError(f"{run.record}: {error.message}") from None
    outputs = in_files([run.by_destination for run in runs])
    remarks = [*skipped(grid), *lacking]
    return report_of(
        *(recorded, outputs, grid), varying=grid.varying, remarks=remarks, lacking=lacking
    )


# ---- for people


def _told(report: Report, grid: Grid, runs: Sequence[Place], name: str) -> str:
    """A metric that finds nothing in some runs, and why, or the last lines of one of them."""
    without, of, metric = report.absent[name], len(runs), grid.metrics[name]
    number, why = next(iter(without.items()))
    run = runs[number]
    pairs = zip(run.point.artifacts, run.files, strict=True)
    if isinstance(metric, FileMetric):
        kept = (file for each, file in pairs if each.src == metric.file)
        found = f"has a value in {of - len(without)} of {of} runs only"
        found = "has no value in any run" if len(without) == of else found
        example = next((f"\nexample: {each}" for each in kept), "")
        return f"metric '{name}' {found}: {metric}: {why}{example}"
    verb, count = "matches in", f"{of - len(without)} of {of} runs only"
    if len(without) == of:
        verb = verb if of > 1 else "does not match in"
        count = f"none of the {of} runs" if of > 1 else "the only run"
    file = next(file for each, file in pairs if each.type == "stdout")
    text = own_output(read_record(run.record), file)
    shown = [line for line in text.splitlines() if line.strip()][-_MOST_LINES:]
    lines = "".join(f"\n    {line[:200]}" for line in shown)
    ends = f", whose run printed last:{lines}" if lines else ", whose run printed nothing"
    return f"metric '{name}' {verb} {count}: {metric}\nexample: {file}{ends}"


def _count(stale: Sequence[bool], of: int) -> str:
    absent = len(stale) - sum(stale)
    have, also = ("has" if count == 1 else "have" for count in (absent or len(stale), sum(stale)))
    if not absent:
        return f"{len(stale)} of {of} runs {have} a stale result"
    and_stale = f", and {sum(stale)} {also} a stale one" if any(stale) else ""
    return f"{absent} of {of} runs {have} no result{and_stale}"


def _repetition(grid: Grid, looked: Look | None) -> Iterator[str]:
    """A part of the Markdown: which points are not known well enough, and why."""
    if looked is not None:
        first, *others = looked.told(grid, _MOST_IN_MARKDOWN)
        yield "## Repetition"
        yield sentence(first)
        yield from ["\n".join(f"- {each}" for each in others)] if others else []
