"""`kochi bisect`: which commit changed a metric of a batch?"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.compare import chosen_metric, metric_option, plain
from snakemake_kochi.cli.options import (
    default_batch,
    json_option,
    machine_option,
    where_option,
)
from snakemake_kochi.cli.output import print_json, remark, say, shown
from snakemake_kochi.errors import ConfigError, KochiError
from snakemake_kochi.location import Location, find_location

if TYPE_CHECKING:
    from pathlib import Path

    from snakemake_kochi.phases.freeze import Freeze
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.grid import Grid, Point
    from snakemake_kochi.project.recipes import Project
    from snakemake_kochi.reproduction.commits import CommitRuns, Run
    from snakemake_kochi.statistics.bisection import Bisection
    from snakemake_kochi.statistics.comparison import Ratio

_SHORT = 12  # digits of a commit


@click.command()
@machine_option
@where_option
@click.option(
    "--recipe",
    "recipe",
    metavar="DEPENDENCY:RECIPE",
    help="Search among the commits of the git repository of this recipe, with the project as it is "
    "here.",
)
@metric_option
@json_option
@click.argument("good", metavar="GOOD")
@click.argument("bad", metavar="BAD")
@click.argument("file", metavar="FILE.yaml")
@click.argument("batch", metavar="BATCH", required=False)
def command(
    machine: str | None,
    conditions: tuple[str, ...],
    recipe: str | None,
    metric: str | None,
    as_json: bool,
    good: str,
    bad: str,
    file: str,
    batch: str | None,
) -> int:
    """Find the commit between GOOD and BAD that changed a metric, by runs of as few commits as are
    needed to be sure.

    GOOD and BAD are branches, tags or commits of the project, or of the --recipe, with which a part
    of the batch is run; the experiment and kochi.yaml are those of the working tree. Of several
    points that -w leaves, the mean ratio counts. A commit that cannot be built is passed over.
    After Ctrl-C, the same line goes on. The exit status is 1 if no commit can be named.
    """
    from snakemake_kochi.phases.outputs import alive
    from snakemake_kochi.snapshot import commits_between
    from snakemake_kochi.statistics.bisection import COMMIT, Bisection

    location = find_location(machine, asks=True)
    if location.is_elsewhere:
        name = location.machine.name
        raise KochiError(
            f"machine '{name}' is behind the login host '{location.machine.login_host}', which has "
            "no history of the project",
            "Log in there, and type the same line in a clone of the project.",
        )
    project = location.require_project()
    with _history(project, recipe) as repository:
        commits = commits_between(repository, good, bad)
    location.prepare_machine()
    ends = (commits[0][0], commits[-1][0])
    runs = _chosen(location, file, batch, conditions, ends, recipe or "")
    search = _Search(location, runs, commits, metric, Bisection(len(commits) - 1))
    with alive(project.directory, location.project_paths, location.machine.name):
        search.run()
    if as_json:
        print_json(plain(search.as_data()))
    else:
        for line in search.lines():
            say(line)
    return int(search.bisection.verdict != COMMIT)


def _history(project: Project, name: str | None) -> AbstractContextManager[Path]:
    """The repository with the commits of a recipe, or of the project. Raises KochiError."""
    from snakemake_kochi.snapshot import history

    if name is None:
        return nullcontext(project.directory)
    recipe = project.recipe(project.requirement(name))
    if recipe.mirror or (git := project.remote(recipe)) is None:
        raise KochiError(
            f"{name} has no git repository, so it has no commits to search",
            "Name a recipe with 'git' in kochi.yaml.",
        )
    return history(git)


def _chosen(
    location: Location,
    file: str,
    batch: str | None,
    conditions: Sequence[str],
    ends: tuple[str, str],
    recipe: str,
) -> CommitRuns:
    """What is run. Raises KochiError for what is wrong in the experiment or selects no point."""
    from snakemake_kochi.cli.batch import checked
    from snakemake_kochi.enqueue.experiment_files import globs_with, load, path_in_project
    from snakemake_kochi.library.library import check_part
    from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS, take_freeze
    from snakemake_kochi.project.conditions import Where
    from snakemake_kochi.project.values import CODE
    from snakemake_kochi.reproduction.commits import CommitRuns

    project, machine = location.require_project(), location.machine.name
    path = path_in_project(project, file)
    experiment = load(project, path, location.machine)
    name = batch or default_batch("BATCH", experiment)
    checked(location, experiment, name)
    grid, where = experiment.grid(name, machine), Where.parse(conditions)
    check_part(where, grid)
    points: list[dict[str, str]] = []
    for point in grid.points:
        if where.has(point.parameters, point.duplicate):
            own = {name: text for name, text in point.parameters.items() if name != CODE}
            points += [own] if own not in points else []
            if recipe:
                _check_recipe(project, experiment, grid, point, recipe)
    if CODE in experiment.parameters_of(experiment.batch(name)) and not grid.has_code:
        raise ConfigError(
            f"{path}: batch {name} has a parameter named '{CODE}', which is the code of the runs "
            "here",
            "Give the parameter another name.",
        )
    globs = globs_with(project, path) or EXPERIMENT_GLOBS
    frozen = take_freeze(project.directory, machine, globs, named=path)
    return CommitRuns(frozen, path, name, points, ends, recipe)


def _check_recipe(
    project: Project, experiment: Experiment, grid: Grid, point: Point, recipe: str
) -> None:
    """Raise ConfigError unless the runs of a point, and nothing else, use a recipe."""
    from snakemake_kochi.project.recipes import fixed, requirements_at

    batch = f"{experiment.file}: a point of batch {grid.batch}"
    required = requirements_at(grid.requirements, point.parameters)
    used = list(map(str, required))
    every = project.resolve(required, grid.machine)
    others = [
        str(each)
        for each in every
        if any(str(own) == recipe and own.on(grid.machine) for own in each.depends)
    ]
    if others:
        how = "also" if recipe in used else "not directly, but"
        raise ConfigError(
            f"{batch} needs {recipe} {how} for {', '.join(others)}, which is not installed again "
            "with each commit",
            f"Search with a batch that depends on {recipe} itself, and on nothing else that does.",
        )
    if recipe not in used:
        raise ConfigError(
            f"{batch} does not depend on {recipe}, but on {', '.join(used) or 'no recipe'}",
            "Name another recipe, or choose points by -w.",
        )
    if grid.prepare is not None and recipe in map(str, fixed(grid.requirements)):
        at = experiment.source_map.position((*grid.path, "prepare"))
        raise ConfigError(
            f"{at}: it runs once, with {recipe}, and not with each of its commits",
            "Search with a batch without it, or do the same in 'build' or 'run'.",
        )


@dataclass
class _Search:
    """Runs what a bisection proposes. `number`: how many rounds there were; `reasons`: why a commit
    has no value."""

    location: Location
    runs: CommitRuns
    commits: Sequence[tuple[str, str]]
    metric: str | None
    bisection: Bisection
    number: int = 0
    count: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Raises KochiError if a result cannot be had, or is no number above 0."""
        own, points = self.bisection, len(self.runs.points)
        few = "" if points == 1 else f", the mean of {points} points"
        remark(f"{len(self.commits) - 1} commits from {self._name(0)} to {self._name(-1)}{few}")
        while sessions := own.proposed():
            wanted = [list(self._numbered(session)) for session in sessions]
            values = self._values({run for session in wanted for run in session})
            self.count += sum(map(len, wanted))
            before = own.step
            self._require_ends(before, sessions[0], wanted, values)
            own.take([[values[run] for run in session] for session in wanted])
            self._tell(before, sessions)

    def _require_ends(
        self,
        step: str,
        session: Sequence[int],
        wanted: Sequence[Sequence[Run]],
        values: Mapping[Run, float],
    ) -> None:
        """Raise KochiError if no run of an end has a value: a full disk is no change. In a search,
        an end runs once a session, so both have to be without."""
        silent = [
            end
            for end in (session[0], session[-1])
            if all(
                math.isnan(values[run])
                for s in wanted
                for run in s
                if run[0] == self.commits[end][0]
            )
        ]
        if silent and (step != "search" or len(silent) == 2):
            why = self.reasons.get(self.commits[silent[0]][0], "")
            raise KochiError(
                f"{self._name(silent[0])} has no result to compare: {why}",
                "To run again what failed, type the same line again.",
            )

    def _name(self, at: int) -> str:
        commit, subject = self.commits[at]
        return f"{commit[:_SHORT]} ({shown(subject)})"

    def _tell(self, step: str, sessions: Sequence[Sequence[int]]) -> None:
        """What a step has found."""
        own = self.bisection
        if step == "ends":
            remark(f"GOOD and BAD: {len(own.whole)} pairs, ratio {_interval(own.change)}")
            return
        if step == "confirm":
            name, ratio = self._name(own.suspects[1]), _interval(own.explained)
            remark(f"{name} and its parent: {len(own.fresh)} pairs, ratio {ratio}")
            return
        at = sessions[0][1]
        why = " failed, and is passed over" if at in own.skipped else ""
        likely = f"{self._name(own.suspects[1])} with {100 * own.probability:.0f} %"
        remark(f"Commit {at} of {own.last}, {self._name(at)}{why}: most likely {likely}")

    def _numbered(self, session: Sequence[int]) -> Iterator[Run]:
        """The runs of a session, which has one or two rounds: one with each end."""
        numbers = [self.number] * len(session)
        if len(session) == 4:
            # Which end is first must be random, too.
            numbers = [self.number, self.number, self.number + 1, self.number + 1]
            if random.Random(self.number).random() < 0.5:
                numbers[0], numbers[3] = numbers[3], numbers[0]
        self.number = max(numbers) + 1
        return zip((self.commits[at][0] for at in session), numbers, strict=True)

    # ---- results

    def _values(self, wanted: Iterable[Run]) -> dict[Run, float]:
        """The mean logarithm of the metric over the points of each run, NaN if one failed."""
        from snakemake_kochi.artifacts.record import read_record
        from snakemake_kochi.library.files import BatchFiles
        from snakemake_kochi.project.plots import DUPLICATE
        from snakemake_kochi.project.values import CODE
        from snakemake_kochi.tables.metrics import in_files
        from snakemake_kochi.tables.records import RecordedRun
        from snakemake_kochi.tables.report import report_of

        freeze = self.runs.freeze(sorted(wanted))
        self._make(freeze)
        values = {run: [math.nan] * len(self.runs.points) for run in wanted}
        experiment = freeze.experiment(self.runs.file)
        grid = self.runs.grid(freeze)
        every = BatchFiles.of(experiment.name, grid).below(freeze.directory)
        there = [each for each in every if each.record.exists()]
        if there:
            recorded = [RecordedRun.of(read_record(each.record), "") for each in there]
            report = report_of(recorded, in_files([each.by_destination for each in there]), grid)
            self.metric = chosen_metric(report, self.metric)
            for row, text in enumerate(report.runs[self.metric]):
                run = (str(report.runs[CODE][row]), int(report.runs[DUPLICATE][row]))
                point = {k: v for k, v in there[row].point.parameters.items() if k != CODE}
                index = self.runs.points.index(point)
                values[run][index] = self._log(text, run[0], str(there[row].record))
        return {run: math.fsum(own) / len(own) for run, own in values.items()}

    def _log(self, value: Any, commit: str, file: str) -> float:
        try:
            number = float("nan" if value is None else value)
        except ValueError:
            raise KochiError(f"metric '{self.metric}' is a text, and no number: {value}") from None
        if math.isnan(number):
            self.reasons[commit] = f"its output has no value of '{self.metric}'"
            return number
        if not 0 < number < math.inf:
            raise KochiError(
                f"a ratio needs values above 0, and '{self.metric}' is {number:g}", f"See {file}"
            )
        return math.log(number)

    def _make(self, freeze: Freeze) -> None:
        """Run what is missing. Raises KochiError if Snakemake did not come to it."""
        from snakemake_kochi.cli.batch import run_options
        from snakemake_kochi.cli.snakemake_calls import require_writable, run_snakemake
        from snakemake_kochi.cli.unlock import unlock_dead_run
        from snakemake_kochi.library.library import RERUN_VARIABLE
        from snakemake_kochi.reproduction.commits import why_failed
        from snakemake_kochi.resources import workflow_directory

        if not (missing := self.runs.missing(freeze)):
            return
        location = self.location
        require_writable(location)
        first = str(missing[0].record)
        unlock_dead_run(location.machine_paths, freeze.directory, first, True, "kochi bisect")
        words = ["rerun", "--snakefile", str(workflow_directory() / "Snakefile")]
        words += [*run_options(location), "--logger", "kochi", "--quiet", "rules", "progress"]
        status = run_snakemake(location, words, {RERUN_VARIABLE: str(freeze.file)})
        for place in self.runs.missing(freeze):
            if not (why := why_failed(freeze, place)):
                raise KochiError(
                    f"Snakemake ended with status {status} before all runs",
                    "To go on, type the same line again.",
                )
            self.reasons[place.point.parameters["code"]] = why

    # ---- what came out

    def as_data(self) -> dict[str, Any]:
        own = self.bisection
        before, last = own.suspects
        suspects = self.commits[before + 1 : last + 1] if own.verdict == "commit" else []
        return {
            "verdict": own.verdict,
            "metric": self.metric,
            "commits": [{"commit": commit, "subject": subject} for commit, subject in suspects],
            "parent": self.commits[before][0] if suspects else None,
            "probability": own.probability if suspects else None,
            "change": asdict(own.explained) if own.fresh else None,
            "from_good_to_bad": asdict(own.change),
            "recipe": self.runs.recipe or None,
            "failed": self.reasons,
            "runs": self.count,
        }

    def lines(self) -> Iterator[str]:
        """What came out, for people."""
        own = self.bisection
        whole = f"{self.metric} from GOOD to BAD: ratio {_interval(own.change)}"
        if own.verdict == "no difference":
            yield f"No difference between GOOD and BAD is shown. {whole}, {len(own.whole)} pairs."
            return
        before, last = own.suspects
        if own.verdict != "commit":
            yield f"No single commit explains the change. {whole}."
            if own.fresh:
                yield f"The most likely one was {self._name(last)}: {_interval(own.explained)}."
            return
        if last - before > 1:
            yield f"One of {last - before} commits, of which all but the last have no result:"
        for at in range(before + 1, last + 1):
            yield f"{self.commits[at][0]} {shown(self.commits[at][1])}"
        share = [100 * math.expm1(math.log(each.estimate)) for each in (own.explained, own.change)]
        yield (
            f"changed {self.metric}, with a probability of {100 * own.probability:.3g} %. Ratio to "
            f"its parent: {_interval(own.explained)}, {len(own.fresh)} pairs."
        )
        yield f"{whole}. The commit explains {share[0]:+.3g} of {share[1]:+.3g} %."


def _interval(ratio: Ratio) -> str:
    return f"{ratio.estimate:.3f} ({ratio.ends('.3f') or ratio.note})"
