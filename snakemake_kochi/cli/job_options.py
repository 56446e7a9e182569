"""The options of commands that submit one job, and how their words are parsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from snakemake_kochi.cli.options import COUNT, dependency_option, git_remote_option, memory
from snakemake_kochi.enqueue.experiment_files import is_experiment_file

_Function = TypeVar("_Function", bound=Callable[..., Any])


class CommandOrFile(click.Command):
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


def surroundings_options(function: _Function) -> _Function:
    """The queue, the name, the place and the resources of a job; fields of `Request`."""
    options = (
        click.option(
            "-q", "--queue", metavar="QUEUE", help="The queue; by default that of FILE.yaml."
        ),
        click.option("-n", "--name", metavar="NAME", help="A name for the job."),
        click.option(
            *("-c", "--copy", "--with-context"),
            is_flag=True,
            help="Run in a copy of the repository as it is now.",
        ),
        dependency_option("An installed recipe to use."),
        git_remote_option,
        click.option(
            "--shared",
            is_flag=True,
            help="Let other jobs run on the worker at the same time. By default a job is "
            "exclusive: it has a worker to itself, unless FILE.yaml says 'exclusive: false'.",
        ),
        click.option(
            *("--cores", "cores"),
            type=COUNT,
            metavar="N",
            help="Cores that the job uses; by default 'cores' in FILE.yaml, else 1. Implies "
            "--shared.",
        ),
        click.option(
            "--memory",
            type=memory,
            metavar="SIZE",
            help="Memory that the job uses, for example 2G. Implies --shared.",
        ),
        click.option(
            *("--gpus", "gpus"),
            type=COUNT,
            metavar="N",
            help="GPUs that the job uses. Implies --shared.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function
