"""`kochi enqueue`."""

from __future__ import annotations

import click

from snakemake_kochi.cli.options import (
    COUNT,
    dependency_option,
    git_remote_option,
    json_option,
    machine_option,
    memory,
    quiet_option,
    refuse_shell_line,
)
from snakemake_kochi.cli.output import print_json, remark, say
from snakemake_kochi.enqueue.experiment_files import is_experiment_file
from snakemake_kochi.enqueue.request import Request, prepare, without_worker
from snakemake_kochi.location import find_location
from snakemake_kochi.queue import Queue


class _EnqueueCommand(click.Command):
    """A command line whose first word decides how the rest is parsed.

    After a command's first word all words are the command's own. After FILE.yaml further options of
    ours may follow, as in `kochi enqueue fib.yaml debug=1 -d massivethreads:debug`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        words: object = given.get("words")  # the value for "nothing" differs between versions
        ctx.allow_interspersed_args = isinstance(words, tuple) and any(
            map(is_experiment_file, words[:1])
        )
        return super().parse_args(ctx, args)


@click.command(cls=_EnqueueCommand, context_settings={"allow_interspersed_args": False})
@machine_option
@click.option("-q", "--queue", metavar="QUEUE", help="The queue; by default that of FILE.yaml.")
@click.option("-n", "--name", metavar="NAME", help="A name for the job.")
@click.option(
    *("-c", "--copy", "--with-context"),
    is_flag=True,
    help="Run in a copy of the repository as it is now.",
)
@dependency_option("An installed recipe to use.")
@git_remote_option
@click.option(
    "--shared",
    is_flag=True,
    help="Let other jobs run on the worker at the same time. By default a job is exclusive: it has "
    "a worker to itself, unless FILE.yaml says 'exclusive: false'.",
)
@click.option(
    *("--cores", "cores"),
    type=COUNT,
    metavar="N",
    help="Cores that the job uses; by default 'cores' in FILE.yaml, else 1. Implies --shared.",
)
@click.option(
    "--memory",
    type=memory,
    metavar="SIZE",
    help="Memory that the job uses, for example 2G. Implies --shared.",
)
@click.option(
    *("--gpus", "gpus"),
    type=COUNT,
    metavar="N",
    help="GPUs that the job uses. Implies --shared.",
)
@quiet_option
@json_option
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
def command(machine: str | None, quiet: bool, as_json: bool, **typed: object) -> None:
    """Submit a job to a queue: a command, or FILE.yaml NAME=VALUE... to run an experiment once.

    The command runs word for word, without a shell, in the current directory. A job has a worker
    to itself, unless --shared, --cores, --memory or --gpus is given.
    """
    request = Request(**typed)  # type: ignore[arg-type]
    location = find_location(machine)
    location.require_here()
    if not request.is_experiment:
        if request.queue is None:
            raise click.UsageError("a queue was expected: -q QUEUE")
        refuse_shell_line(request.words[0])
    prepared = prepare(location, request)
    for said in prepared.remarks:
        remark(said)
    if (queue := prepared.queue) is None:
        file = request.words[0]
        raise click.UsageError(f"a queue was expected: -q QUEUE, or default_queue in {file}")
    (given,) = Queue(location.prepare_machine(), queue).submit([prepared.ticket])
    if as_json:
        print_json({"job": given.job, "name": given.name, "queue": queue, "machine": given.machine})
    elif quiet:
        say(str(given.job))
    else:
        say(f"Job {given.job} was submitted to queue '{queue}' on machine '{given.machine}'.")
        if said := without_worker(location, queue):
            remark(said)
