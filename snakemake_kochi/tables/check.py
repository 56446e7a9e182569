"""Results checked against references: what is worse, by how much, how sure.

`kochi check` checks results in artifact branches, the target EXPERIMENT_BATCH_check those in
`results/`.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from snakemake_kochi.artifacts.published import published_name
from snakemake_kochi.errors import KochiError
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.plots import Reference
from snakemake_kochi.snapshot import toplevel
from snakemake_kochi.statistics.comparison import unpaired
from snakemake_kochi.statistics.intervals import Interval, medians_of
from snakemake_kochi.tables.branch import read_batch
from snakemake_kochi.tables.collect import Run, read_report
from snakemake_kochi.tables.compare import FASTER, words_of
from snakemake_kochi.tables.report import Report, markdown_table, page, sentence

WORSE, PERHAPS, EXPECTED, ACCEPTED = "worse", "perhaps worse", "as expected", "accepted"
NO_RESULT = "no result"


@dataclass(frozen=True)
class Checked:
    """A point and a reference. `now`: the median, in the unit of the metric; `change`: its ratio to
    the reference, with its interval. `verdict`: WORSE if the whole interval is beyond what does not
    matter, PERHAPS if only the estimate is, or if there is no interval."""

    metric: str
    point: Mapping[str, str]
    now: Interval
    reference: str
    change: Interval
    within: float
    verdict: str
    why: str = ""

    @property
    def name(self) -> str:
        return _named(self.metric, self.point)


def check(
    report: Report,
    references: Sequence[Reference],
    earlier: Callable[[str], Report],
    today: datetime.date,
) -> list[Checked]:
    """Each point with each of its references. `earlier`: the report of a commit.

    A point without a value is NO_RESULT, and so is a reference without a point. Raises KochiError
    for a metric without numbers, or with numbers that have no ratio.
    """
    found: list[Checked] = []
    for reference in references:
        count = len(found)
        sides = [report] if reference.value is not None else [report, earlier(reference.commit)]
        own, *others = (dict(_points(each, reference)) for each in sides)
        for key, (point, now, values) in own.items():
            name = _named(reference.metric, point)
            logs = _logs(values, name)
            if reference.value is not None:
                change = _scaled(now, reference.value)
            elif key in others[0]:
                change = unpaired(_logs(others[0][key][2], f"{name} in {reference.named}"), logs)
            else:
                continue
            is_known = not math.isnan(change.estimate)
            verdict = _verdict(report, reference, change) if is_known else NO_RESULT
            why = ""
            if verdict == WORSE and reference.until is not None:
                why = f"{reference.reason} (until {reference.until})"
                verdict = ACCEPTED if today <= reference.until else WORSE
            found.append(
                Checked(
                    *(reference.metric, point, now, reference.named, change),
                    *(reference.within, verdict, why),
                )
            )
        if len(found) == count:
            nothing = Interval(math.nan, None, None, 0)
            point = {name: "|".join(values) for name, values in reference.where.items()}
            given = (reference.metric, point, nothing, reference.named, nothing, reference.within)
            found.append(Checked(*given, NO_RESULT))
    return found


def check_results(grid: Grid, file: str, runs: Sequence[Run], output: Path) -> bool:
    """Check results in the working directory, print the page, and write `output`, JUnit XML;
    whether one is worse. `file`: of the experiment. Raises KochiError as `check` does."""
    repository = toplevel(Path.cwd())
    report = read_report(f"{file}: batch {grid.batch}: ", grid, runs, (), is_whole=True)
    name = published_name(repository, grid.machine)
    recorded = [replace(run, published_as=name) for run in report.recorded]
    report = replace(report, recorded=recorded)

    def earlier(commit: str) -> Report:
        return read_batch(repository, file, grid.batch, commit)

    checked = check(report, report.references, earlier, datetime.date.today())
    output.write_bytes(junit(checked, report.title))
    sys.stderr.buffer.write(as_page(checked, report))
    return is_worse(checked)


# as it is named, its median now, and what counts of it: runs, or medians of allocations
_Point = tuple[dict[str, str], Interval, list[float]]


def _points(report: Report, reference: Reference) -> Iterator[tuple[tuple[str, ...], _Point]]:
    """The points of a reference by the name under which results of the machine are published, and
    the values of all parameters."""
    column = report.numbers(reference.metric)
    measured = report.points.measured(column)
    for rows, interval in zip(report.points.rows, measured.intervals, strict=True):
        run = report.recorded[rows[0]]
        if reference.machine in ("", run.machine, run.published_as) and reference.has(
            run.parameters
        ):
            named = {name: str(report.runs[name].iloc[rows[0]]) for name in report.varying}
            key = (run.published_as, *(f"{k}={v}" for k, v in sorted(run.parameters.items())))
            units = [report.points.units[row] for row in rows]
            values = [float(column.iloc[row]) for row in rows]
            medians = list(medians_of(values, units).values())
            yield key, (named, interval, values if len(medians) < 2 else medians)


def _named(metric: str, point: Mapping[str, str]) -> str:
    values = ", ".join(f"{name}={value}" for name, value in point.items())
    return f"{metric}{f' ({values})' if values else ''}"


def _logs(values: Sequence[float], name: str) -> list[float]:
    known = [value for value in values if not math.isnan(value)]
    for value in known:
        if not 0 < value < math.inf:
            raise KochiError(f"{name}: a ratio needs values above 0, and one is {value:g}")
    return [*map(math.log, known)]


def _scaled(now: Interval, value: float) -> Interval:
    ends = [None if end is None else end / value for end in (now.lower, now.upper)]
    return Interval(now.estimate / value, ends[0], ends[1], now.n, now.note)


def _verdict(report: Report, reference: Reference, change: Interval) -> str:
    """A smaller time is better, and a larger rate; of what is neither, any difference is worse."""
    smaller, larger = words_of(reference.metric, report.unit(reference.metric))
    most, least = 1 + reference.within, 1 / (1 + reference.within)
    is_above = larger != FASTER and change.estimate > most
    is_below = smaller != FASTER and change.estimate < least
    if not is_above and not is_below:
        return EXPECTED
    end = change.lower if is_above else change.upper
    is_sure = end is not None and (end > most if is_above else end < least)
    return WORSE if is_sure else PERHAPS


def is_worse(checked: Sequence[Checked]) -> bool:
    """Whether a point is, or no reference has a result."""
    verdicts = {point.verdict for point in checked}
    return WORSE in verdicts or verdicts == {NO_RESULT}


def as_page(checked: Sequence[Checked], report: Report) -> bytes:
    """The checks as a Markdown table, with the remarks of the report."""
    rows = [
        [
            point.name,
            "" if point.verdict == NO_RESULT else f"{point.now.estimate:.5g}",
            point.reference,
            change(point.change),
            f"{point.verdict}{f': {point.why}' if point.why else ''}",
        ]
        for point in checked
    ]
    table = markdown_table(["metric", "now", "reference", "change", "verdict"], rows)
    return page(f"{report.title}: checked", [table, *map(sentence, report.remarks)])


def junit(found: Sequence[Checked], title: str) -> bytes:
    """The checks as a suite of JUnit XML, as continuous integration reads it."""
    count = sum(each.verdict == WORSE for each in found)
    suite = ElementTree.Element(
        "testsuite", name=title, tests=str(len(found)), failures=str(count), errors="0"
    )
    for each in found:
        case = ElementTree.SubElement(suite, "testcase", classname=title, name=each.name)
        said = f"{change(each.change)} of {each.reference}: {each.verdict}"
        if each.verdict == WORSE:
            ElementTree.SubElement(case, "failure", message=said).text = each.why
        elif each.verdict in (ACCEPTED, NO_RESULT):
            ElementTree.SubElement(case, "skipped", message=each.why or each.verdict)
        ElementTree.SubElement(case, "system-out").text = said
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text


def change(ratio: Interval) -> str:
    """A ratio as a difference in per cent, with its interval."""
    if math.isnan(ratio.estimate):
        return ""
    ends = [f"{100 * (end - 1):+.3g}" for end in (ratio.lower, ratio.upper) if end is not None]
    said = f"{100 * (ratio.estimate - 1):+.3g} %"
    return f"{said} ({' to '.join(ends)})" if ends else said
