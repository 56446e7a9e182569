"""Options and arguments that several commands share, and the types of their values."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from snakemake_kochi.cli.elsewhere import runs_elsewhere
from snakemake_kochi.errors import KochiError
from snakemake_kochi.hints import ask_for

if TYPE_CHECKING:
    from snakemake_kochi.project.experiment import Experiment

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Number(click.ParamType):  # type: ignore[type-arg]  # not generic before 8.3
    """A whole number; `meaning` says which one, and what to type for it.

    Python has larger numbers, but no file's size, range or name.
    """

    name = "number"

    def __init__(self, least: int, most: int, meaning: str) -> None:
        self._least, self._most, self._meaning = least, most, meaning

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text.isdecimal() and len(text) < 20 and self._least <= int(text) <= self._most:
            return int(text)
        self.fail(f"{text[:40]!r} is not {self._meaning}", param, ctx)


class _Job(Number):
    """The number of a job by hand, or RUN.K for job K of a run, also from the name of a ticket."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if match := re.fullmatch(r"(\d{1,15}\.\d{1,15})(\.a\d+\.l\d+\S*)?", str(value)):
            return match[1]
        return super().convert(value, param, ctx)


COUNT = Number(1, 2**31 - 1, "a whole number of 1 or more")
JOB = _Job(0, 2**53, "the number of a job. To list the jobs, type: kochi show jobs -t")
WORKER = Number(
    0, 2**53, "the number of a worker. To list the workers, type: kochi show workers -a"
)


def machine_option(function: _Function) -> _Function:
    """The machine of a command, which runs where the machine is: see `runs_elsewhere`."""
    with_secrets = click.option(
        "--with-secrets",
        is_flag=True,
        help="What is sent to a login host includes untracked files whose names suggest secrets, "
        "such as .env and private keys.",
    )
    named = click.option(
        *("-m", "--machine"),
        metavar="MACHINE",
        multiple=True,  # to see the second one, of which click would say nothing
        callback=_one_machine,
        help="The machine to use. By default $KOCHI_DEFAULT_MACHINE, else the machine of "
        "kochi.yaml that this host belongs to, else that of this host's scheduler, else 'local', "
        "which is this computer.",
    )
    return named(with_secrets(runs_elsewhere(function)))


def _one_machine(
    _context: click.Context, _parameter: click.Parameter, names: Sequence[str]
) -> str | None:
    # An empty name is a variable of a script that is not set. What was meant for a cluster must not
    # run here.
    if "" in names:
        raise click.UsageError("a machine was expected after -m, and not an empty text")
    if len(different := list(dict.fromkeys(names))) > 1:
        raise click.UsageError(
            f"one machine was expected after -m, and not {', '.join(different)}. For a batch on "
            "several machines, its experiment file has the key 'machines'"
        )
    machine = names[0] if names else None
    ask_for(machine)
    return machine


def json_option(function: _Function) -> _Function:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def where_option(function: _Function) -> _Function:
    """Conditions on parameters; `project/conditions.py` parses them."""
    return click.option(
        *("-w", "--where", "conditions"),
        metavar="CONDITION",
        multiple=True,
        help="Only points for which this holds, such as n=100, 'n>1000', flags!=-O0 or "
        "duplicate=0. May be given several times; then all must hold.",
    )(function)


def default_batch(argument: str, experiment: Experiment) -> str:
    """The name of the batch to use where none was given. Raises click.UsageError if none has the
    name `default`."""
    from snakemake_kochi.project.values import DEFAULT_BATCH

    if DEFAULT_BATCH in experiment.batches:
        return DEFAULT_BATCH
    names = ", ".join(experiment.batches)
    raise click.UsageError(
        f"Missing argument '{argument}', the name of a batch. {experiment.file} has these: {names}"
    )


def quiet_option(function: _Function) -> _Function:
    return click.option("--quiet", is_flag=True, help="Print only the result.")(function)


def yes_option(function: _Function) -> _Function:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def dependency_option(help_text: str, required: bool = False) -> Callable[[_Function], _Function]:
    return click.option(
        *("-d", "--dependency", "dependencies"),
        metavar="DEPENDENCY:RECIPE",
        multiple=True,
        required=required,
        help=f"{help_text} May be given several times.",
    )


def recipes_option(function: _Function) -> _Function:
    """Recipes as words of the command line, or as `-d` options; see `recipes_in`."""
    words = click.argument("words", nargs=-1, metavar="DEPENDENCY:RECIPE...")
    return words(dependency_option("A recipe.")(function))


def recipes_in(words: Sequence[str], dependencies: Sequence[str]) -> list[str]:
    """The values of `recipes_option`, each once. Raises click.UsageError when there is none."""
    if not (wanted := dict.fromkeys((*words, *dependencies))):
        raise click.UsageError("a recipe was expected: DEPENDENCY:RECIPE")
    return list(wanted)


def git_remote_option(function: _Function) -> _Function:
    return click.option(
        *("-g", "--git-remote", "--git"),
        type=_address,
        metavar="URL",
        help="Run in a copy, from which the code comes as it is here; the job tells this address.",
    )(function)


def _address(text: str) -> str:
    """The address of a repository, if the text may be one; a directory becomes an absolute path."""
    from snakemake_kochi.project.values import (
        line_problem,
        path_problem,
        unusable_character,
    )

    wrong = unusable_character(text) or path_problem(text, is_one=False)
    if not text or line_problem(text):
        wrong = f"{text!r}: a URL or the directory of a repository was expected"
    if wrong:
        raise click.BadParameter(wrong)
    path = os.path.abspath(os.path.expanduser(text))
    return path if os.path.exists(path) else text


# Characters that have a meaning in a shell only.
_FOR_A_SHELL = re.compile(r"[\s;|&<>$`*]")


def refuse_shell_line(program: str) -> None:
    """Refuse a whole shell line instead of a program: `kochi run 'echo x'`.

    Raises KochiError.
    """
    if not _FOR_A_SHELL.search(program) or shutil.which(program) or Path(program).exists():
        return
    try:
        words = shlex.split(program)
    except ValueError:
        words = []
    apart = "" if any(map(_FOR_A_SHELL.search, words)) else f"{shlex.join(words)}\nor, "
    raise KochiError(
        f"there is no program {program!r}: a command is executed word for word, without a shell",
        f"Type, after --:\n{apart}for a shell: bash -c {shlex.quote(program)}",
    )


def duration(text: str) -> float:
    """ "2h" in seconds."""
    from snakemake_kochi.quantities import seconds_of

    try:
        return seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


def memory(text: str) -> int:
    """ "16G" in MiB; units are powers of 1024."""
    from snakemake_kochi.quantities import memory_of

    try:
        return memory_of(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
