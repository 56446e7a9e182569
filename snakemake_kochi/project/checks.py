"""Checks of experiments beyond their shape, which report all problems at once.

Every name in a text of an experiment refers to something that exists, without a cycle, and a script
sees the parameters that it uses. The grids of all batches can be made, and no two artifacts have
one destination.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from snakemake_kochi.errors import ConfigError, nearest
from snakemake_kochi.project.document import MAXIMUM_LINES, KeyPath, Problems
from snakemake_kochi.project.experiment import Destinations, Experiment, Use, uses_of
from snakemake_kochi.project.expressions import FACT, is_fact, parse_value
from snakemake_kochi.project.grid import Batch, Settings
from snakemake_kochi.project.launchers import launcher_problem
from snakemake_kochi.project.plots import check_plots
from snakemake_kochi.project.recipes import Project, check_recipes, note_recipe_problems
from snakemake_kochi.project.sweeps import (
    Parameters,
    dependency_order,
    flattened,
    names_used,
)
from snakemake_kochi.project.values import (
    BATCH_NAME,
    dest_problem,
    environment_name,
)

_PREFIX = "KOCHI_PARAM_"
_COMMENT = re.compile(r"(^|\s)#.*")
# `$X`, `${X}` and `${X...}`, but no default and no test: ${X:-1}, ${X-1}, ${X:=1}, ${X:+1}; and no
# list of names: ${!X*}.
_BASH = re.compile(rf"(?<!\\)\$(?:({_PREFIX}\w+)|\{{[#!]?({_PREFIX}\w+)(?!\w|:?[-=+]|[*@]\}}))")
_PYTHON = re.compile(rf"""environ\[\s*["']({_PREFIX}\w+)["']\s*\](?!\s*=[^=])""")
_MENTIONED = re.compile(rf"(?<!\w){_PREFIX}\w+")


# ---- grids


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


def check_own_outputs(outputs: Iterable[str], experiments: Iterable[Experiment]) -> None:
    """Check paths in the artifact branch that users' own rules write.

    Raises one ConfigError for the impossible ones and for those where a batch has its table or,
    before the first parameter in their paths, its artifacts.
    """
    owners: dict[str, str] = {}
    for experiment in experiments:
        for name, batch in experiment.batches.items():
            dests = [each.dest.replace("${batch_name}", name) for each in batch.artifacts]
            begins = [f"{experiment.name}/{name}.", *(dest.partition("$")[0] for dest in dests)]
            owners |= dict.fromkeys(filter(None, begins), f"batch '{name}' of {experiment.file}")
    lines = []
    for path in sorted(set(outputs)):
        parts = [f for f in owners if path.startswith(f) or f"{f}/".startswith(f"{path}/")]
        said = [f"{owners[f]} has this path in the artifact branch; rename one" for f in parts[:1]]
        if wrong := [*filter(None, [dest_problem(path)]), *said]:
            lines.append(f'artifact("{path}"): {wrong[0]}')
    if lines:
        raise ConfigError("\n".join(lines[:MAXIMUM_LINES]))


# ---- references


def check_references(experiment: Experiment, project: Project | None, problems: Problems) -> None:
    """Note every name of a recipe, machine, launcher or parameter that does not exist, or that a
    script does not see, and every cycle. Without a project, only parameters are looked for."""
    before = ""  # what is executed before other scripts, in the same shell
    if project is not None:
        scripts = [machine.load_env_on_machine for machine in project.machines.values()]
        for recipes in project.dependencies.values():
            scripts += [recipe.activate_script for recipe in recipes.values()]
        before = "\n".join(scripts)
        _check_names(experiment, project, problems)
    references = _References(experiment, problems, {*variables_mentioned(before)})
    for batch in (None, *experiment.batches.values()):
        references.check(batch)
    check_plots(experiment, problems)


def _check_names(experiment: Experiment, project: Project, problems: Problems) -> None:
    """Those of recipes, machines and launchers."""
    launchers = [machine.launchers for machine in project.machines.values()]
    owners: list[Settings] = [experiment, *experiment.batches.values()]
    for owner in owners:
        check_recipes(project, owner.requirements, owner.path, problems)
        for name in owner.machines if isinstance(owner, Batch) else ():
            problems.check_known((*owner.path, "machines"), "machine", name, project.machines)
        # One with parameters is known when its points are made.
        value = parse_value(owner.run.launcher)
        name = "" if value.names else value.render({})
        if name and (wrong := launcher_problem(name, launchers)):
            problems.add((*owner.path, "run", "launcher"), wrong)


class _References:
    """The references of an experiment. `set_before`: variables that other scripts may set."""

    def __init__(self, experiment: Experiment, problems: Problems, set_before: set[str]) -> None:
        self.experiment, self.problems, self.set_before = experiment, problems, set_before
        # The parameters of any batch: a default may use one that only batches define.
        every = [experiment.default_parameters]
        every += [batch.parameters for batch in experiment.batches.values()]
        self.anywhere = dict.fromkeys(name for each in every for name in each)

    def check(self, batch: Batch | None) -> None:
        """Those of a batch, or those outside of the batches."""
        owner: Settings = batch or self.experiment
        defaults = self.experiment.default_parameters
        parameters = {**defaults, **(batch.parameters if batch else {})}
        known = parameters if batch else self.anywhere
        for name, used in names_used(parameters).items():
            entries = parameters[name]
            place = entries[0].place if entries else ("default_params", name)
            self._names(batch, Use(place, used, (BATCH_NAME, FACT)), known)
        if batch is None:
            self.is_sound = self._together(defaults, ("default_params",))
        for sweep in owner.sweeps if self.is_sound else ():
            self._together({**defaults, **sweep.parameters}, (*sweep.place, "params"))
        for use in uses_of(self.experiment, batch):
            self._names(batch, use, known)
        for at, value in owner.build.requested.items():
            for name in value.names:
                if name in known and name not in owner.build.depend_params:
                    said = f"the build does not depend on '{name}'; add it to its depend_params"
                    self.problems.add((*owner.path, "build", *at), said)
        for key in ("build", "run", "prepare"):
            self._script(owner, key, known)
        has_script = owner.build.script.strip() or owner.run.script.strip()
        if not has_script and (batch or not self.experiment.batches):
            path = self.problems.source_map.at((*owner.path, "run"))
            is_there = path in self.problems.source_map.lines
            said = "a key 'script' was expected" if is_there else "the key 'run' is missing"
            self.problems.add(path if is_there else ("run",), said)
        for clash in {*owner.metrics} & {*known} if batch else ():
            said = "this is also a parameter; rename the metric"
            self.problems.add((*owner.path, "metrics", clash), said)

    def _names(self, batch: Batch | None, use: Use, known: Collection[str]) -> None:
        path = self.problems.source_map.at(use.path)
        for name in use.names:
            fact = name if is_fact(name) else f"{FACT}name"
            if name in known or name in use.also or (is_fact(name) and FACT in use.also):
                continue
            if is_fact(name) or name == FACT.rstrip("."):
                said = "a fact of the machine is for values and conditions only; give it a name"
                self.problems.add(path, f"{said} in default_params: NAME: ${fact}")
            elif batch is None or path[0] == "batches":
                self.problems.check_known(path, "parameter", name, {*self.anywhere} - {name})
            elif name in self.anywhere:  # otherwise it was noted for the top level of the file
                said = f"the parameter '{name}' has no value in batch '{batch.name}'"
                self.problems.add(path, said)

    def _together(self, parameters: Parameters, path: KeyPath) -> bool:
        """Note a cycle, and variables with one name; whether there are none."""
        had = bool(self.problems)
        every = flattened(parameters)
        named = {m for each in every.values() for choice in each for m in choice.machines or ()}
        for machine in sorted({"", *named}):  # any other, and those that are named
            with self.problems.noting(path):
                dependency_order(names_used(flattened(parameters, machine)))
        variables: dict[str, str] = {}
        for name in every:
            variable = environment_name(name)
            if (other := variables.setdefault(variable, name)) != name:
                both = f"the parameters '{other}' and '{name}' would both be"
                self.problems.add(path, f"{both} {_PREFIX}{variable}; rename one")
        return had or not self.problems

    def _script(self, owner: Settings, key: str, known: Iterable[str]) -> None:
        """Note variables of parameters that a script uses and does not see: bash would end it."""
        script = getattr(owner, key)
        if script is None or not script.strict:
            return
        variables = {environment_name(name): name for name in known}
        visible = {environment_name(name) for name in script.depend_params}
        for variable in variables_needed(script.script):
            short = variable.removeprefix(_PREFIX)
            if short in visible or variable in self.set_before:
                continue
            said = f"there is no such parameter, {nearest(short, variables)}"
            if short in variables:
                listed = ", ".join([*script.depend_params, variables[short]])
                said = f"the script does not see this parameter; write, in {key}: "
                said += f"depend_params: [{listed}]"
            self.problems.add((*owner.path, key, "script"), f"${variable}: {said}")


# ---- scripts


def depend_params(data: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """The parameters that a script sees: those that its section lists, by default those of the
    `known` ones that its text mentions."""
    if "depend_params" in data:
        return tuple(dict.fromkeys(data["depend_params"]))
    mentioned = {*variables_mentioned(data.get("script", ""))}
    return tuple(
        name for name in dict.fromkeys(known) if f"{_PREFIX}{environment_name(name)}" in mentioned
    )


def variables_needed(script: str) -> list[str]:
    """The variables KOCHI_PARAM_... without which a strict script fails, as far as its text says;
    without those that it may set or test itself."""
    text = _COMMENT.sub("", script)
    needed = [first or second for first, second in _BASH.findall(text)] + _PYTHON.findall(text)
    own = set(variables_mentioned(_PYTHON.sub("", _BASH.sub("", text))))
    return [name for name in dict.fromkeys(needed) if name not in own]


def variables_mentioned(text: str) -> Iterator[str]:
    """The variables KOCHI_PARAM_... in a text, which may set them."""
    return (found[0] for found in _MENTIONED.finditer(text))
