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
    help="The queue to serve. May be given several times; the first has priority.",
)
@click.option("-b", "--blocking", is_flag=True, help="Stay when the queues are empty.")
@click.option(
    "--cores",
    type=COUNT,
    metavar="N",
    help="Cores for jobs; by default those that this process may use.",
)
@click.option(
    "--memory",
    type=memory,
    help="Memory for jobs, for example 16G; by default what this process may use.",
)
@click.option(
    "--gpus",
    metavar="N|NAMES",
    help="GPUs for jobs: their number, or the index or UUID of each, separated by commas; "
    "by default those that this process may use.",
)
@click.option(
    "--walltime",
    type=duration,
    help="How long the worker may run, for example 2h; by default the limit of its Slurm job. It "
    "leaves jobs that need longer to other workers.",
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
    """Run the jobs of queues in this terminal, until there are none."""
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
