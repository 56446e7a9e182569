"""All problems of the batches of experiments at once."""

from __future__ import annotations

from collections.abc import Iterable

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.destinations import Destinations
from snakemake_kochi.project.document import MAXIMUM_LINES, KeyPath, Problems
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.grid import select


def check_experiments(experiments: Iterable[Experiment], machine: str) -> None:
    """Make the grids of all batches for a machine.

    Raises one ConfigError with the problems of all of them, two artifacts of different batches or
    experiments with one dest included, and a dest that is a batch's own table or plot.
    """
    destinations = Destinations()
    found: list[tuple[Problems, KeyPath]] = []
    for experiment in experiments:
        of_file = Problems(experiment.locations)
        for batch in experiment.batches.values():
            problems = of_file.fork()
            experiment.points(batch, machine, destinations, problems)
            found.append((problems, ("batches", batch.name)))
    destinations.finish()
    lines = [line for problems, path in found for line in problems.lines(MAXIMUM_LINES, path)]
    if lines:
        raise ConfigError("\n".join(lines))


def note_grid_problems(experiment: Experiment, machines: Iterable[str], problems: Problems) -> None:
    """Note what is wrong with the grids, so far as they can be made, of a file that is wrong."""
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
        own = problems.fork()
        try:
            experiment.points(batch, machine, destinations, own)
        except ConfigError:
            continue  # parameters in a circle, which was noted
        found.append((own, path))
    destinations.finish()
    for own, path in found:
        problems.take(own, MAXIMUM_LINES, path)
