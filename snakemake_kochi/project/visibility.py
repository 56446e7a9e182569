"""What the scripts of an experiment see of its parameters, and what they do not."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from snakemake_kochi.project.document import script
from snakemake_kochi.project.parameters import Parameters, ParameterValues, Sweep, flattened
from snakemake_kochi.project.requests import request_texts
from snakemake_kochi.project.requirements import names_in
from snakemake_kochi.project.templates import Template, parse_value
from snakemake_kochi.project.values import CODE, environment_name

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.grid import Batch, Phase

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


def depend_params(data: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """The parameters that a script sees: those that its section lists, by default those of the
    `known` ones that its text mentions."""
    listed = data.get("depend_params")
    if isinstance(listed, list):
        return tuple(dict.fromkeys(str(name) for name in listed if name is not None))
    mentioned = set(variables_mentioned(script(data.get("script"))))
    return tuple(
        name for name in dict.fromkeys(known) if f"{_PREFIX}{environment_name(name)}" in mentioned
    )


def unseen_parameters(experiment: Experiment, batch: Batch) -> dict[str, Sweep]:
    """The parameters that vary in a sweep of a batch, and of whose values nothing tells a run.

    A destination and the name of a job have them, too, but change no result. Those in conditions
    are left out: with such a condition they may follow from others.
    """
    found: dict[str, Sweep] = {}
    for sweep in batch.sweeps:
        own = {**experiment.default_parameters, **sweep.parameters}
        told = _with_those_used({*_told(experiment, batch), *_limiting(sweep)}, flattened(own))
        for names in _factors(sweep):
            if told.isdisjoint(names):
                found |= {name: sweep for name in names if name not in found}
    return found


def _told(experiment: Experiment, batch: Batch) -> Iterator[str]:
    """The parameters by which runs of a batch differ, as it says itself."""
    for phase in (batch.build, batch.run):
        yield from _told_phase(phase)
    yield from batch.prepare.depend_params if batch.prepare else ()
    yield from names_in((*experiment.requirements, *batch.requirements))
    for text in (batch.queue, *(artifact.src for artifact in batch.artifacts)):
        yield from Template.parse(text or "").names
    if batch.has_code:
        yield CODE


def _told_phase(phase: Phase) -> Iterator[str]:
    yield from phase.depend_params
    for text in (*request_texts(phase).values(), phase.launcher):
        yield from parse_value(text).names


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
