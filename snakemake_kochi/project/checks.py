"""Checks of experiments beyond their shape, which report all problems at once.

The grids of all batches can be made, no two artifacts have one destination, and every name in a
text of an experiment refers to something that exists, without a cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from humanfriendly.text import concatenate

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.project.destinations import Destinations, dest_problem
from snakemake_kochi.project.expansion import dependency_order, values_on
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import (
    Batch,
    Phase,
)
from snakemake_kochi.project.machines import LOCAL
from snakemake_kochi.project.parameters import (
    Parameters,
    ParameterValues,
    Sweep,
    machines_named,
    select,
)
from snakemake_kochi.project.preparation import Step
from snakemake_kochi.project.problems import MAXIMUM_LINES, KeyPath, Problems
from snakemake_kochi.project.recipes import Project, Requirement
from snakemake_kochi.project.requests import request_texts
from snakemake_kochi.project.requirements import names_in, note_recipe_problems
from snakemake_kochi.project.templates import (
    FACT,
    Template,
    TemplateError,
    Value,
    is_fact,
    parse_value,
)
from snakemake_kochi.project.values import BATCH_NAME, SUBSTITUTED, environment_name
from snakemake_kochi.project.visibility import variables_mentioned, variables_needed


def check_experiments(
    experiments: Iterable[Experiment], machine: str, project: Project | None = None
) -> None:
    """Make the grids of all batches for a machine, and find the recipes of their points in the
    project.

    Raises one ConfigError with the problems of all of them, including artifacts of different
    batches or experiments with one dest, and a dest that is a batch's own table or plot.
    """
    destinations = Destinations()
    found: list[tuple[Problems, KeyPath]] = []
    for experiment in experiments:
        of_file = Problems(experiment.source_map)
        for batch in experiment.batches.values():
            problems = of_file.fork()
            points, _ = experiment.points(batch, machine, destinations, problems)
            if project is not None:
                note_recipe_problems(project, experiment, batch, points, machine, problems)
            found.append((problems, ("batches", batch.name)))
    destinations.finish()
    lines = [line for problems, path in found for line in problems.lines(MAXIMUM_LINES, path)]
    if lines:
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


def note_grid_problems(experiment: Experiment, machines: Iterable[str], problems: Problems) -> None:
    """Note the problems of the grids of an incorrect file, as far as they can be made."""
    seen = set()
    parameters = [
        experiment.default_parameters,
        *(batch.parameters for batch in experiment.batches.values()),
    ]
    for machine in sorted({*machines, *experiment.mentioned_machines}):
        choices = tuple(
            select(choices, machine) for each in parameters for choices in each.values()
        )
        if choices not in seen:
            seen.add(choices)
            _note_on_machine(experiment, machine, problems)


def _note_on_machine(experiment: Experiment, machine: str, problems: Problems) -> None:
    destinations = Destinations()
    found: list[tuple[Problems, KeyPath]] = []
    for batch in experiment.batches.values():
        path: KeyPath = ("batches", batch.name)
        if any(map(problems.is_unknown, [("default_params",), (*path, "params")])):
            continue
        chosen = {**experiment.default_parameters, **batch.parameters}
        if not all(select(choices, machine) for choices in chosen.values()):
            continue  # which matters only on a machine that is used
        given = experiment.given
        if experiment.needs_more(batch) and (given is None or given.machine != machine):
            continue
        own = problems.fork()
        try:
            experiment.points(batch, machine, destinations, own)
        except ConfigError:
            continue  # parameters in a cycle, which was noted
        found.append((own, path))
    destinations.finish()
    for own, path in found:
        problems.take(own, MAXIMUM_LINES, path)


def check_references(experiment: Experiment, project: Project | None, problems: Problems) -> None:
    """Note every reference to a parameter that does not exist, or that a script does not see, and
    every cycle."""
    all_machines = {LOCAL, *(project.machines if project else ())}
    elsewhere = frozenset(variables_mentioned(_scripts(project)))
    _Defaults(experiment, problems, elsewhere).check(all_machines)
    without: dict[tuple[KeyPath, str], list[str]] = {}
    for batch in experiment.batches.values():
        _InBatch(experiment, batch, problems, without, elsewhere).check(all_machines)
    for (path, name), batches in without.items():
        listed = concatenate([f"'{batch}'" for batch in batches])
        where = f"batch {listed}" if len(batches) == 1 else f"the batches {listed}"
        problems.add(path, f"the parameter '{name}' has no value in {where}")


def _scripts(project: Project | None) -> str:
    """The scripts of a project that are executed before others, in the same shell."""
    if project is None:
        return ""
    found = [machine.load_env_on_machine for machine in project.machines.values()]
    for dependency in project.dependencies.values():
        found += [recipe.activate_script for recipe in dependency.values()]
    return "\n".join(found)


def _check_variables(known: Iterable[str], path: KeyPath, problems: Problems) -> None:
    variables: dict[str, str] = {}
    for name in known:
        other = variables.setdefault(environment_name(name), name)
        if other != name:
            problems.add_once(
                path,
                f"the parameters '{other}' and '{name}' would both be "
                f"KOCHI_PARAM_{environment_name(name)}; rename one",
                ("default_params",),
            )


def _check_circles(
    parameters: Parameters,
    machines: Iterable[str],
    path: KeyPath,
    problems: Problems,
) -> None:
    """The values that count depend on the machine, so a cycle may exist on some machines only."""
    for machine in sorted({*machines, *machines_named(parameters)}):
        try:
            dependency_order(values_on(parameters, machine))
        except TemplateError as error:
            problems.add_once(path, str(error), ("default_params",))


def _all_values(choices: Iterable[ParameterValues]) -> tuple[Value, ...]:
    return tuple(value for choice in choices for value in choice.parsed())


class _References:
    """The references of the top level of a file, or of a batch."""

    def __init__(
        self, experiment: Experiment, problems: Problems, elsewhere: frozenset[str] = frozenset()
    ) -> None:
        """`elsewhere`: the variables that the scripts of kochi.yaml may set."""
        self.elsewhere = elsewhere
        self.experiment = experiment
        self.problems = problems
        self.defaults: dict[str, tuple[Value, ...]] = {
            name: _all_values(choices) for name, choices in experiment.default_parameters.items()
        }
        # In any batch: a default may use a parameter that only batches define.
        self.anywhere = dict.fromkeys(self.defaults)
        for batch in experiment.batches.values():
            self.anywhere |= dict.fromkeys(batch.parameters)

    def incomplete(self, *places: KeyPath) -> bool:
        """Whether parameters are missing because the section of their definition is wrong."""
        return any(map(self.problems.is_unknown, [("default_params",), *places]))

    def missing(self, name: str, path: KeyPath) -> None:
        if not self.incomplete(("batches",)):
            self.unknown(name, path)

    def unknown(self, name: str, path: KeyPath) -> None:
        said = nearest(name, self.anywhere)
        self.problems.add(path, f"there is no parameter '{name}', {said}")

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
        try:
            self.names(Template.parse(text or "").names, [*known, *SUBSTITUTED], path)
        except TemplateError as error:
            self.problems.add(path, str(error))

    def something_to_do(self, build: Phase, run: Phase, path: KeyPath) -> None:
        if build.script.strip() or run.script.strip():
            return
        is_there = path in self.problems.source_map.lines
        said = "a key 'script' was expected" if is_there else "the key 'run' is missing"
        self.problems.add(path, said)

    def place(self, *keys: str) -> KeyPath:
        """The path of a key that a batch may override."""
        return keys

    def requirements(
        self, requirements: Iterable[Requirement], known: Collection[str], path: KeyPath
    ) -> None:
        for index, each in enumerate(requirements):
            self.names(names_in([each]), known, (*path, "depends", index))

    def phase(self, phase: Phase, known: Collection[str], key: str) -> None:
        self.names(phase.depend_params, known, self.place(key, "depend_params"))
        self.script(phase, phase.depend_params, known, key)
        for place, text in request_texts(phase).items():
            path, value = self.place(key, *map(str, place)), parse_value(text)
            self.values([value], known, path)
            for name in value.names:
                if key == "build" and name in known and name not in phase.depend_params:
                    said = f"the build does not depend on '{name}'; add it to its depend_params"
                    self.problems.add(path, said)
        self.names(parse_value(phase.launcher).names, known, self.place(key, "launcher"))

    def sweep(self, sweep: Sweep, known: Mapping[str, object]) -> None:
        for place, entry in sweep.exclude:
            for name in entry:
                self.names([name], known, (*place, name))
        for condition in sweep.conditions:
            values = [condition.expression, parse_value(condition.reason)]
            self.values(values, known, condition.place)

    def prepare(self, step: Step | None, known: Collection[str]) -> None:
        if step is not None:
            self.names(step.depend_params, known, self.place("prepare", "depend_params"))
            self.script(step, step.depend_params, known, "prepare")

    def script(
        self, script: Phase | Step, seen: Collection[str], known: Collection[str], key: str
    ) -> None:
        """Note variables of parameters that a script uses and does not see: bash would end it."""
        variables = {environment_name(name): name for name in known}
        visible = {f"KOCHI_PARAM_{environment_name(name)}" for name in seen} | self.elsewhere
        path = self.place(key, "script")
        for variable in variables_needed(script.script) if script.strict else ():
            short = variable.removeprefix("KOCHI_PARAM_")
            if variable in visible or self.problems.is_unknown(path):
                continue
            if short not in variables:
                if not self.incomplete(("batches",)):
                    said = nearest(short, variables)
                    self.problems.add(path, f"${variable}: there is no such parameter, {said}")
            else:
                listed = ", ".join([*seen, variables[short]])
                self.problems.add(
                    path,
                    f"${variable}: the script does not see this parameter; "
                    f"write, in {key}: depend_params: [{listed}]",
                )


class _Defaults(_References):
    def check(self, machines: Iterable[str]) -> None:
        experiment = self.experiment
        for name, values in self.defaults.items():
            self.values(values, self.anywhere, ("default_params", name))
        place: KeyPath = ("default_params",)
        _check_circles(experiment.default_parameters, machines, place, self.problems)
        _check_variables(self.defaults, ("default_params",), self.problems)
        self.text(experiment.default_name, self.anywhere, ("default_name",))
        self.text(experiment.default_queue, self.anywhere, ("default_queue",))
        self.requirements(experiment.requirements, self.anywhere, ())
        self.phase(experiment.build, self.anywhere, "build")
        self.phase(experiment.run, self.anywhere, "run")
        self.prepare(experiment.prepare, self.anywhere)
        if not experiment.batches:
            self.something_to_do(experiment.build, experiment.run, ("run",))


class _InBatch(_References):
    def __init__(
        self,
        experiment: Experiment,
        batch: Batch,
        problems: Problems,
        without: dict[tuple[KeyPath, str], list[str]],
        elsewhere: frozenset[str],
    ) -> None:
        """`without`: where a parameter is used that some batches lack, and which batches."""
        super().__init__(experiment, problems, elsewhere)
        self.batch = batch
        self._without = without
        self.path: KeyPath = ("batches", batch.name)

    def missing(self, name: str, path: KeyPath) -> None:
        if self.incomplete((*self.path, "params")):
            return
        if path[0] == "batches":
            self.unknown(name, path)
        elif name in self.anywhere:  # otherwise it was noted for the top level of the file
            batches = self._without.setdefault((path, name), [])
            if self.batch.name not in batches:
                batches.append(self.batch.name)

    def place(self, *keys: str) -> KeyPath:
        return self.own(*keys, default=keys)

    def own(self, *keys: str, default: KeyPath) -> KeyPath:
        """The key path in the batch, or that of the default if the batch does not override it."""
        return self.problems.source_map.first((*self.path, *keys), default)

    def check(self, machines: Iterable[str]) -> None:
        batch = self.batch
        values = dict(self.defaults)
        for name, choices in batch.parameters.items():
            values[name] = _all_values(choices)
        places = {name: path for each in batch.sweeps for name, path in each.all_places.items()}
        for name, alternatives in values.items():
            path = places.get(name, self.own("params", name, default=("default_params", name)))
            self.values(alternatives, values, path)
        for sweep in batch.sweeps:
            self.sweep(sweep, values)
        _check_variables(values, (*self.path, "params"), self.problems)
        for sweep in batch.sweeps:
            parameters = {**self.experiment.default_parameters, **sweep.parameters}
            _check_circles(parameters, machines, (*sweep.place, "params"), self.problems)
        self.text(batch.job_name, values, self.own("name", default=("default_name",)))
        self.text(batch.queue, values, self.own("queue", default=("default_queue",)))
        for index, artifact in enumerate(batch.artifacts):
            self.text(artifact.dest, values, (*self.path, "artifacts", index, "dest"))
            self.text(artifact.src, values, (*self.path, "artifacts", index, "src"))
        replaced = {each.dependency for each in batch.requirements if each.machines is None}
        for index, each in enumerate(self.experiment.requirements):
            if each.dependency not in replaced:
                self.names(names_in([each]), values, ("depends", index))
        self.requirements(batch.requirements, values, self.path)
        for key, phase in (("build", batch.build), ("run", batch.run)):
            self.phase(phase, values, key)
        self.prepare(batch.prepare, values)
        self.something_to_do(batch.build, batch.run, self.own("run", default=("run",)))
        for clash in values:
            if clash in batch.metrics:
                path = self.own("metrics", clash, default=("metrics", clash))
                self.problems.add(path, "this is also a parameter; rename the metric")
