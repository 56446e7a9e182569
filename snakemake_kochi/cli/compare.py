"""`kochi compare`: is one value of a parameter, recipe, machine or code faster than another one?"""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.options import json_option
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.cli.run_first import (
    Planned,
    experiment_to_run,
    planned,
    run_first,
    run_option,
)
from snakemake_kochi.cli.tables import FORMATS, at_option, machine_option, named_batch, whole_file
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.project.values import DEFAULT_BATCH
from snakemake_kochi.quantities import percent

if TYPE_CHECKING:
    from snakemake_kochi.tables.compare import Compared, Comparison
    from snakemake_kochi.tables.report import Report

_CODE = "code"
_RESULTS = "results"

metric_option = click.option(
    "--metric", metavar="NAME", help="By default the first one, else run_seconds."
)
page_option = click.option(
    *("-o", "--output"),
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to a file: a page, or with .png, .svg or .pdf a figure.",
)


@click.command()
@machine_option
@at_option
@click.option(
    "--by",
    metavar="NAME",
    help="What is compared: a parameter (also of a recipe), machine, or code: the parameter, else "
    "the code of the results. By default the only parameter with several values.",
)
@click.option(
    "--against",
    metavar="COMMIT",
    help="Compare with the results in this commit of an artifact branch.",
)
@click.option("--with", "other", metavar="BATCH", help="Compare with another batch of the file.")
@click.option(
    "--base",
    metavar="VALUE",
    help="The value with which the others are compared. By default the first one.",
)
@metric_option
@click.option(
    "--within",
    type=click.FloatRange(0, 100, max_open=True),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="A difference that does not matter.",
)
@click.option(
    "--accept",
    metavar="FACT",
    multiple=True,
    help="Compare although this differs: machine, cpu_model, kernel, governor, isolation, "
    "launcher, or a fact of the project, such as cc. May be given several times.",
)
@run_option
@page_option
@json_option
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", default=DEFAULT_BATCH)
def command(
    machine: str | None,
    commit: str | None,
    by: str | None,
    against: str | None,
    other: str | None,
    base: str | None,
    metric: str | None,
    within: float,
    accept: tuple[str, ...],
    is_run: bool,
    output: Path | None,
    as_json: bool,
    file: str,
    batch: str,
) -> int:
    """Compare the values of a parameter, point by point, with intervals: which is faster, by how
    much, how sure.

    The runs are those of `kochi table`: the newest ones in the artifact branches. Runs of the same
    duplicate are a pair.
    """
    if as_json and output is not None:
        raise click.UsageError("only one of --output and --json is possible")
    if sum(each is not None for each in (against, other, by)) > 1:
        raise click.UsageError(
            "--against and --with compare results, and --by the values of a parameter"
        )
    apart = _Apart.of(file, batch, commit, machine, against, other)
    if is_run:
        _check_words(file, batch, commit, machine, by, base, metric, apart, other)
        for each in (batch, *filter(None, [other])):
            if status := run_first(machine, file, each):
                return status
    from snakemake_kochi.tables.compare import compare, facts_of

    has_all_code = by == _CODE
    report = named_batch(file, batch, commit, machine, has_all_code)
    if has_all_code and _CODE in report.parameters:
        report = named_batch(file, batch, commit, machine, all_code=False)
    if apart is not None:
        report, column = apart.beside(report)
    else:
        column = _column(report, by)
    values = list(dict.fromkeys(report.runs[column].astype(str)))
    if len(values) == 1:
        raise KochiError(
            f"all results of {report.title} have {column} = {values[0]}: nothing to compare",
            f"To run the others, type: {shlex.join(['kochi', 'batch', file, batch])}",
        )
    _check_base(report.title, column, base, values)
    chosen = chosen_metric(report, metric)
    accepted = [each.removeprefix("fact.") for each in accept]
    known = facts_of(report) if accepted else ()
    for fact in accepted:
        if fact not in known:
            said = f"no run of {report.title} has a fact '{fact}', {nearest(fact, known)}"
            if not is_run:
                raise NameNotFoundError(said)
            remark(f"kochi: {said}")  # a reason to stop, but not after the runs
    found = compare(report, column, chosen, base or values[0], accepted, within / 100)
    if as_json:
        comparisons = [plain(dataclasses.asdict(each)) for each in found]
        print_json({"remarks": list(report.remarks), "comparisons": comparisons})
        return 0

    def draw(file: Path) -> None:
        # Only here: a text need not wait for Matplotlib.
        from snakemake_kochi.tables.comparison_figure import draw_ratios

        draw_ratios(found, _title(report, found), file)

    write_page(_page(report, found), output, draw)
    return 0


def write_page(text: bytes, output: Path | None, draw: Callable[[Path], None]) -> None:
    """Print a page, or write it to a file and say so, or `draw` a figure. Raises KochiError."""
    if output is None:
        click.echo(text, nl=False)
        return
    with whole_file(output) as beside:
        if output.suffix in FORMATS:
            draw(beside)
        else:
            beside.write_bytes(text)
    say(f"Wrote {output}")


@dataclass(frozen=True)
class _Apart:
    """Other results, with which those of the batch are compared: the first side or the second one;
    the `labels` of both. `read`: those of a batch may be run before."""

    read: Callable[[], Report]
    labels: tuple[str, str]
    is_first: bool

    @classmethod
    def of(
        cls,
        file: str,
        batch: str,
        commit: str | None,
        machine: str | None,
        against: str | None,
        other: str | None,
    ) -> _Apart | None:
        """Those in the commit `against`, or of the batch `other`. Raises KochiError."""
        if against is not None:
            labels = (_label(against), "now" if commit is None else _label(commit))
            then = named_batch(file, batch, against, machine, all_code=False)
            return cls(lambda: then, labels, True)
        if other is not None:
            read = functools.partial(named_batch, file, other, commit, machine, all_code=False)
            return cls(read, (batch, other), False)
        return None

    def beside(self, report: Report) -> tuple[Report, str]:
        sides = (self.read(), report) if self.is_first else (report, self.read())
        return _both(*sides, self.labels)


def _check_words(
    file: str,
    batch: str,
    commit: str | None,
    machine: str | None,
    by: str | None,
    base: str | None,
    metric: str | None,
    apart: _Apart | None,
    other: str | None,
) -> None:
    """What can be said of the command line before the batch has run. Raises KochiError."""
    from snakemake_kochi.tables.branch import CODE, PUBLISHED_AS

    experiment = experiment_to_run(file, batch, commit)
    if experiment is not None and other is not None:
        experiment.batch(other)
    if experiment is None or (shown := planned(experiment, batch, machine)) is None:
        return
    chosen_metric(shown, metric)
    column = None
    if apart is not None:
        _check_base(shown.title, _RESULTS, base, apart.labels)
    elif by in shown.parameters or by not in (_CODE, CODE, "machine", PUBLISHED_AS):
        column = _column(shown, by)
        _check_base(shown.title, column, base, shown.values[column])
    repeat = experiment.batch(batch).repeat
    if column is None or repeat is None or repeat.by != column:
        said = "kochi: the number of runs does not depend on these ratios"
        if column in experiment.parameters_of(experiment.batch(batch)):
            key = f"repeat: {{{'' if repeat else 'until: 2%, '}by: {column}}}"
            said += f"; for runs until they are known, {file} needs `{key}`"
        remark(said)


def _check_base(title: str, column: str, base: str | None, values: Sequence[str]) -> None:
    if base is not None and base not in values:
        said = nearest(base, values)
        raise NameNotFoundError(f"no run of {title} has {column} = '{base}', {said}")


def _both(one: Report, other: Report, labels: tuple[str, str]) -> tuple[Report, str]:
    """The runs that are in one of two reports, and the column that tells them apart. Raises
    KochiError."""
    import pandas

    from snakemake_kochi.project.plots import MACHINE
    from snakemake_kochi.tables.branch import PUBLISHED_AS
    from snakemake_kochi.tables.report import free_name

    column = free_name(_RESULTS, {*one.runs, *other.runs})
    parameters = {name for run in (*one.recorded, *other.recorded) for name in run.parameters}
    sides, recorded = [], []
    same = {run.identity for run in one.recorded} & {run.identity for run in other.recorded}
    for each, label in zip((one, other), labels, strict=True):
        own = [row for row, run in enumerate(each.recorded) if run.identity not in same]
        side = each.runs.iloc[own].copy()
        # A side with a single one lacks its column.
        for name, values in (
            (PUBLISHED_AS, [run.published_as for run in each.recorded]),
            (MACHINE, [run.machine for run in each.recorded]),
        ):
            is_in_other = name in one.runs or name in other.runs
            if is_in_other and name not in each.runs and name not in parameters:
                side.insert(0, name, [values[row] for row in own])
        side.insert(0, column, label)
        sides.append(side)
        recorded += [each.recorded[row] for row in own]
    if not all(map(len, sides)):
        raise KochiError(
            f"the results of {other.title} in {labels[0]} are the same runs: nothing to compare",
            "To list the commits of an artifact branch, type: kochi artifact log",
        )
    runs = pandas.concat(sides, ignore_index=True)
    varying = dict.fromkeys([column, *one.varying, *other.varying])
    repeat = other.repeat or one.repeat
    return dataclasses.replace(
        other, runs=runs, recorded=recorded, varying=[*varying], repeat=repeat
    ), column


def _label(commit: str) -> str:
    return commit[:12] if len(commit) == 40 else commit


def _column(report: Report | Planned, by: str | None) -> str:
    """The column of the values that are compared. Raises KochiError."""
    from snakemake_kochi.tables.branch import CODE

    if by == _CODE and _CODE not in report.parameters:
        by = CODE
    varying = list(report.varying)
    if by is None and len(varying) == 1:
        return varying[0]
    if by is None:
        raise KochiError(
            f"{report.title} has {'several' if varying else 'no'} parameters with several values",
            f"Choose what is compared: --by {' or --by '.join(varying) if varying else _CODE}",
        )
    if by in varying:
        return by
    if by in report.parameters or by in (CODE, "machine"):
        raise KochiError(f"all results of {report.title} have the same {by}: nothing to compare")
    known = nearest(by, [*varying, "machine", _CODE])
    raise NameNotFoundError(f"{report.title} has no parameter '{by}', {known}")


def chosen_metric(report: Report | Planned, name: str | None) -> str:
    """A metric of a batch, by default its first one. Raises NameNotFoundError."""
    from snakemake_kochi.project.plots import SECONDS

    known = [*report.metrics, SECONDS]
    if name is not None and name not in known:
        raise NameNotFoundError(f"{report.title} has no metric '{name}', {nearest(name, known)}")
    return name or known[0]


def plain(value: Any) -> Any:
    """What JSON can have: no infinity and no NaN."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---- for people


def _page(report: Report, found: Sequence[Comparison]) -> bytes:
    from snakemake_kochi.tables.report import page, sentence

    parts: list[str] = []
    for each in found:
        first, second = each.values
        if len(found) > 1:
            parts.append(f"## {each.by}: {second} compared with {first}")
        parts += [_table(each), *_overall(each), *map(sentence, each.remarks)]
    return page(_title(report, found), [*parts, *map(sentence, report.remarks)])


def _title(report: Report, found: Sequence[Comparison]) -> str:
    named = f" ({found[0].unit})" if found[0].unit else ""
    values = " and ".join(found[0].values) if len(found) == 1 else f"{len(found) + 1} values"
    return f"{report.title}: {found[0].metric}{named} by {found[0].by}, {values}"


def _table(each: Comparison) -> str:
    from snakemake_kochi.tables.report import markdown_table

    keys = list(each.points[0].point)
    rows = []
    for point in each.points:
        ratio = point.ratio
        shown = ["", "", ""]
        if ratio is not None:
            shown = [str(ratio.n), f"{ratio.estimate:.3f}", ratio.ends(".3f")]
        verdict = f"{point.verdict} ({point.why})" if point.why else point.verdict
        rows.append([*point.point.values(), _side(point, 0), _side(point, 1), *shown, verdict])
    sides = (f"{each.by}={value}" for value in each.values)
    level = percent(each.confidence)
    headers = [*keys, *sides, "pairs", "ratio", f"{level} interval", "verdict"]
    return markdown_table(headers, rows)


def _side(point: Compared, side: int) -> str:
    interval = point.sides[side]
    if math.isnan(interval.estimate):
        return ""
    ends = interval.ends(".4g")
    return f"{interval.estimate:.4g}{f' ({ends})' if ends else ''}"


def _overall(each: Comparison) -> Iterator[str]:
    count = len(each.points)
    first, second = each.values
    if each.overall is None:
        ratios = [point.ratio for point in each.points if point.ratio is not None]
        if not ratios:  # nothing is comparable, and each row says why
            return
        if all(ratio.lower is None for ratio in ratios):
            needed = f"{each.needed} {each.counted} are needed"
            yield f"Nothing can be said of all points together: {needed}."
        elif count > 1:
            yield (
                "The verdicts allow for all points, but nothing is said of all together: "
                "the sides ran in allocations of their own, which are no pairs."
            )
        return
    ratio = each.overall
    of_all = ""
    if not math.isnan(ratio.estimate):  # some round has all points
        ends = ratio.ends(".3f")
        of_all = f"the mean ratio is {ratio.estimate:.3f}{f' ({ends})' if ends else ''}, and "
    p = f"p = {max(each.chance, 0.0001):.2g}"
    there = "at least one point differs" if each.differs else "no point is shown to differ"
    if each.differs is None:
        there = "the pairs are too few for a word on all points together"
    points = f"over all {count} points {of_all}" if count > 1 else ""
    yield f"{second} compared with {first}: {points}{there} ({p})."
    fewest = min((p.ratio.n for p in each.points if p.ratio is not None), default=0)
    if count > 1:
        yield (
            f"Each interval is for its own point. The verdicts allow for all {count} points: "
            f"{each.needed} {each.counted} show a difference of a single one; here are {fewest}."
        )
    elif fewest < each.needed:
        yield f"{each.needed} {each.counted} are needed; here are {fewest}."
