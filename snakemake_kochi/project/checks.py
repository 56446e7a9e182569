"""Checks of experiments beyond their shape, which report all problems at once.

The grids of all batches can be made, no two artifacts have one destination, and every name in a
text of an experiment refers to something that exists, without a cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from humanfriendly.text import concatenate

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.project.destinations import Destinations, dest_problem
from snakemake_kochi.project.expansion import dependency_order, values_on
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Batch, Phase, Step
from snakemake_kochi.project.launchers import launcher_problem
from snakemake_kochi.project.machines import LOCAL
from snakemake_kochi.project.parameters import Parameters, Sweep, flattened, machines_named
from snakemake_kochi.project.plots import check_plots
from snakemake_kochi.project.problems import MAXIMUM_LINES, KeyPath, Problems
from snakemake_kochi.project.recipes import Project, Requirement
from snakemake_kochi.project.remarks import variables_mentioned, variables_needed
from snakemake_kochi.project.requests import request_texts
from snakemake_kochi.project.requirements import check_recipes, names_in, note_recipe_problems
from snakemake_kochi.project.templates import (
    FACT,
    Template,
    TemplateError,
    Value,
    is_fact,
    parse_value,
)
from snakemake_kochi.project.values import BATCH_NAME, SUBSTITUTED, environment_name


def check_experiments(
    experiments: Iterable[Experiment], machine: str, project: Project | None = None
) -> None:
    """Make the grids of all batches for a machine, and find the recipes of their points in the
    project.

    Raises one ConfigError with the problems of all of them, including artifacts of different
    batches or experiments with one dest, and a dest that is a batch's own table or plot.
    """
    destinations, found = Destinations(), []
    for experiment in experiments:
        problems = Problems(experiment.source_map)
        for batch in experiment.batches.values():
            points, _ = experiment.points(batch, machine, destinations, problems)
            if project is not None:
                note_recipe_problems(project, experiment, batch, points, machine, problems)
        found.append(problems)
    destinations.finish()
    if lines := [line for problems in found for line in problems.lines(MAXIMUM_LINES)]:
        raise ConfigError("\n".join(lines))


def check_own_outputs(
    outputs: Iterable[str], experiments: Iterable[Experiment], machine: str
) -> None:
    """Check paths in the artifact branch that users' own rules write.

    Raises one ConfigError for the impossible ones and for those that a batch writes, too. Grids are
    made only of batches whose artifacts could have one of these paths.
    """
    paths, lines, destinations = sorted(set(outputs)), [], Destinations()
    for path in paths:
        if (wrong := dest_problem(path)) is not None:
            lines.append(f'artifact("{path}"): {wrong}')
    for experiment in experiments:
        for batch in experiment.batches.values():
            if any(_may_write(experiment, batch, path) for path in paths):
                problems = Problems(experiment.source_map)
                experiment.points(batch, machine, destinations, problems)
    for path in paths:
        if (owner := destinations.owner_of(path)) is not None:
            lines.append(
                f'artifact("{path}"): {owner} has this path in the artifact branch; rename one'
            )
    if lines:
        raise ConfigError("\n".join(lines[:MAXIMUM_LINES]))


def _may_write(experiment: Experiment, batch: Batch, path: str) -> bool:
    """Whether a path, or one above or below it, can be that of a batch; no grid is made for it."""
    fixed = [artifact.dest.partition("$")[0] for artifact in batch.artifacts]
    fixed.append(f"{experiment.name}/{batch.name}.")
    return any(path.startswith(text) or text.startswith(f"{path}/") for text in fixed)


# ---- references


def check_references(experiment: Experiment, project: Project | None, problems: Problems) -> None:
    """Note every name of a recipe, machine, launcher or parameter that does not exist, or that a
    script does not see, and every cycle. Without a project, only parameters are looked for."""
    machines, scripts = {LOCAL}, []
    if project is not None:
        machines |= {*project.machines}
        scripts = [machine.load_env_on_machine for machine in project.machines.values()]
        for recipes in project.dependencies.values():
            scripts += [recipe.activate_script for recipe in recipes.values()]
        _check_names(experiment, project, problems)
    references = _References(experiment, problems, machines, "\n".join(scripts))
    references.check_defaults()
    for batch in experiment.batches.values():
        replace(references, batch=batch, path=("batches", batch.name)).check_batch(batch)
    for (path, name), batches in references.without.items():
        listed = concatenate([f"'{batch}'" for batch in batches])
        where = f"batch {listed}" if len(batches) == 1 else f"the batches {listed}"
        problems.add(path, f"the parameter '{name}' has no value in {where}")
    check_plots(experiment, problems)


def _check_names(experiment: Experiment, project: Project, problems: Problems) -> None:
    """Those of recipes, machines and launchers."""
    check_recipes(project, experiment.requirements, (), problems)
    launchers = [machine.launchers for machine in project.machines.values()]
    phases: list[tuple[KeyPath, Phase]] = [((), experiment.run)]
    for batch in experiment.batches.values():
        path: KeyPath = ("batches", batch.name)
        check_recipes(project, batch.requirements, path, problems)
        for name in batch.machines:
            if name not in project.machines:
                said = f"there is no machine '{name}', {nearest(name, project.machines)}"
                problems.add((*path, "machines"), said)
        phases.append((path, batch.run))
    for path, phase in phases:
        # One with parameters is known when its points are made.
        value = parse_value(phase.launcher)
        name = "" if value.names else value.render({})
        if name and (wrong := launcher_problem(name, launchers)):
            at = ("run", "launcher")
            problems.add(problems.source_map.first((*path, *at), at), wrong)


@dataclass
class _References:
    """The references of the top level of a file, or of a batch.

    `machines`: all that are known. `scripts`: those of kochi.yaml that are executed before others,
    in the same shell. `without`: where a parameter is used that some batches lack, and which ones.
    """

    experiment: Experiment
    problems: Problems
    machines: set[str]
    scripts: str
    batch: Batch | None = None
    path: KeyPath = ()
    without: dict[tuple[KeyPath, str], list[str]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)  # of all parameters, once

    @cached_property
    def defaults(self) -> dict[str, tuple[Value, ...]]:
        return _all_values(self.experiment.default_parameters)

    @cached_property
    def anywhere(self) -> dict[str, None]:
        """The parameters of any batch: a default may use one that only batches define."""
        own = (batch.parameters for batch in self.experiment.batches.values())
        return dict.fromkeys(name for each in (self.defaults, *own) for name in each)

    def check_defaults(self) -> None:
        experiment, known = self.experiment, self.anywhere
        for name, values in self.defaults.items():
            self.values(values, known, ("default_params", name))
        self.parameters(experiment.default_parameters, ("default_params",))
        self.text(experiment.default_name, known, ("default_name",))
        self.text(experiment.default_queue, known, ("default_queue",))
        self.requirements(experiment.requirements, known, ())
        self.scripts_of(experiment, known)
        if not experiment.batches:
            self.something_to_do(experiment)

    def check_batch(self, batch: Batch) -> None:
        values = {**self.defaults, **_all_values(batch.parameters)}
        places = {name: path for each in batch.sweeps for name, path in each.all_places.items()}
        for name, alternatives in values.items():
            self.values(alternatives, values, places.get(name, ("default_params", name)))
        for sweep in batch.sweeps:
            self.sweep(sweep, values)
            own = {**self.experiment.default_parameters, **sweep.parameters}
            self.parameters(own, (*sweep.place, "params"))
        self.text(batch.job_name, values, self.place("name", default=("default_name",)))
        self.text(batch.queue, values, self.place("queue", default=("default_queue",)))
        for index, artifact in enumerate(batch.artifacts):
            self.text(artifact.dest, values, (*self.path, "artifacts", index, "dest"))
            self.text(artifact.src, values, (*self.path, "artifacts", index, "src"))
        replaced = {each.dependency for each in batch.requirements if each.machines is None}
        for index, each in enumerate(self.experiment.requirements):
            if each.dependency not in replaced:
                self.names(names_in([each]), values, ("depends", index))
        self.requirements(batch.requirements, values, self.path)
        self.scripts_of(batch, values)
        self.something_to_do(batch)
        for clash in values:
            if clash in batch.metrics:
                said = "this is also a parameter; rename the metric"
                self.problems.add(self.place("metrics", clash), said)

    def place(self, *keys: str, default: KeyPath = ()) -> KeyPath:
        """The key path in the batch, or that of the file if the batch does not override it."""
        return self.problems.source_map.first((*self.path, *keys), default or keys)

    def missing(self, name: str, path: KeyPath) -> None:
        if self.batch is None or path[0] == "batches":
            said = f"there is no parameter '{name}', {nearest(name, self.anywhere)}"
            self.problems.add(path, said)
        elif name in self.anywhere:  # otherwise it was noted for the top level of the file
            batches = self.without.setdefault((path, name), [])
            if self.batch.name not in batches:
                batches.append(self.batch.name)

    def names(self, names: Iterable[str], known: Collection[str], path: KeyPath) -> None:
        for name in names:
            if name in known:
                continue
            if is_fact(name) or name == FACT.rstrip("."):
                fact = name if is_fact(name) else f"{FACT}name"
                said = "a fact of the machine is for values and conditions only; give it a name"
                self.problems.add(path, f"{said} in default_params: NAME: ${fact}")
            else:
                self.missing(name, path)

    def values(self, values: Iterable[Value], known: Collection[str], path: KeyPath) -> None:
        """The names in values and conditions, which may be facts of the machine."""
        for value in values:
            names = (name for name in value.names if not is_fact(name))
            self.names(names, [*known, BATCH_NAME], path)

    def text(self, text: str | None, known: Collection[str], path: KeyPath) -> None:
        self.names(Template.parse(text or "").names, [*known, *SUBSTITUTED], path)

    def parameters(self, parameters: Parameters, path: KeyPath) -> None:
        """Note what is wrong with parameters together: cycles, which may exist on some machines
        only, and variables with one name."""
        found = []
        for machine in sorted({*self.machines, *machines_named(parameters)}):
            try:
                dependency_order(values_on(parameters, machine))
            except TemplateError as error:
                found.append(str(error))
        variables: dict[str, str] = {}
        for name in flattened(parameters):
            other = variables.setdefault(environment_name(name), name)
            if other != name:
                both = f"the parameters '{other}' and '{name}' would both be"
                found.append(f"{both} KOCHI_PARAM_{environment_name(name)}; rename one")
        for said in found:
            if self.batch is None or said not in self.told:
                self.problems.add(path, said)
        self.told |= {*found} if self.batch is None else set()

    def requirements(
        self, requirements: Iterable[Requirement], known: Collection[str], path: KeyPath
    ) -> None:
        for index, each in enumerate(requirements):
            self.names(names_in([each]), known, (*path, "depends", index))

    def sweep(self, sweep: Sweep, known: Collection[str]) -> None:
        for place, entry in sweep.exclude:
            for name in entry:
                self.names([name], known, (*place, name))
        for condition in sweep.conditions:
            values = [condition.expression, parse_value(condition.reason)]
            self.values(values, known, condition.place)

    def scripts_of(self, owner: Experiment | Batch, known: Collection[str]) -> None:
        for key, phase in (("build", owner.build), ("run", owner.run)):
            self.script(phase, known, key)
            for place, text in request_texts(phase).items():
                path, value = self.place(key, *map(str, place)), parse_value(text)
                self.values([value], known, path)
                for name in value.names:
                    if key == "build" and name in known and name not in phase.depend_params:
                        said = f"the build does not depend on '{name}'; add it to its depend_params"
                        self.problems.add(path, said)
            self.names(parse_value(phase.launcher).names, known, self.place(key, "launcher"))
        if owner.prepare is not None:
            self.script(owner.prepare, known, "prepare")

    def script(self, script: Phase | Step, known: Collection[str], key: str) -> None:
        """Note variables of parameters that a script uses and does not see: bash would end it."""
        seen = script.depend_params
        self.names(seen, known, self.place(key, "depend_params"))
        variables = {environment_name(name): name for name in known}
        visible = {f"KOCHI_PARAM_{environment_name(name)}" for name in seen}
        visible |= {*variables_mentioned(self.scripts)}
        for variable in variables_needed(script.script) if script.strict else ():
            short = variable.removeprefix("KOCHI_PARAM_")
            if variable in visible:
                continue
            if short not in variables:
                said = f"${variable}: there is no such parameter, {nearest(short, variables)}"
            else:
                said = (
                    f"${variable}: the script does not see this parameter; write, in {key}: "
                    f"depend_params: [{', '.join([*seen, variables[short]])}]"
                )
            self.problems.add(self.place(key, "script"), said)

    def something_to_do(self, owner: Experiment | Batch) -> None:
        if not (owner.build.script.strip() or owner.run.script.strip()):
            path = self.place("run")
            is_there = path in self.problems.source_map.lines
            said = "a key 'script' was expected" if is_there else "the key 'run' is missing"
            self.problems.add(path, said)


def _all_values(parameters: Parameters) -> dict[str, tuple[Value, ...]]:
    return {
        name: tuple(value for choice in choices for value in choice.parsed())
        for name, choices in parameters.items()
    }
