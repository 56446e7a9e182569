"""Remarks on an experiment: what is legal but probably not intended."""

from __future__ import annotations

from snakemake_kochi.errors import nearest
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import Batch
from snakemake_kochi.project.parameters import Sweep, flattened
from snakemake_kochi.project.problems import Problems
from snakemake_kochi.project.templates import Literal, parse_value
from snakemake_kochi.project.values import CODE


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
    for batch in experiment.batches.values():
        for sweep in batch.sweeps:
            _note_exclusions(experiment, sweep, remarks)
    runs = [experiment.run, *(batch.run for batch in experiment.batches.values())]
    if ("run",) in remarks.source_map.lines and not any(run.script.strip() for run in runs):
        remarks.add(("run",), "there is no script: nothing is run after the build")


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


def _note_exclusions(experiment: Experiment, sweep: Sweep, remarks: Problems) -> None:
    """Note excluded values that a parameter never has, as far as the file says its values."""
    entries = flattened({**experiment.default_parameters, **sweep.parameters})
    for place, entry in sweep.exclude:
        for name, texts in entry.items():
            choices = entries.get(name, ())
            values = [value for choice in choices for value in choice.parsed()]
            is_known = not any(choice.series for choice in choices)
            if not is_known or not all(isinstance(value, Literal) for value in values):
                continue
            known = {value.render({}) for value in values}
            for text in texts:
                if isinstance(parse_value(text), Literal) and text not in known:
                    said = f"'{name}' is never '{text}', {nearest(text, sorted(known))}"
                    remarks.add((*place, name), said)
