"""`kochi work`."""

from __future__ import annotations

import click

from snakemake_kochi.cli.options import machine_option


@click.command()
@machine_option
@click.option(
    *("-q", "--queue", "queues"),
    metavar="QUEUE",
    multiple=True,
    required=True,
    help="Whose jobs to run; may be given several times, the first comes first.",
)
@click.option("-b", "--blocking", is_flag=True, help="Stay when the queues are empty.")
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    metavar="N",
    help="Cores to give to jobs; by default those this process may run on.",
)
def command(machine: str | None, queues: tuple[str, ...], blocking: bool, cores: int | None) -> int:
    """Run the jobs of a queue in this terminal; leave when there are none."""
    from snakemake_kochi.place import find_place
    from snakemake_kochi.worker import run_worker

    place = find_place(machine)
    return run_worker(place.machine_paths, queues, cores=cores, stay=blocking, echo=True)
