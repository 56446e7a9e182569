"""`kochi inspect` and `kochi alloc_interact`: a person on a compute node."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from snakemake_kochi.cli.options import JOB, WORKER, machine_option
from snakemake_kochi.cli.output import remark
from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest

if TYPE_CHECKING:
    from snakemake_kochi.location import Location
    from snakemake_kochi.queue.views import WorkerView

from snakemake_kochi.queue.views import find_job, find_worker

_KINDS = ("worker", "job")


@click.command()
@machine_option
@click.option("--ssh", "by_ssh", is_flag=True, help="Not through the scheduler, but by ssh.")
@click.argument("words", nargs=-1, required=True, metavar="[worker|job] NUMBER [-- COMMAND...]")
def inspect_command(machine: str | None, by_ssh: bool, words: Sequence[str]) -> int:
    """Log in on the node of a worker, or beside a running job.

    Beside a job the shell, or the command, has the job's environment, directory and CPUs. It is no
    part of the job, which goes on. A number alone is that of a worker. Without a terminal it works
    as a pipe.
    """
    from snakemake_kochi.location import find_location
    from snakemake_kochi.terminal.become import become
    from snakemake_kochi.terminal.beside import beside_words
    from snakemake_kochi.terminal.reach import program_on_node

    kind, number, command = _parsed(words)
    location = find_location(machine)
    location.require_here()
    location.secure(location.machine_paths.directory)
    worker = _worker_of_job(location, number) if kind == "job" else _worker(location, number)
    inner = beside_words(location.machine_paths, location.root, kind, number, command)
    return become(program_on_node(location, worker, inner, sys.stdin.isatty(), by_ssh))


@click.command()
@machine_option
@click.option(
    *("-n", "--nodes", "spec"),
    metavar="SPEC",
    help="The nodes. With 'scheduler: slurm' their number or names; an alloc_interact_script gets "
    "the text in KOCHI_ALLOC_NODE_SPEC.",
)
@click.option(
    *("-q", "--queue"), metavar="QUEUE", help="Start a worker for this queue beside the shell."
)
@click.option(
    *("-t", "--time-limit", "limit"),
    metavar="LIMIT",
    help="The time limit; by default that of kochi.yaml. An alloc_interact_script gets the text in "
    "KOCHI_ALLOC_TIME_LIMIT.",
)
def alloc_interact_command(
    machine: str | None, spec: str | None, queue: str | None, limit: str | None
) -> int:
    """Open a shell on a compute node, in an allocation that ends with it.

    With -q a worker is in the same allocation, and runs the jobs of that queue until the shell
    ends.
    """
    from snakemake_kochi.allocation.interactive import shell_in_allocation
    from snakemake_kochi.cli.workers import seconds_of_limit
    from snakemake_kochi.location import find_location
    from snakemake_kochi.terminal.become import become

    location = find_location(machine, asks=True)
    location.require_here()
    if queue is not None:
        location.machine_paths.queue(queue)
    found = location.machine
    settings = replace(found.allocation, node_spec=spec or found.allocation.node_spec)
    if limit is not None and not found.alloc_interact_script:
        settings = replace(settings, time=seconds_of_limit(limit))
    location = replace(location, machine=replace(found, allocation=settings))
    has_terminal = sys.stdin.isatty()
    if queue is not None:
        location.prepare_machine()
    shell = shell_in_allocation(location, queue, limit, has_terminal)
    # The node may belong to no machine by its name: kochi in the shell is about this one.
    os.environ.update(
        location.variables | {"KOCHI_DEFAULT_MACHINE": found.name} | dict(shell.variables)
    )
    if not shell.typed:
        return become(shell.words)
    if not has_terminal:
        raise KochiError(
            f"without a terminal, nothing starts the worker for queue {queue}: the "
            "alloc_interact_script does not read $KOCHI_WORKER_LAUNCH_CMD",
            "Have it start that command in the background, or type this in a terminal.",
        )
    from snakemake_kochi.terminal.typist import run_and_type

    remark(f"In the shell on the node, this is typed for you:{shell.typed}")
    return run_and_type(shell.words, shell.typed)


def _parsed(words: Sequence[str]) -> tuple[str, Any, list[str]]:
    """What the words name, its number (a `JobId`), and the command after it."""
    kind, rest = (words[0], words[1:]) if words[0] in _KINDS else ("worker", words)
    if not rest:
        raise click.UsageError(f"the number of the {kind} was expected")
    if (said := nearest(rest[0], _KINDS)).startswith("did you mean"):
        raise click.UsageError(f"'worker' or 'job' was expected, and not '{rest[0]}', {said}")
    number = (JOB if kind == "job" else WORKER).convert(rest[0], None, None)
    return kind, number, list(rest[1:])


def _worker(location: Location, number: int) -> WorkerView:
    try:
        return find_worker(location.machine_paths, number)
    except NameNotFoundError as error:
        try:
            find_job(location.machine_paths, number)
        except KochiError:
            raise error from None
        raise NameNotFoundError(
            error.message, f"If it is the number of a job, type: kochi inspect job {number}"
        ) from error


def _worker_of_job(location: Location, number: Any) -> WorkerView:
    """The worker that runs a job. Raises KochiError if none does now."""
    view = find_job(location.machine_paths, number)
    if view.state == "waiting":
        raise KochiError(
            f"job {number} waits: it is on no node yet",
            f"To see why it waits, type: kochi show job {number}",
        )
    if view.state == "ended" or view.worker is None:
        raise KochiError(
            f"job {number} has ended: nothing of it is on a node any more",
            f"To see how, type: kochi show job {number}; kochi show log job {number}",
        )
    return find_worker(location.machine_paths, view.worker)
