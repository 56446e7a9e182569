"""Which commands for a machine behind a login host are executed there."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from snakemake_kochi.frozen import FrozenDict

if TYPE_CHECKING:
    from snakemake_kochi.location import Location

_Function = TypeVar("_Function", bound=Callable[..., Any])

# These read or change what is here: the branches and worktrees of this repository, a list of tasks.
_AT_HOME = ("artifact", "farm")
# These free something, which must work when nothing can be sent.
_AS_SENT = ("cancel", "clean", "release")
# These need the project's files as they are now. The others need kochi.yaml.
_WITH_FILES = (
    "batch",
    "enqueue",
    "install",
    "interact",
    "launch",
    "run",
    "show batch",
    "show install",
    "show installs",
    "show pipeline",
)
# These need the results that are here, too.
_WITH_RESULTS = ("reproduce", "rerun")
# These go there by themselves: the connection may end before what they start.
_BY_THEMSELVES = ("batch", "bisect", "launch")
# Their standard input is that of the user's command.
_WITH_INPUT = ("alloc_interact", "attach", "forward", "inspect", "interact", "run")
# What to do when the connection was lost that had their terminal.
_BACK = (
    "kochi attach -m {machine} JOB comes back to it; kochi show jobs -m {machine} lists the jobs."
)
_AFTER_LOSS = {
    "alloc_interact": "The allocation ends with its shell. Type the same line again.",
    "attach": f"The job goes on: {_BACK}",
    "inspect": "The jobs there go on. Type the same line again.",
    "interact": f"The job ends with its terminal. With --keep it goes on: {_BACK}",
}


def runs_elsewhere(function: _Function) -> _Function:
    """Have a command with the option -m run on the machine's login host, if it is behind one to
    which this computer does not belong."""

    @functools.wraps(function)
    def call(*arguments: Any, **given: Any) -> Any:
        if given.pop("with_secrets", False):
            from snakemake_kochi.remote.project import SECRETS_VARIABLE

            # Also for the commands that this one starts.
            os.environ[SECRETS_VARIABLE] = "1"
        machine = given.get("machine") or os.environ.get("KOCHI_DEFAULT_MACHINE")
        if machine and (status := _run_elsewhere(machine, given)) is not None:
            return status
        return function(*arguments, **given)

    return call  # type: ignore[return-value]


def _run_elsewhere(machine: str, given: Mapping[str, Any]) -> int | None:
    from snakemake_kochi.project.machines import LOCAL

    context = click.get_current_context()
    command = context.command_path.partition(" ")[2]
    if machine == LOCAL or command.split(" ")[0] in (*_AT_HOME, *_BY_THEMSELVES):
        return None
    from snakemake_kochi.location import find_location

    location = find_location(machine)
    if not location.is_elsewhere:
        return None
    with _forwarded(machine, given) as variables:
        return run_elsewhere(location, variables=variables)


@contextmanager
def _forwarded(machine: str, given: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """While a command runs there, have the port that it wants of this computer (-p), if any; gives
    the variables that say so there."""
    if (port := given.get("port")) is None:
        yield {}
        return
    from snakemake_kochi.cli.interactive import FORWARDED
    from snakemake_kochi.cli.output import remark
    from snakemake_kochi.files import random_word
    from snakemake_kochi.terminal.forwarding import forwarded

    word = f"port-{random_word(8)}"
    with forwarded(port, remark) as forwarding:
        job = given.get("job")
        program = [sys.executable, "-P", "-m", "snakemake_kochi.cli", "forward"]
        forwarding.begin([*program, "-m", machine, word if job is None else str(job)])
        yield {FORWARDED: word}


def run_elsewhere(
    location: Location,
    with_files: bool | None = None,
    variables: Mapping[str, str] = FrozenDict(),
) -> int:
    """Run the present command, as it was typed, on the login host of a machine.

    `with_files`: whether it needs the project's files there, or else those that were sent last; by
    default, as is usual for it.
    `variables` are set for it.
    """
    from snakemake_kochi.remote.command import Needs, run_there
    from snakemake_kochi.remote.refusal import LostError

    command = click.get_current_context().command_path.partition(" ")[2]
    needs = Needs.CONFIGURATION
    if with_files or (with_files is None and command in _WITH_FILES):
        needs = Needs.FILES
    elif with_files is False or command in _AS_SENT:
        needs = Needs.PLACE
    if command in _WITH_RESULTS:
        needs = Needs.RESULTS
    try:
        return run_there(location, typed_words(), needs, command in _WITH_INPUT, variables)
    except LostError as error:
        if (hint := _AFTER_LOSS.get(command)) is None:
            raise
        machine = shlex.quote(location.machine.name)
        raise LostError(error.message, hint.format(machine=machine)) from error


def typed_words() -> list[str]:
    """The words after `kochi` on the present command line."""
    words = click.get_current_context().find_root().obj
    return list(sys.argv[1:] if words is None else words)
