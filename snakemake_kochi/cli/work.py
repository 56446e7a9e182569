"""`kochi work`."""

from __future__ import annotations

import click

from snakemake_kochi.cli.options import COUNT, duration, machine_option, memory


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
    type=COUNT,
    metavar="N",
    help="Cores to give to jobs; by default those this process may run on.",
)
@click.option(
    "--memory",
    type=memory,
    help="Memory to give to jobs, for example 16G; by default what this process may use.",
)
@click.option(
    "--gpus",
    metavar="N|NAMES",
    help="GPUs to give to jobs: how many, or the index or UUID of each, separated by commas; "
    "by default those this process may use.",
)
@click.option(
    "--walltime",
    type=duration,
    help="How long the worker may be here, for example 2h; by default what Slurm says. Jobs with a "
    "run time that does not fit are left to others.",
)
def command(
    machine: str | None,
    queues: tuple[str, ...],
    blocking: bool,
    cores: int | None,
    memory: int | None,
    gpus: str | None,
    walltime: float | None,
) -> int:
    """Run the jobs of a queue in this terminal; leave when there are none."""
    from snakemake_kochi.location import find_location
    from snakemake_kochi.worker.settings import WorkerSettings
    from snakemake_kochi.worker.start import run_worker

    location = find_location(machine)
    location.prepare_machine()
    return run_worker(
        WorkerSettings(
            str(location.root.directory),
            location.machine.name,
            queues,
            cores=cores,
            memory_mb=memory,
            gpus=gpus,
            walltime=walltime,
            stay=blocking,
            echo=True,
        )
    )
