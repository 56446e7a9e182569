"""`kochi enqueue`."""

from __future__ import annotations

from collections.abc import Callable

import click

from snakemake_kochi.cli.job_options import CommandOrFile, surroundings_options
from snakemake_kochi.cli.options import (
    json_option,
    machine_option,
    quiet_option,
    refuse_shell_line,
)
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.enqueue.request import Request, prepare, without_worker
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.queue import by_hand
from snakemake_kochi.tickets.ticket import Ticket


@click.command(cls=CommandOrFile, context_settings={"allow_interspersed_args": False})
@machine_option
@surroundings_options
@quiet_option
@json_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def command(machine: str | None, quiet: bool, as_json: bool, **typed: object) -> None:
    """Submit a job to a queue: a command, or FILE.yaml NAME=VALUE... to run an experiment once.

    The command runs word for word, without a shell, in the current directory. A job has a worker
    to itself, unless --shared, --cores, --memory or --gpus is given.
    """

    def tell(job: int) -> None:
        """Before the decision: whatever happens then, a person can ask for the job."""
        if not as_json:
            click.echo(str(job) if quiet else f"Job {job} ", nl=quiet)

    location, given = submit(machine, Request(**typed), tell)  # type: ignore[arg-type]
    queue = given.queue
    if as_json:
        print_json({"job": given.job, "name": given.name, "queue": queue, "machine": given.machine})
    elif not quiet:
        say(f"was submitted to queue '{queue}' on machine '{given.machine}'.")
        if said := without_worker(location, queue):
            remark(said)


def submit(
    machine: str | None, request: Request, tell: Callable[[int], None] = lambda job: None
) -> tuple[Location, Ticket]:
    """Submit a job from the command line; returns its ticket as it was submitted.

    `tell` gets its number as soon as it has one. Raises KochiError, and click.UsageError without a
    queue.
    """
    location = find_location(machine, asks=True)
    location.require_here()
    if not request.is_experiment:
        if request.queue is None:
            raise click.UsageError("a queue was expected: -q QUEUE")
        if request.words:
            refuse_shell_line(request.words[0])
    prepared = prepare(location, request)
    for said in prepared.remarks:
        remark(said)
    if (queue := prepared.queue) is None:
        file = request.words[0]
        raise click.UsageError(f"a queue was expected: -q QUEUE, or default_queue in {file}")
    machine_paths = location.prepare_machine()
    return location, by_hand.submit(machine_paths, queue, prepared.ticket, tell)
