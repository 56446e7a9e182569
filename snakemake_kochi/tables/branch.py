"""The report of a batch, from artifact branches alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.artifacts.code import read_code
from snakemake_kochi.artifacts.reading import published
from snakemake_kochi.errors import ConfigError, KochiError, NameNotFoundError
from snakemake_kochi.library.looks import key_of
from snakemake_kochi.project.document import decode_text, read_text
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.plots import MACHINE
from snakemake_kochi.tables.codes import codes_of, labels_of
from snakemake_kochi.tables.metrics import in_branches
from snakemake_kochi.tables.records import RecordedRun, read_runs
from snakemake_kochi.tables.report import Report, report_of, skipped

# The column with the name under which a result is published, where there are several.
PUBLISHED_AS = "published_as"
# The column with the commit of the code of a result, where results of all code are wanted.
CODE = "code_commit"
_MOST_REASONS = 3  # in which other code differs


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
    the table (`codes`), or with `all_code` all, told apart by the column CODE.

    Raises KochiError: NameNotFoundError for an unknown commit and for a batch without results;
    ConfigError for a wrong file; GitError.
    """
    branches = published(repository, commit)
    found, unread = read_runs(branches, experiment, batch, machine)
    runs = [run for run in found if run["rerun_of"] is None and not run.edited]
    if not runs:
        raise _no_results(experiment, batch, commit, unread)
    file = runs[0].file
    if len(files := {run.file for run in runs}) > 1:
        raise NameNotFoundError(
            f"several experiments are called '{experiment}': {', '.join(sorted(files))}",
            "Name the file of one.",
        )
    now = experiment_here(repository, file)
    now = now if now is not None and batch in now.batches else None
    then = _experiment_of(repository, runs[-1])
    reading = _Reading(file, batch, unread)
    if edited := sum(run.edited for run in found):
        are = (
            "result with an edited record is" if edited == 1 else "results with edited records are"
        )
        reading.remarks.append(f"{edited} {are} left out")
    if (defined := now or then) is None:
        reading.remarks.append(
            f"the table has no metrics: {file} is neither in the working tree nor, as the code of "
            "these results, in this clone. To fetch the code, type: kochi artifact fetch"
        )
    bounds = now if commit is None and now is not None else then
    machines = bounds.batch(batch).machines if bounds is not None and machine is None else ()
    runs, labels = reading.of_code(reading.of_machines(runs, machines), all_code)
    ran_on = {run.machine for run in runs}
    if bounds is not None:
        runs = reading.of_points(runs, labels, bounds, machines)
    return report_of(
        *(runs, in_branches(branches), None if defined is None else defined.batch(batch)),
        told_by=dict(_told_by(runs, labels if all_code else {})),
        varying=reading.varying,
        remarks=(*reading.remarks, *reading.lacking),
        lacking=reading.lacking,
        # A commit has the results of some machines.
        missing=[each for each in reading.missing if commit is None or each[0] in ran_on],
    )


@dataclass
class _Reading:
    """The choice of the runs of a table, and what is to be told of it; see `Report`."""

    file: str
    batch: str
    remarks: list[str]
    lacking: list[str] = field(default_factory=list)
    varying: set[str] = field(default_factory=set)
    missing: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def of_machines(
        self, runs: Sequence[RecordedRun], machines: Sequence[str]
    ) -> Sequence[RecordedRun]:
        """The runs on some machines, or all if none is named."""
        if not machines:
            return runs
        for name in sorted({run.machine for run in runs} - {*machines}):
            count = len({run.point for run in runs if run.machine == name})
            self.remarks.append(
                f"{count} results of machine '{name}', which the batch does not name, are left "
                f"out; to see them, add: -m {name}"
            )
        return [run for run in runs if run.machine in machines]

    def of_code(
        self, runs: Sequence[RecordedRun], all_code: bool
    ) -> tuple[list[RecordedRun], dict[str, str]]:
        """The newest run of each point, machine, name and code, the newest last; and the label of
        the code of each, by identity. Only the present code, unless `all_code`."""
        codes, differences = codes_of(runs)
        newest = {(run.point, code): run for run, code in zip(runs, codes, strict=True)}
        chosen = [run for (_, code), run in newest.items() if all_code or code == 0]
        if others := len(newest) - len(chosen):
            are = "result of other code is" if others == 1 else "results of other code are"
            words = shlex.join(["kochi", "table", self.file, self.batch, "--all-code"])
            self.lacking.append(
                f"{others} {are} left out of this table "
                f"({', '.join(differences[:_MOST_REASONS])}); to see them, type: {words}"
            )
        labels = zip((run.identity for run in runs), labels_of(runs, codes), strict=True)
        return sorted(chosen, key=lambda run: run.age), dict(labels)

    def of_points(
        self,
        runs: Sequence[RecordedRun],
        labels: Mapping[str, str],
        experiment: Experiment,
        machines: Sequence[str],
    ) -> list[RecordedRun]:
        """The runs of points that the batch has, in the order of its grid. `machines` are those
        that should have results."""
        chosen: list[RecordedRun] = []
        there_are = dict.fromkeys([*machines, *(run.machine for run in runs)])
        for machine in there_are:
            of_it = f" of machine '{machine}'" if len(there_are) > 1 else ""
            own = [run for run in runs if run.machine == machine]
            try:
                grid = experiment.grid(self.batch, machine)
            except KochiError as error:
                chosen += own
                if own:
                    first = error.message.partition("\n")[0]
                    said = f"all points of machine '{machine}' are in the table: {first}"
                    self.remarks.append(said)
                else:
                    self.lacking.append(f"all runs{of_it} have no result here")
                continue
            found = list(_in_grid(own, grid))
            order = {(index, run.published_as, labels[run.identity]): run for index, run in found}
            chosen += [order[place] for place in sorted(order)]
            self.varying.update(grid.varying)
            there = {index for index, _ in found}
            known = {key_of(grid.points[index]) for index in there}
            without = {key_of(each): each for each in grid.points if key_of(each) not in known}
            self.missing += [(machine, each.parameters) for each in without.values()]
            self.remarks += _changed_scripts(found, self.file, grid)
            # How often more than `min` a point should have run, only its working directory knows.
            wanted = {n for n, point in enumerate(grid.points) if point.duplicate < grid.least}
            if absent := len(wanted - there):
                of = f"{absent} of {len(wanted)} runs{of_it}"
                self.lacking.append(f"{of} have no result here")
            if more := len(own) - len(found):
                said = f"{more} results{of_it} of other points than those of the batch are left out"
                self.remarks.append(said)
            self.remarks += skipped(grid, of_it)
        if not chosen:
            raise NameNotFoundError(
                f"no result is of a point that batch '{self.batch}' of {self.file} has",
                f"To run it, type: kochi batch {self.file} {self.batch}\n"
                "For the points of a commit of the artifact branch, add: --at COMMIT",
            )
        return chosen


def _told_by(
    runs: Sequence[RecordedRun], labels: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """The columns before the parameters: what tells equal points apart, the last one first."""
    origins = {(run.machine, run.published_as) for run in runs}
    of_machines = {machine for machine, _ in origins}
    if len(origins) > len(of_machines):
        yield PUBLISHED_AS, [run.published_as for run in runs]
    if len(of_machines) > 1:
        yield MACHINE, [run.machine for run in runs]
    if labels:
        yield CODE, [labels[run.identity] for run in runs]


def experiment_here(repository: Path, file: str) -> Experiment | None:
    """The experiment of the working tree, None if there is no such file. Raises KochiError."""
    path = (repository / file).resolve()
    # Anyone may have written the record that names the file.
    if not path.is_relative_to(repository.resolve()) or not path.is_file():
        return None
    return load_experiment(file, read_text(path, file), None)


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


def _in_grid(runs: Iterable[RecordedRun], grid: Grid) -> Iterator[tuple[int, RecordedRun]]:
    """The runs of points that a grid has, and which they are."""

    def key(parameters: Mapping[str, str], duplicate: int) -> tuple[Any, ...]:
        return *(parameters.get(name) for name in grid.varying), duplicate

    places = {key(each.parameters, each.duplicate): n for n, each in enumerate(grid.points)}
    for run in runs:
        index = places.get(key(run.parameters, run.duplicate))
        # A default that was added later is in no record.
        if index is not None and all(
            grid.points[index].parameters.get(name, value) == value
            for name, value in run.parameters.items()
        ):
            yield index, run


def _changed_scripts(
    found: Sequence[tuple[int, RecordedRun]], file: str, grid: Grid
) -> Iterator[str]:
    """A remark for a script of the batch that is another one than that of its results. Of several
    codes, a newer result has replaced the others."""
    runs = {(index, run.published_as): run for index, run in found}.values()
    for word, phase in (("run script", grid.run), ("build script", grid.build)):
        if others := sum(run.code.get((word,), phase.script) != phase.script for run in runs):
            words = shlex.join(["kochi", "show", "batch", file, grid.batch])
            yield (
                f"{others} of {len(runs)} results were made with another {word} than {file} has "
                f"now; to see which, type: {words}"
            )
