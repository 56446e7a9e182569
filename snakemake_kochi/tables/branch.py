"""The report of a batch, from artifact branches alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from snakemake_kochi.artifacts.code import read_code
from snakemake_kochi.artifacts.reading import published
from snakemake_kochi.errors import ConfigError, KochiError, NameNotFoundError
from snakemake_kochi.project.document import decode_text
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Batch, Grid
from snakemake_kochi.project.plots import DUPLICATE, MACHINE, QUANTITIES, default_plots
from snakemake_kochi.tables.records import (
    SOURCES,
    RecordedRun,
    Traits,
    Wanted,
    compiled,
    experiment_here,
    measured,
    read_runs,
)
from snakemake_kochi.tables.report import Report, noise, skipped, table_of, without_value

# The column with the name under which a result is published, where there are several.
PUBLISHED_AS = "published_as"
# The column with the commit of the code of a result, where results of all code are wanted.
CODE = "code_commit"
_MOST_REASONS = 3  # in which other code differs
_SHORT = 12  # digits of a commit


def read_batch(
    repository: Path,
    experiment: str,
    batch: str,
    commit: str | None = None,
    machine: str | None = None,
    all_code: bool = False,
) -> Report:
    """Read a batch of an experiment (a name or a file) from the artifact branches, or from a commit
    of one: the newest run of each point.

    Metrics and plots are those of the file in the working tree; if that has no such batch, those of
    the code of the newest run. The points are those that this batch has now; of a `commit`, those
    that it had in that code. Where the code is not in this clone, they are all that the branch has.
    `machine`: also the name under which results are published. Of a batch with `machines`, results
    of others are left out unless one of those is asked for. Only results of the present code are in
    the table (`Codes`), or with `all_code` all, told apart by the column CODE.

    Raises KochiError: NameNotFoundError for an unknown commit and for a batch without results;
    ConfigError for a wrong file; GitError.
    """
    branches = published(repository, commit)
    found, remarks = read_runs(branches, Wanted(experiment, batch, machine))
    runs = sorted((run for run in found if run["rerun_of"] is None), key=_age)
    if not runs:
        raise _no_results(experiment, batch, commit, remarks)
    if len(files := {run.file for run in runs}) > 1:
        raise NameNotFoundError(
            f"several experiments are called '{experiment}': {', '.join(sorted(files))}",
            "Name the file of one.",
        )
    now = experiment_here(repository, runs[0].file)
    now = now if now is not None and batch in now.batches else None
    then = _experiment_of(repository, runs[-1])
    defined = now or then
    if defined is None:
        remarks.append(
            f"the table has no metrics: {runs[0].file} is neither in the working tree nor, as the "
            "code of these results, in this clone. To fetch the code, type: kochi artifact fetch"
        )
    bounds = now if commit is None and now is not None else then
    machines = bounds.batch(batch).machines if bounds is not None and machine is None else ()
    lacking: list[str] = []
    runs, labels = _of_code(_of_machines(runs, machines, remarks), all_code, lacking)
    if bounds is not None:
        runs = _in_grid(runs, labels, bounds, batch, machines, remarks, lacking)
    shown: Batch | None = None if defined is None else defined.batch(batch)
    metrics = {} if shown is None else shown.metrics
    values = measured(branches, runs, [compiled(metrics)] * len(runs), remarks)
    table, said = table_of(runs, values, list(metrics), [run.output_path for run in runs])
    # Before the parameters is what tells equal points apart.
    origins = {(run.machine, run.published_as) for run in runs}
    of_machines = {machine for machine, _ in origins}
    if len(origins) > len(of_machines):
        table.insert(0, _free(PUBLISHED_AS, table), [run.published_as for run in runs])
    if len(of_machines) > 1:
        table.insert(0, _free(MACHINE, table), [run.machine for run in runs])
    if all_code:
        table.insert(0, _free(CODE, table), [labels[run.identity] for run in runs])
    names = table.columns[: table.columns.get_loc(DUPLICATE)]
    return Report(
        experiment=runs[0].experiment,
        batch=batch,
        runs=table,
        varying=[name for name in names if table[name].nunique(dropna=False) > 1],
        quantities=QUANTITIES if shown is None else shown.quantities,
        plots=default_plots(()) if shown is None else shown.plots,
        remarks=(*remarks, *lacking, *said, *without_value(metrics, values)),
        lacking=lacking,
        noise=tuple(noise(runs)),
    )


def _age(run: RecordedRun) -> tuple[str, str]:
    return str(run["started"]), run.identity


def _of_code(
    runs: Sequence[RecordedRun], all_code: bool, remarks: list[str]
) -> tuple[list[RecordedRun], dict[str, str]]:
    """The newest run of each point, machine, name and code, in the order in which points first ran;
    and the label of the code of each, by identity. Only the present code, unless `all_code`."""
    codes = Codes.of([(str(run["started"]), run.code) for run in runs])
    newest: dict[tuple[Any, ...], tuple[int, RecordedRun]] = {}
    for run, code in zip(runs, codes.of_runs, strict=True):
        newest[(_point(run), code)] = (code, run)
    chosen = [run for code, run in newest.values() if all_code or code == 0]
    if others := len(newest) - len(chosen):
        are = "1 result of other code is" if others == 1 else f"{others} results of other code are"
        file, batch = shlex.quote(runs[0].file), shlex.quote(runs[0].batch)
        remarks.append(
            f"{are} left out of this table ("
            f"{', '.join(codes.differences[:_MOST_REASONS])}); to see them, type: kochi table "
            f"{file} {batch} --all-code"
        )
    return chosen, dict(zip((run.identity for run in runs), codes.labels(runs), strict=True))


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


def _experiment_of(repository: Path, run: RecordedRun) -> Experiment | None:
    """The experiment in the code of a run, if this clone has it and its batch."""
    # Of a run with the code of another commit, the experiment is in its own snapshot.
    tree = str(run["configuration"] or run["tree"])
    if (content := read_code(repository, tree, run.file)) is None:
        return None
    try:
        experiment = load_experiment(run.file, decode_text(content, run.file), None)
    except ConfigError:
        return None  # of another release
    return experiment if run.batch in experiment.batches else None


def _of_machines(
    runs: Sequence[RecordedRun], machines: Sequence[str], remarks: list[str]
) -> list[RecordedRun]:
    """The runs on some machines, or all if none is named."""
    if not machines:
        return list(runs)
    for name in sorted({run.machine for run in runs} - {*machines}):
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
    remarks: list[str],
    lacking: list[str],
) -> list[RecordedRun]:
    """The runs of points that a batch has, in the order of its grid.

    `machines` are those that should have results.
    """
    chosen: list[RecordedRun] = []
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
                lacking.append(f"all runs{of_it} have no result here")
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
        if absent := len(grid.points) - len({index for index, *_ in found}):
            lacking.append(f"{absent} of {len(grid.points)} runs{of_it} have no result here")
        if more := len(own) - len(found):
            said = f"{more} results{of_it} of other points than those of the batch are left out"
            remarks.append(said)
        remarks += skipped(grid, of_it)
    if not chosen:
        raise NameNotFoundError(
            f"no result is of a point that batch '{batch}' of {experiment.file} has",
            f"To run it, type: kochi batch {experiment.file} {batch}\n"
            "For the points of a commit of the artifact branch, add: --at COMMIT",
        )
    return chosen


def _changed_scripts(
    found: Mapping[tuple[int, str, str], RecordedRun], file: str, grid: Grid
) -> Iterator[str]:
    """A remark for a script of the batch that is another one than that of its results.

    `found`: by point, name and code. Of several codes, a newer result has replaced the others.
    """
    newest: dict[tuple[int, str], RecordedRun] = {}
    for (index, name, _), run in sorted(found.items(), key=lambda each: _age(each[1])):
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


def _free(name: str, table: pandas.DataFrame) -> str:
    while name in table:
        name = f"{name}_"
    return name


# ---- which results are of the same code


@dataclass(frozen=True)
class Codes:
    """The codes of some runs: of each run the number of its code, 0 for the present one, which is
    that of the newest run.

    A result is of the same code if nothing that determines results differs: the scripts, the source
    files, the recipes and the builds, each compared with that of the same thing. So results from
    before a change of the documentation, and the variants of one batch, are of one code. The
    records alone say this, also in a clone without the code. `differences`: in what the others
    differ from the present one, in words.
    """

    of_runs: Sequence[int]
    differences: Sequence[str]

    @classmethod
    def of(cls, runs: Sequence[tuple[str, Traits]]) -> Codes:
        """`runs`: when each began (ISO 8601, UTC), and the traits of its code."""
        codes: list[dict[tuple[str, ...], str]] = []
        numbers = [0] * len(runs)
        known: dict[frozenset[tuple[tuple[str, ...], str]], int] = {}
        for index in sorted(range(len(runs)), key=lambda each: runs[each][0], reverse=True):
            traits = runs[index][1]
            key = frozenset(traits.items())
            if key not in known:
                same = (n for n, code in enumerate(codes) if not _differences(traits, code))
                known[key] = next(same, len(codes))
                if known[key] == len(codes):
                    codes.append({})
                codes[known[key]] |= traits
            numbers[index] = known[key]
        words = (each for code in codes[1:] for each in _differences(code, codes[0]))
        found = (f"{'other' if each == SOURCES else 'another'} {each}" for each in words)
        return cls(numbers, list(dict.fromkeys(found)))

    def labels(self, runs: Sequence[RecordedRun]) -> list[str]:
        """A text for the code of each run: the commit of the newest run with this code, and `+`
        with the id of the code if it had changes that were not committed."""
        newest = dict(zip(self.of_runs, runs, strict=True))  # the last of each, in their order
        labels: dict[int, str] = {}
        for number, run in sorted(newest.items()):
            label = (run["commit"] or "no commit")[:_SHORT]
            label += f"+{str(run['tree'])[:_SHORT]}" if run["dirty"] else ""
            count = sum(each.partition(" (")[0] == label for each in labels.values())
            # Of one commit with several commits of a remote source, for example.
            labels[number] = f"{label} ({count + 1})" if count else label
        return [labels[number] for number in self.of_runs]


def _differences(one: Traits, other: Traits) -> list[str]:
    found = [key[0] for key, value in one.items() if other.get(key, value) != value]
    # The build differs with each of the others.
    return [each for each in found if each != "build"] or found
