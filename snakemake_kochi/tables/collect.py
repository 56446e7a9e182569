"""The table and the figures of a batch: of all its runs, or of those with a result."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pandas import to_numeric

from snakemake_kochi.artifacts.record import why_edited
from snakemake_kochi.errors import PhaseError
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.grid import Grid, Point
from snakemake_kochi.tables.measurements import (
    WARNINGS,
    Surroundings,
    Unmatched,
    as_markdown,
    parameters_in,
    read_runs,
    summarise,
)

# On the terminal; the Markdown has more.
_MOST_REASONS = 4
_MOST_LINES = 3
_MOST_IN_MARKDOWN = 50
# Kinds of warnings that are not known of each run.
_OF_PROCESSES = ("load", "users", "memory_pressure")
_LEAST_SECONDS = 1.0  # of runs in sum, to say something about them
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


def collect(grid: Grid, file: str, runs: Sequence[Run], target: Target) -> None:
    """Write the table and the figures of all runs of a batch; `file` is that of its experiment.

    Raises PhaseError, and writes nothing, when a metric matches in none of the runs, or when a
    result was edited: the end of the run then makes the table of the others.
    """
    if edited := _edited(runs, {}):
        are = "result is" if len(edited) == 1 else "results are"
        raise PhaseError(
            f"{file}: batch {grid.batch}: {len(edited)} {are} not as the run wrote it: "
            f"{next(iter(edited.values())).reason}"
        )
    frame, unmatched, lost, beside = _read(grid, runs)
    if nowhere := [each for each in unmatched if each.is_all]:
        said = "\n".join(_told(each) for each in nowhere)
        raise PhaseError(f"{file}: batch {grid.batch}: {said}", _hint(file))
    _write(grid, frame, target, [*_noise(frame, beside), *_remarks(unmatched, lost)])
    for said in (*map(_told, unmatched), *lost, *_without_numbers(grid, frame)):
        print(f"kochi: {file}: batch {grid.batch}: {said}", file=sys.stderr)


def collect_what_is_there(
    grid: Grid,
    file: str,
    runs: Sequence[Run],
    left_out: Mapping[str, LeftOut],
    target: Target,
) -> None:
    """Write the table and the figures of an incomplete batch, and say so.

    `left_out`: the runs without a result or with a stale one, by their records. The files get an
    old date. Snakemake then takes them for out of date, and the next run makes them from all
    results. Without any result, an older table stays.
    """
    left_out = {**left_out, **_edited(runs, left_out)}
    there = [run for run in runs if str(run.record) not in left_out]
    missing = [(run, left_out[str(run.record)]) for run in runs if str(run.record) in left_out]
    parts = list(_without_result(grid, missing, len(runs)))
    also: list[str] = []
    if there:
        frame, unmatched, lost, beside = _read(grid, there)
        note = f"{_count(missing, len(runs))}." if missing else ""
        remarks = [*_noise(frame, beside), *_remarks(unmatched, lost)]
        _write(grid, frame, target, remarks, note, parts)
        _date_back(target, there)
        what = f"table and plot of {'the other' if missing else 'all'} {len(there)}"
        made = f"{what}: {target.markdown}"
        also = [f"kochi: {_told(each)}" for each in unmatched if each.is_all]
        also += [f"kochi: {each}" for each in lost]
    elif _has_table(target.markdown):
        made = f"the table of an earlier run stays: {target.markdown}"
    else:
        target.markdown.parent.mkdir(parents=True, exist_ok=True)
        target.markdown.write_bytes(_text(grid, [*_skipped(grid), *parts]))
        made = f"see {target.markdown}"
    begin = f"kochi: {file}: batch {grid.batch}: "
    said = f"{_count(missing, len(runs))}; {made}" if missing else made
    print(begin + said, file=sys.stderr)
    for line in (*_in_few_lines(grid, missing, len(runs)), *also):
        print(line, file=sys.stderr)


# ---- files


def _edited(runs: Sequence[Run], left_out: Mapping[str, LeftOut]) -> dict[str, LeftOut]:
    """The other runs whose result is not what they wrote, by their records."""
    found = {}
    for run in runs:
        if (key := str(run.record)) not in left_out and (why := why_edited(run.record, run.files)):
            found[key] = LeftOut(why, stale=True)
    return found


def _read(
    grid: Grid, runs: Sequence[Run]
) -> tuple[Any, list[Unmatched], list[str], list[Surroundings]]:
    captured = [run.captured for run in runs if run.captured is not None]
    return read_runs([run.record for run in runs], captured, grid.metrics)


def _write(
    grid: Grid,
    frame: Any,
    target: Target,
    remarks: Sequence[str],
    note: str = "",
    sections: Sequence[str] = (),
) -> None:
    # Snakemake makes it only for the rule, and artifacts may be elsewhere.
    target.table.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(target.table, index=False)
    summary = summarise(frame, grid.varying, grid.quantities)
    parts = [as_markdown(summary), *_skipped(grid), *remarks, *sections]
    target.markdown.write_bytes(_text(grid, parts))
    if not grid.plots:
        return
    # Only here: a batch without metrics need not wait for Matplotlib.
    from snakemake_kochi.tables.figure import draw

    for plot, files in zip(grid.plots, target.figures, strict=True):
        title = f"{_title(grid)}: {plot.name}"
        draw(frame, parameters_in(frame), plot, grid.quantities, title, files, note)


def _skipped(grid: Grid) -> Iterator[str]:
    """The number of skipped points for each reason."""
    found = list(grid.skipped_by_reason.items())
    for reason, count in found[:_MOST_IN_MARKDOWN]:
        yield f"Skipped: {count} {'point' if count == 1 else 'points'}: {reason}"
    if more := sum(count for _, count in found[_MOST_IN_MARKDOWN:]):
        yield f"Skipped for other reasons: {more} points"


def _noise(frame: Any, beside: Sequence[Surroundings]) -> Iterator[str]:
    """What disturbed runs: each kind with the number of its runs, and an example."""
    unknown = [each for each in beside if not each.is_known]
    if WARNINGS in frame:
        kinds: dict[str, list[str]] = defaultdict(list)
        for text in frame[WARNINGS]:
            for warning in filter(None, text.split("; ")):
                kind, _, said = warning.partition(": ")
                kinds[kind].append(said)
        known = dict.fromkeys(_OF_PROCESSES, len(beside) - len(unknown))
        found = "; ".join(
            f"{kind} in {len(each)} of {known.get(kind, len(beside))} ({each[0]})"
            for kind, each in kinds.items()
        )
        count = (frame[WARNINGS] != "").sum()
        aside = f" (other processes are not known for {len(unknown)})" if unknown else ""
        runs = f"{count} of {len(beside)} runs{aside}"
        yield f"The node was not quiet in {runs}: {found}. See `{WARNINGS}`."
    yield from _noise_in_sum(beside, unknown)


def _noise_in_sum(beside: Sequence[Surroundings], unknown: Sequence[Surroundings]) -> Iterator[str]:
    """What is known in sum of the runs of which it is not known one by one, if it is too much."""
    if not unknown or (limit := unknown[-1].limit) is None:
        return
    counted = [(each.cpu_seconds, each.seconds) for each in unknown if each.cpu_seconds is not None]
    seconds = sum(each for _, each in counted)
    said = []
    if seconds >= _LEAST_SECONDS:
        used = sum(each for each, _ in counted) / seconds
        if used > limit:
            jobs = max((each.jobs or 0 for each in unknown), default=0)
            named = f"{jobs} other {'job' if jobs == 1 else 'jobs'} of Kochi"
            kochi = f", up to {named} among them" if jobs else ""
            said.append(f"other processes used {used:.1f} CPUs in sum{kochi}")
    if (beside[0].load or 0.0) > limit:
        first, last = beside[0], beside[-1]
        cpus = "" if first.cpus is None else f" on {first.cpus} CPUs"
        after = "" if last.load is None else f", {last.load:g} when the last one did"
        said.append(f"the load average was {first.load:g}{cpus} when the first run began{after}")
    if said:
        yield f"Of the {len(unknown)} runs that are too short to tell: {'; '.join(said)}."


def _title(grid: Grid) -> str:
    return f"{grid.experiment} {grid.batch}"


def _text(grid: Grid, parts: Sequence[str]) -> bytes:
    whole = "\n\n".join([f"# {_title(grid)}", *parts])
    return f"{whole}\n".encode("utf-8", "surrogateescape")


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


def _told(unmatched: Unmatched) -> str:
    count = (
        (f"none of the {unmatched.of} runs" if unmatched.of != 1 else "the only run")
        if unmatched.is_all
        else f"{unmatched.of - unmatched.runs} of {unmatched.of} runs only"
    )
    verb = "does not match in" if unmatched.is_all and unmatched.of == 1 else "matches in"
    lines = "".join(f"\n    {line[:200]}" for line in unmatched.lines)
    ends = f", whose run printed last:{lines}" if lines else ", whose run printed nothing"
    return (
        f"metric '{unmatched.metric}' {verb} {count}: {unmatched.expression}\n"
        f"example: {unmatched.example}{ends}"
    )


def _without_numbers(grid: Grid, frame: Any) -> Iterator[str]:
    """About figures that somebody asked for, of metrics that are texts."""
    for plot in grid.plots:
        texts = frame[plot.metric].dropna()
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


def _remarks(unmatched: Sequence[Unmatched], lost: Sequence[str]) -> Iterator[str]:
    for said in lost:
        yield f"{said[0].upper()}{said[1:]}."
    for each in unmatched:
        yield (
            f"Metric `{each.metric}` has no value in {each.runs} of {each.of} runs: nothing that "
            f"they printed matches `{each.expression}`."
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
