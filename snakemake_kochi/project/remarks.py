"""What is legal but probably not intended; which parameters a script needs and sees."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Batch
from snakemake_kochi.project.parameters import Parameters, ParameterValues, Sweep, flattened
from snakemake_kochi.project.problems import Problems
from snakemake_kochi.project.templates import Literal, parse_value
from snakemake_kochi.project.values import CODE, environment_name

_PREFIX = "KOCHI_PARAM_"
_COMMENT = re.compile(r"(^|\s)#.*")
_SET_PLUS_U = re.compile(r"\bset\s+(\+\w*u|\+o\s+nounset)")
# What bash does not expand, unless a comment or another quote has an apostrophe.
_QUOTED = re.compile(
    r"'[^'\n]*'|<<-?[ \t]*(?:'(\w+)'|\"(\w+)\"|\\(\w+)).*?^[ \t]*(?:\1|\2|\3)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
# `$X`, `${X}` and `${X...}`, but no default and no test: ${X:-1}, ${X-1}, ${X:=1}, ${X:+1}; and no
# list of names: ${!X*}.
_BASH = re.compile(rf"(?<!\\)\$(?:({_PREFIX}\w+)|\{{[#!]?({_PREFIX}\w+)(?!\w|:?[-=+]|[*@]\}}))")
_PYTHON = re.compile(rf"""environ\[\s*["']({_PREFIX}\w+)["']\s*\](?!\s*=[^=])""")
_MENTIONED = re.compile(rf"(?<!\w){_PREFIX}\w+")


def variables_needed(script: str) -> list[str]:
    """The variables KOCHI_PARAM_... without which a strict script fails, as far as its text says.

    Those that it may set or test itself are left out, and all of one that allows unset variables.
    """
    if _PREFIX not in script:
        return []
    text = "\n".join(_COMMENT.sub("", line) for line in script.splitlines())
    if _SET_PLUS_U.search(text):
        return []
    needed = [first or second for first, second in _BASH.findall(_QUOTED.sub("", text))]
    needed += _PYTHON.findall(text)
    own = set(variables_mentioned(_PYTHON.sub("", _BASH.sub("", text))))
    return [name for name in dict.fromkeys(needed) if name not in own]


def variables_mentioned(text: str) -> Iterator[str]:
    """The variables KOCHI_PARAM_... in a text, which may set them."""
    return (found[0] for found in _MENTIONED.finditer(text))


def note_remarks(experiment: Experiment, remarks: Problems) -> None:
    """Note what is legal but probably not intended, in an experiment without problems."""
    defaults = experiment.unused(None)
    for name, said in defaults.items():
        remarks.add(("default_params", name), said)
    for batch in experiment.batches.values():
        for name, said in experiment.unused(batch).items():
            if name not in defaults:
                remarks.add(("batches", batch.name, "params", name), said)
        _note_code(batch, remarks)
        _note_unseen(experiment, batch, remarks, {CODE, *defaults, *experiment.unused(batch)})
    for batch in experiment.batches.values():
        for sweep in batch.sweeps:
            _note_impossible_values(experiment, sweep, remarks)
    runs = [experiment.run, *(batch.run for batch in experiment.batches.values())]
    if ("run",) in remarks.source_map.lines and not any(run.script.strip() for run in runs):
        remarks.add(("run",), "there is no script: nothing is run after the build")


def _note_unseen(
    experiment: Experiment, batch: Batch, remarks: Problems, noted: Collection[str]
) -> None:
    """Note parameters that vary and that no script sees. `noted`: those of other
    remarks."""
    for name, sweep in unseen_parameters(experiment, batch).items():
        if name not in noted:
            key = "run" if batch.run.script.strip() else "build"
            seen = (batch.run if key == "run" else batch.build).depend_params
            remarks.add(
                sweep.place_of(name),
                f"no script sees '{name}': its points are the same run again; write, in {key}: "
                f"depend_params: [{', '.join([*seen, name])}]",
            )


def _note_code(batch: Batch, remarks: Problems) -> None:
    """Note a parameter with the name of the key for the project's code, if no script sees it."""
    seen = (*batch.run.depend_params, *batch.build.depend_params)
    if batch.has_code or CODE in seen:
        return
    for sweep in batch.sweeps:
        if CODE in flattened(sweep.parameters):
            remarks.add(
                sweep.place_of(CODE),
                "this is a parameter like any other; to run the project's code at these commits, "
                "write 'code:' beside 'params:'",
            )


def _note_impossible_values(experiment: Experiment, sweep: Sweep, remarks: Problems) -> None:
    """Note values in exclusions and conditions that a parameter never has, as far as the file says
    its values."""
    entries = flattened({**experiment.default_parameters, **sweep.parameters})
    wanted = [
        ((*place, name), name, text)
        for place, entry in sweep.exclude
        for name, texts in entry.items()
        for text in texts
        if isinstance(parse_value(text), Literal)
    ]
    wanted += [
        (condition.place, *each)
        for condition in sweep.conditions
        for each in condition.expression.compared()
    ]
    for place, name, text in wanted:
        choices = entries.get(name, ())
        values = [value for choice in choices for value in choice.parsed()]
        is_known = values and not any(choice.series for choice in choices)
        if is_known and all(isinstance(value, Literal) for value in values):
            known = {value.render({}) for value in values}
            if text not in known:
                said = f"'{name}' is never '{text}', {nearest(text, sorted(known))}"
                remarks.add(place, said)


def depend_params(data: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """The parameters that a script sees: those that its section lists, by default those of the
    `known` ones that its text mentions."""
    if "depend_params" in data:
        return tuple(dict.fromkeys(data["depend_params"]))
    mentioned = set(variables_mentioned(data.get("script", "")))
    return tuple(
        name for name in dict.fromkeys(known) if f"{_PREFIX}{environment_name(name)}" in mentioned
    )


def unseen_parameters(experiment: Experiment, batch: Batch) -> dict[str, Sweep]:
    """The parameters that vary in a sweep of a batch, and of whose values nothing tells a run.

    Those in conditions are left out: with such a condition they may follow from others.
    """
    found: dict[str, Sweep] = {}
    for sweep in batch.sweeps:
        own = {**experiment.default_parameters, **sweep.parameters}
        told = _with_those_used({*experiment.told(batch), *_limiting(sweep)}, flattened(own))
        for names in _factors(sweep):
            if told.isdisjoint(names):
                found |= {name: sweep for name in names if name not in found}
    return found


def _limiting(sweep: Sweep) -> Iterator[str]:
    for condition in sweep.conditions:
        yield from condition.expression.names
    for _, entry in sweep.exclude:
        yield from entry


def _with_those_used(
    names: Collection[str], entries: Mapping[str, Iterable[ParameterValues]]
) -> set[str]:
    """These names, and those that their values use, and the values of these."""
    found: set[str] = set()
    left = [*names]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            values = (value for choice in entries.get(name, ()) for value in choice.parsed())
            left += [other for value in values for other in value.names]
    return found


def _factors(sweep: Sweep) -> Iterator[set[str]]:
    """The parameters of each factor of a sweep that has several alternatives."""
    zipped = {name: group for group in sweep.zipped for name in group}
    yield from (set(group) for group in sweep.zipped)
    yield from _factors_of(
        {name: choices for name, choices in sweep.parameters.items() if name not in zipped}
    )


def _factors_of(parameters: Parameters) -> Iterator[set[str]]:
    for name, choices in parameters.items():
        if any(choice.has_several for choice in choices):
            yield {name, *flattened({name: choices})}
        for choice in choices:
            for below in choice.below:
                yield from _factors_of(below)
