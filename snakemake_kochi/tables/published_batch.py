"""The table and the figures of a batch, made again from an artifact branch alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from snakemake_kochi.artifacts.code import read_code
from snakemake_kochi.artifacts.reading import Published, published
from snakemake_kochi.artifacts.record import todays_form
from snakemake_kochi.errors import ConfigError, KochiError, NameNotFoundError
from snakemake_kochi.project.document import decode_text, read_text
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Batch, Grid
from snakemake_kochi.project.metrics import QUANTITIES, Quantity
from snakemake_kochi.project.plots import DUPLICATE, MACHINE, Plot, default_plots
from snakemake_kochi.tables.codes import Codes
from snakemake_kochi.tables.measurements import row_of, table_of
from snakemake_kochi.tables.recorded_runs import (
    VALUES,
    Metrics,
    RecordedRun,
    Wanted,
    compiled,
    measured,
    read_runs,
)

# The column with the name under which a result is published, where there are several.
PUBLISHED_AS = "published_as"
# The column with the commit of the code of a result, where results of all code are wanted.
CODE = "code_commit"
LEFT_OUT = "left out of this table"
_MOST_REASONS = 3  # for skipped points
_STATE = [list(VALUES).index(name) for name in ("started", "commit", "dirty", "tree")]
_STARTED, _RERUN_OF = _STATE[0], list(VALUES).index("rerun_of")


@dataclass(frozen=True)
class PublishedBatch:
    """The runs of a batch in artifact branches: the newest one of each point, of one code.

    `runs` is the table, of which the columns `varying` tell the points apart. `remarks`: what it
    lacks, a sentence each.
    """

    experiment: str
    batch: str
    runs: pandas.DataFrame
    varying: tuple[str, ...]
    metrics: Metrics
    quantities: Mapping[str, Quantity]
    plots: tuple[Plot, ...]
    remarks: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.experiment} {self.batch}"


def read_batch(
    repository: Path,
    experiment: str,
    batch: str,
    commit: str | None = None,
    machine: str | None = None,
    all_code: bool = False,
) -> PublishedBatch:
    """Read a batch of an experiment (a name or a file) from the artifact branches, or from a commit
    of one.

    Metrics and plots are those of the file in the working tree; if that has no such batch, those of
    the code of the newest run. The points are those that this batch has now; of a `commit`, those
    that it had in that code. Where the code is not in this clone, they are all that the branch has.
    `machine`: also the name under which results are published. Of a batch with `machines`, results
    of others are left out unless one of those is asked for. Only results of the present code are in
    the table (`codes.py`), or with `all_code` all, told apart by the column CODE.

    Raises KochiError: NameNotFoundError for an unknown commit and for a batch without results;
    ConfigError for a wrong file; GitError.
    """
    branches = published(repository, commit)
    found, remarks = read_runs(branches, Wanted(experiment, batch, machine))
    runs = [run for run in found if run.values[_RERUN_OF] is None]
    if not runs:
        raise _no_results(experiment, batch, commit, remarks)
    if len(files := {run.file for run in runs}) > 1:
        raise NameNotFoundError(
            f"several experiments are called '{experiment}': {', '.join(sorted(files))}",
            "Name the file of one.",
        )
    now = _experiment_here(repository, runs[0].file, batch)
    then = _experiment_of(repository, branches, runs, batch)
    defined = now or then
    if defined is None:
        remarks.append(
            f"the table has no metrics: {runs[0].file} is neither in the working tree nor, as the "
            "code of these results, in this clone. To fetch the code, type: kochi artifact fetch"
        )
    bounds = now if commit is None and now is not None else then
    machines = bounds.batch(batch).machines if bounds is not None and machine is None else ()
    runs, labels = _of_code(_of_machines(runs, machines, remarks), all_code, remarks)
    if bounds is not None:
        runs, more = _in_grid(runs, labels, bounds, batch, machines)
        remarks += more
    records = _records(branches, runs)
    shown: Batch | None = None if defined is None else defined.batch(batch)
    metrics = {} if shown is None else compiled(shown.metrics)
    values = measured(branches, runs, [metrics] * len(runs), remarks)
    rows = [records[run.identity] for run in runs]
    table, said = table_of(rows, values, list(metrics), [run.output_path for run in runs])
    remarks += said
    _insert_origins(table, runs)
    if all_code:
        table.insert(0, _free(CODE, table), [labels[run.identity] for run in runs])
    for name in metrics:
        if lacking := int(table[name].isna().sum()):
            remarks.append(f"metric '{name}' has no value in {lacking} of {len(table)} runs")
    return PublishedBatch(
        experiment=runs[0].experiment,
        batch=batch,
        runs=table,
        varying=_varying(table),
        metrics=metrics,
        quantities=QUANTITIES if shown is None else shown.quantities,
        plots=default_plots(()) if shown is None else shown.plots,
        remarks=tuple(remarks),
    )


def _of_code(
    runs: Sequence[RecordedRun], all_code: bool, remarks: list[str]
) -> tuple[list[RecordedRun], dict[str, str]]:
    """The newest run of each point, machine, name and code, in the order in which points first ran;
    and the label of the code of each, by identity. Only the present code, unless `all_code`."""
    codes = Codes.of([(str(run.values[_STARTED]), run.code) for run in runs])
    states = [[run.values[index] for index in _STATE] for run in runs]
    labels = codes.labels([(str(s), str(c or ""), bool(d), str(t)) for s, c, d, t in states])
    newest: dict[tuple[Any, ...], tuple[int, RecordedRun]] = {}
    for run, code in sorted(
        zip(runs, codes.of_runs, strict=True),
        key=lambda each: (str(each[0].values[_STARTED]), each[0].identity),
    ):
        newest[(_point(run), code)] = (code, run)
    chosen = [run for code, run in newest.values() if all_code or code == 0]
    if others := len(newest) - len(chosen):
        are = "1 result of other code is" if others == 1 else f"{others} results of other code are"
        file, batch = shlex.quote(runs[0].file), shlex.quote(runs[0].batch)
        remarks.append(
            f"{are} {LEFT_OUT} ({', '.join(codes.differences[:_MOST_REASONS])}); to see "
            f"them, type: kochi table {file} {batch} --all-code"
        )
    return chosen, {run.identity: label for run, label in zip(runs, labels, strict=True)}


def _point(run: RecordedRun) -> tuple[Any, ...]:
    point = tuple(sorted(run.parameters.items()))
    return (run.published_as, run.machine, run.file, point, run.duplicate)


def _no_results(
    experiment: str, batch: str, commit: str | None, remarks: Sequence[str]
) -> NameNotFoundError:
    where = "the artifact branches have" if commit is None else f"commit '{commit}' has"
    unread = "".join(f"\n{each}" for each in remarks)
    return NameNotFoundError(
        f"{where} no result of batch '{batch}' of {experiment}{unread}",
        "A commit of an artifact branch was expected. To list them, type: kochi artifact log"
        if commit is not None
        else f"To run it, type: kochi batch {experiment} {batch}",
    )


def _experiment_here(repository: Path, file: str, batch: str) -> Experiment | None:
    """The experiment of the working tree, if it has the batch."""
    # Anyone may have written the record that names the file.
    path = (repository / file).resolve()
    if not path.is_relative_to(repository.resolve()) or not path.is_file():
        return None
    experiment = load_experiment(file, read_text(path, file), None)
    return experiment if batch in experiment.batches else None


def _experiment_of(
    repository: Path, branches: Published, runs: Sequence[RecordedRun], batch: str
) -> Experiment | None:
    """The experiment in the code of the newest run, if this clone has it."""
    newest = max(runs, key=lambda run: (str(run.values[_STARTED]), run.identity))
    tree = _records(branches, [newest])[newest.identity]["tree"]
    content = read_code(repository, str(tree), newest.file)
    if content is None:
        return None
    try:
        experiment = load_experiment(newest.file, decode_text(content, newest.file), None)
    except ConfigError:
        return None  # of another release
    return experiment if batch in experiment.batches else None


def _records(branches: Published, runs: Sequence[RecordedRun]) -> dict[str, dict[str, Any]]:
    """What the table needs of each record, and the `tree` of its code."""
    wanted = {(run.published_as, run.identity) for run in runs}
    files = [file for file in branches.records() if (file.name, file.identity) in wanted]
    found = {}
    for file, content in branches.read_records(files):
        if content is not None:
            record = json.loads(content.decode("utf-8", "surrogateescape"))
            # Of a run with the code of another commit, the experiment is in its own snapshot.
            snapshot = record.get("configuration") or record.get("snapshot") or {}
            tree = snapshot.get("tree")
            found[file.identity] = {**row_of(todays_form(record, file.identity)), "tree": tree}
    return found


def _insert_origins(table: pandas.DataFrame, runs: Sequence[RecordedRun]) -> None:
    """Put before the parameters what tells equal points apart: their machines, if there are
    several, and the names under which results of one machine are published."""
    machines = {run.machine for run in runs}
    if len({(run.machine, run.published_as) for run in runs}) > len(machines):
        table.insert(0, _free(PUBLISHED_AS, table), [run.published_as for run in runs])
    if len(machines) > 1:
        table.insert(0, _free(MACHINE, table), [run.machine for run in runs])


def _of_machines(
    runs: Sequence[RecordedRun], machines: Sequence[str], remarks: list[str]
) -> list[RecordedRun]:
    """The runs on some machines, or all if none is named."""
    if not machines:
        return list(runs)
    others = sorted({run.machine for run in runs} - {*machines})
    for name in others:
        count = len({_point(run) for run in runs if run.machine == name})
        remarks.append(
            f"{count} results of machine '{name}', which the batch does not name, are left out; to "
            f"see them, add: -m {name}"
        )
    return [run for run in runs if run.machine in machines]


def _in_grid(
    runs: Sequence[RecordedRun],
    labels: Mapping[str, str],
    experiment: Experiment,
    batch: str,
    machines: Sequence[str],
) -> tuple[list[RecordedRun], list[str]]:
    """The runs of points that a batch has, in the order of its grid, and remarks.

    `machines` are those that should have results.
    """
    chosen: list[RecordedRun] = []
    remarks: list[str] = []
    there_are = dict.fromkeys([*machines, *(run.machine for run in runs)])
    for machine in there_are:
        of_it = f" of machine '{machine}'" if len(there_are) > 1 else ""
        own = [run for run in runs if run.machine == machine]
        try:
            grid = experiment.grid(batch, machine)
        except KochiError as error:
            chosen += own
            first = error.message.partition("\n")[0]
            if own:
                remarks.append(f"all points of machine '{machine}' are in the table: {first}")
            else:
                remarks.append(f"all runs{of_it} have no result here")
            continue
        places = {
            (*(point.parameters.get(name) for name in grid.varying), point.duplicate): index
            for index, point in enumerate(grid.points)
        }
        found = {}
        for run in own:
            key = (*(run.parameters.get(name) for name in grid.varying), run.duplicate)
            index = places.get(key, -1)
            # A default that was added later is in no record.
            if index >= 0 and not _differ(run.parameters, grid.points[index].parameters):
                found[index, run.published_as, labels[run.identity]] = run
        chosen += [run for _, run in sorted(found.items(), key=lambda each: each[0])]
        remarks += _changed_scripts(found, experiment.file, grid)
        there = len({index for index, *_ in found})
        if there < len(grid.points):
            lacking = len(grid.points) - there
            remarks.append(f"{lacking} of {len(grid.points)} runs{of_it} have no result here")
        if len(own) > len(found):
            more = len(own) - len(found)
            said = f"{more} results{of_it} of other points than those of the batch are left out"
            remarks.append(said)
        if grid.skipped:
            skipped = grid.skipped_by_reason
            some = "; ".join(list(skipped)[:_MOST_REASONS])
            others = "; ..." if len(skipped) > _MOST_REASONS else ""
            remarks.append(f"{sum(skipped.values())} points{of_it} are skipped: {some}{others}")
    if not chosen:
        raise NameNotFoundError(
            f"no result is of a point that batch '{batch}' of {experiment.file} has",
            f"To run it, type: kochi batch {experiment.file} {batch}\n"
            "For the points of a commit of the artifact branch, add: --at COMMIT",
        )
    return chosen, remarks


def _changed_scripts(
    found: Mapping[tuple[int, str, str], RecordedRun], file: str, grid: Grid
) -> Iterator[str]:
    """A remark for a script of the batch that is another one than that of its results.

    `found`: by point, name and code. Of several codes, a newer result has replaced the others.
    """
    newest: dict[tuple[int, str], RecordedRun] = {}
    for (index, name, _), run in sorted(found.items(), key=lambda e: str(e[1].values[_STARTED])):
        newest[index, name] = run
    runs = newest.values()
    for word, phase in (("run script", grid.run), ("build script", grid.build)):
        if others := sum(run.code.get((word,), phase.script) != phase.script for run in runs):
            words = shlex.join(["kochi", "show", "batch", file, grid.batch])
            yield (
                f"{others} of {len(runs)} results were made with another {word} than {file} has "
                f"now; to see which, type: {words}"
            )


def _differ(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return any(other.get(name, value) != value for name, value in one.items())


def _varying(table: pandas.DataFrame) -> tuple[str, ...]:
    names = table.columns[: table.columns.get_loc(DUPLICATE)]
    return tuple(name for name in names if table[name].nunique(dropna=False) > 1)


def _free(name: str, table: pandas.DataFrame) -> str:
    while name in table:
        name = f"{name}_"
    return name
