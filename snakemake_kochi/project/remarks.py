"""Remarks on an experiment: what is legal but probably not intended."""

from __future__ import annotations

from collections.abc import Collection

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Batch
from snakemake_kochi.project.parameters import Sweep, flattened
from snakemake_kochi.project.problems import Problems
from snakemake_kochi.project.templates import Literal, parse_value
from snakemake_kochi.project.values import CODE
from snakemake_kochi.project.visibility import unseen_parameters


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
