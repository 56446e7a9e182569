"""The option --run of `kochi compare` and `kochi check`: the batch runs before its results count.

What the command line asks of the results is checked before, as far as the experiment says it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from snakemake_kochi.cli.tables import in_repository
from snakemake_kochi.errors import KochiError
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.plots import MACHINE

run_option = click.option(
    "--run",
    "is_run",
    is_flag=True,
    help="First run what is missing, as `kochi batch` does: with `repeat` in the experiment until "
    "the medians, or the ratios, are known.",
)


@dataclass(frozen=True)
class Planned:
    """What a report of a batch will have, and `values`: of each parameter, and of the column of
    several machines."""

    title: str
    values: Mapping[str, Sequence[str]]
    varying: Sequence[str]
    metrics: Sequence[str]

    @property
    def parameters(self) -> Sequence[str]:
        return [*self.values]


def experiment_to_run(file: str, batch: str, commit: str | None) -> Experiment | None:
    """The experiment of a command with --run; None where `kochi batch` will say what is wrong.
    Raises KochiError."""
    from snakemake_kochi.snapshot import toplevel
    from snakemake_kochi.tables.branch import experiment_here

    if commit is not None:
        raise click.UsageError("--run makes new results, and --at is about old ones; remove one")
    repository = toplevel(Path.cwd())
    found = experiment_here(repository, in_repository(repository, file))
    return found if found is not None and batch in found.batches else None


def planned(experiment: Experiment, batch: str, machine: str | None) -> Planned | None:
    """What a batch will show; None where only its machine can tell."""
    try:
        machines = [*_machines(experiment, batch, machine)]
        grids = [experiment.grid(batch, name) for name in machines]
    except KochiError:
        return None
    points = [point.parameters for grid in grids for point in grid.points]
    names = dict.fromkeys(name for point in points for name in point)
    values = {name: [*dict.fromkeys(point.get(name, "") for point in points)] for name in names}
    if len(machines) > 1 and MACHINE not in values:
        values = {MACHINE: machines, **values}
    varying = [name for name, each in values.items() if len(each) > 1]
    title = f"{experiment.name} {batch}"
    return Planned(title, values, varying, [*experiment.batch(batch).metrics])


def machine_names(experiment: Experiment, batch: str, machine: str | None) -> Iterator[str]:
    """The machines where a batch runs, also by the names under which their results are published.
    Raises KochiError."""
    from snakemake_kochi.artifacts.published import published_name
    from snakemake_kochi.snapshot import toplevel

    repository = toplevel(Path.cwd())
    for name in _machines(experiment, batch, machine):
        yield from (name, published_name(repository, name))


def _machines(experiment: Experiment, batch: str, machine: str | None) -> Iterator[str]:
    from snakemake_kochi.location import find_location

    yield from ([machine] if machine else experiment.batch(batch).machines)
    if not machine and not experiment.batch(batch).machines:
        yield find_location().machine.name


def run_first(machine: str | None, file: str, batch: str) -> int:
    """Run what is missing of a batch; the exit status of `kochi batch`."""
    words = [*(("-m", machine) if machine else ()), file, batch]
    run_batch = [sys.executable, "-P", "-m", "snakemake_kochi.cli", "batch", *words]
    # Only what is found goes to our standard output.
    process = subprocess.Popen(run_batch, stdout=sys.stderr)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # It has the interrupt, too, and cancels its jobs. `subprocess.run` would kill it.
            continue
