"""Results checked against references: what is worse, by how much, how sure.

`kochi check` checks results in artifact branches, the target EXPERIMENT_BATCH_check those in
`results/`.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from humanfriendly.text import concatenate

from snakemake_kochi.artifacts.published import published_name
from snakemake_kochi.errors import KochiError
from snakemake_kochi.library.files import Place
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.plots import MACHINE, Reference
from snakemake_kochi.quantities import percent
from snakemake_kochi.snapshot import toplevel
from snakemake_kochi.statistics.comparison import of_medians
from snakemake_kochi.statistics.intervals import Interval
from snakemake_kochi.tables.branch import read_batch
from snakemake_kochi.tables.collect import read_report
from snakemake_kochi.tables.compare import FASTER, NOT_COMPARABLE, words_of
from snakemake_kochi.tables.report import Report, markdown_table, page, sentence

WORSE, PERHAPS, EXPECTED, ACCEPTED = "worse", "perhaps worse", "as expected", "accepted"
TOO_FEW, NO_RESULT = "too few runs", "no result"
_SHORT = 12  # digits of a commit
_MOST_COMMITS = 3


@dataclass(frozen=True)
class Checked:
    """A point and a reference. `now` and `before`: the medians, in the unit of the metric; of a
    reference with a value `before` is that; `change`: their ratio, with its interval. `verdict`:
    WORSE if the whole interval is beyond what does not matter, PERHAPS if only the estimate is,
    TOO_FEW if there is no interval, NOT_COMPARABLE if only one side has several allocations or
    nodes. `fails`: for this the exit status is 1."""

    metric: str
    point: Mapping[str, str]
    now: Interval
    reference: str
    before: Interval
    change: Interval
    within: float
    verdict: str
    fails: bool
    why: str = ""

    @property
    def name(self) -> str:
        return _named(self.metric, self.point)

    @property
    def expected(self) -> str:
        """The reference for people: a value, or a commit and the median of its results."""
        return f"{self.before.estimate:.5g} ({self.reference})" if self.before.n else self.reference


_NOTHING = Interval(math.nan, None, None, 0)


def check(
    report: Report,
    references: Sequence[Reference],
    earlier: Callable[[str], Report],
    today: datetime.date,
) -> list[Checked]:
    """Each point with each of its references. `earlier`: the report of a commit.

    A point without a value, now or in the commit, is NO_RESULT, and so is a reference without a
    point. Of a reference for another machine, the commit is not read. Raises KochiError for a
    metric without numbers, or with numbers that have no ratio.
    """
    machines = {"", *report.machines, *(machine for machine, _ in report.missing)}
    found = []
    for each in references:
        is_read = each.value is None and each.machine in machines
        before = earlier(each.commit) if is_read else None
        found += _Check(report, each, before, today).points()
    if any(each.verdict != NO_RESULT for each in found):
        return found
    return [replace(each, fails=True) for each in found]


@dataclass(frozen=True)
class _Check:
    """The points of one reference; `before`: the report of its commit."""

    report: Report
    reference: Reference
    before: Report | None
    today: datetime.date

    def points(self) -> list[Checked]:
        found = [*self._measured(), *self._missing()]
        if found:
            return found
        where = {name: "|".join(values) for name, values in self.reference.where.items()}
        is_elsewhere = self.reference.machine not in {"", *self.report.machines}
        why = f"none of {self.reference.machine}" if is_elsewhere else "no such point"
        return [self._checked(where, why=why, fails=not is_elsewhere)]

    def _measured(self) -> Iterator[Checked]:
        if self.before is None:
            for _, point in _points(self.report, self.reference, ()):
                yield self._compared(point, None)
            return
        # A parameter that only one of them has tells points apart only where it has several values.
        names = {*self.report.varying, *self.before.varying}
        names |= _parameters(self.report) & _parameters(self.before)
        now = _points(self.report, self.reference, names)
        then = dict(_points(self.before, self.reference, names))
        published = {run.published_as for run in self.before.recorded}
        for key, point in now:
            if key[0] in published:
                yield self._compared(point, then.get(key))

    def _missing(self) -> Iterator[Checked]:
        """The points of the batch that have no result now."""
        runs = (self.before or self.report).recorded
        for machine, parameters in self.report.missing:
            names = {run.published_as for run in runs if run.machine == machine}
            is_of_it = self.reference.machine in ("", machine, *names)
            is_of_it &= self.before is None or bool(names)
            if is_of_it and self.reference.has(parameters):
                values = {MACHINE: machine, **parameters}
                named = {name: values.get(name, "") for name in self.report.varying}
                yield self._checked(named, why="now")

    def _compared(self, now: _Point, then: _Point | None) -> Checked:
        if math.isnan(now.median.estimate):
            return self._checked(now.named, why="no value")
        if (value := self.reference.value) is not None:
            change = of_medians(Interval(value, value, value, now.median.n), now.median)
            return self._judged(now, Interval(value, None, None, 0), change)
        if then is None or math.isnan(then.median.estimate):
            return self._checked(now.named, now.median, why=f"in {self.reference.named}")
        change = of_medians(then.median, now.median)
        if (now.units > 1) != (then.units > 1):
            side = self.reference.named if now.units > 1 else "now"
            note = f"of {side}, all runs are in one allocation or on one node, else in several"
            change = replace(change, lower=None, upper=None, note=note)
            return self._judged(now, then.median, change, NOT_COMPARABLE)
        return self._judged(now, then.median, change)

    def _judged(
        self, now: _Point, before: Interval, change: Interval, without: str = TOO_FEW
    ) -> Checked:
        """A smaller time is better, and a larger rate; of what is neither, any change is worse.
        `without`: the verdict of a change without an interval."""
        metric, within = self.reference.metric, self.reference.within
        smaller, larger = words_of(metric, self.report.unit(metric))
        most, least = 1 + within, 1 / (1 + within)
        is_above = larger != FASTER and change.estimate > most
        is_beyond = is_above or (smaller != FASTER and change.estimate < least)
        reasons, verdict = [], EXPECTED
        if change.lower is None or change.upper is None:
            verdict = without
            reasons = [f"{'beyond' if is_beyond else 'within'} {percent(within)}, {change.note}"]
        elif is_beyond:
            is_sure = change.lower > most if is_above else change.upper < least
            verdict = WORSE if is_sure else PERHAPS
        fails = verdict == WORSE or (verdict == without and is_beyond)
        if fails and (until := self.reference.until) is not None:
            reasons.insert(0, f"{self.reference.reason} (until {until})")
            if self.today <= until:
                verdict, fails = ACCEPTED, False
        why = "; ".join(reasons)
        return self._checked(now.named, now.median, before, change, verdict, fails=fails, why=why)

    def _checked(
        self,
        point: Mapping[str, str],
        now: Interval = _NOTHING,
        before: Interval = _NOTHING,
        change: Interval = _NOTHING,
        verdict: str = NO_RESULT,
        *,
        why: str,
        fails: bool = True,
    ) -> Checked:
        of, within = self.reference, self.reference.within
        return Checked(
            *(of.metric, point, now, of.named, before, change, within, verdict, fails, why)
        )


def check_results(grid: Grid, file: str, runs: Sequence[Place], output: Path) -> bool:
    """Check results in the working directory, print the page, and write `output`, JUnit XML;
    whether one fails. `file`: of the experiment. Raises KochiError as `check` does."""
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
    return any(each.fails for each in checked)


@dataclass(frozen=True)
class _Point:
    """A point as it is named, its median, and the number of its allocations or nodes."""

    named: Mapping[str, str]
    median: Interval
    units: int


def _parameters(report: Report) -> set[str]:
    return {name for run in report.recorded for name in run.parameters}


def _points(
    report: Report, reference: Reference, names: Collection[str]
) -> Iterator[tuple[tuple[str, ...], _Point]]:
    """The points of a reference by the name under which results of the machine are published, and
    the values of some parameters. Raises KochiError."""
    column, points = report.numbers(reference.metric), report.points
    intervals = points.measured(column).intervals
    for rows, interval, units in zip(points.rows, intervals, points.unit_counts, strict=True):
        run = report.recorded[rows[0]]
        if reference.machine in ("", run.machine, run.published_as) and reference.has(
            run.parameters
        ):
            named = {name: str(report.runs[name].iloc[rows[0]]) for name in report.varying}
            for value in (float(column.iloc[row]) for row in rows):
                if value <= 0 or math.isinf(value):
                    name = _named(reference.metric, named)
                    raise KochiError(f"{name}: a ratio needs values above 0, and one is {value:g}")
            own = (f"{k}={v}" for k, v in sorted(run.parameters.items()) if k in names)
            yield (run.published_as, *own), _Point(named, interval, units)


def _named(metric: str, point: Mapping[str, str]) -> str:
    values = ", ".join(f"{name}={value}" for name, value in point.items())
    return f"{metric}{f' ({values})' if values else ''}"


def as_page(checked: Sequence[Checked], report: Report) -> bytes:
    """The checks as a Markdown table, with remarks and those of the report."""
    rows = [
        [
            point.name,
            "" if math.isnan(point.now.estimate) else f"{point.now.estimate:.5g}",
            point.expected,
            change(point.change),
            f"{point.verdict}{f': {point.why}' if point.why else ''}",
        ]
        for point in checked
    ]
    table = markdown_table(["metric", "now", "reference", "change", "verdict"], rows)
    remarks = map(sentence, remarks_on(checked, report))
    return page(f"{report.title}: checked", [table, *remarks])


def remarks_on(checked: Sequence[Checked], report: Report) -> Iterator[str]:
    """What to know of the checks: sentences as those of a report."""
    runs = sorted(report.recorded, key=lambda run: run.age, reverse=True)
    commits = dict.fromkeys(
        f"{(run['commit'] or 'unknown')[:_SHORT]}{' with changes' if run['dirty'] else ''}"
        for run in runs
    )
    named = concatenate([*commits][:_MOST_COMMITS])
    more = f" and {len(commits) - _MOST_COMMITS} more" if len(commits) > _MOST_COMMITS else ""
    yield f"the results are of the commit{'s' if len(commits) > 1 else ''} {named}{more}"
    if count := sum(each.verdict == TOO_FEW for each in checked):
        have = "1 point has" if count == 1 else f"{count} points have"
        yield f"{have} too few runs for an interval: a point needs {report.points.needed}"
    yield from report.remarks


def junit(found: Sequence[Checked], title: str) -> bytes:
    """The checks as a suite of JUnit XML, as continuous integration reads it: a failure is worse,
    an error could not be checked."""
    kinds = [_junit_kind(each) for each in found]
    suite = ElementTree.Element("testsuite", name=title, tests=str(len(found)))
    for name, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(kinds.count(kind)))
    for name, each, kind in zip(_names(found), found, kinds, strict=True):
        case = ElementTree.SubElement(suite, "testcase", classname=title, name=name)
        changed = change(each.change)
        since = f"{changed} of {each.expected}" if changed else each.expected
        said = f"{since}: {each.verdict}{f': {each.why}' if each.why else ''}"
        if kind:
            ElementTree.SubElement(case, kind, message=said)
        ElementTree.SubElement(case, "system-out").text = said
    text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text


def _names(found: Sequence[Checked]) -> Iterator[str]:
    """A name for each: that of the point, and what tells it from others of the same point."""
    points, taken = Counter(each.name for each in found), Counter[str]()
    for each in found:
        name = each.name if points[each.name] == 1 else f"{each.name}: {each.reference}"
        taken[name] += 1
        yield name if taken[name] == 1 else f"{name} ({taken[name]})"


def _junit_kind(each: Checked) -> str:
    if each.fails:
        return "failure" if each.verdict == WORSE else "error"
    return "skipped" if each.verdict not in (PERHAPS, EXPECTED) else ""


def change(ratio: Interval) -> str:
    """A ratio as a difference in per cent, with its interval."""
    if math.isnan(ratio.estimate):
        return ""
    ends = [f"{100 * (end - 1):+.3g}" for end in (ratio.lower, ratio.upper) if end is not None]
    said = f"{100 * (ratio.estimate - 1):+.3g} %"
    return f"{said} ({' to '.join(ends)})" if ends else said
