"""What `kochi enqueue` hands to a worker: `python -m snakemake_kochi.phases.job`.

    [--install DEP:RECIPE:DIGEST]... [--copy [DIRECTORY]] -- COMMAND...
    [--install DEP:RECIPE:DIGEST]... --experiment FILE [--name NAME] [--parameter NAME=VALUE]...
        [--interactive]

$KOCHI_FREEZE names the freeze. A command runs in the environment of the installations, and, with
--copy, in a private copy of the frozen sources, below DIRECTORY. An experiment is built, unless it
is built already, and run. The exit status is that of the command or the run script; 128 + n after
signal n.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from snakemake_kochi.errors import KochiError, ScriptError, told
from snakemake_kochi.phases.batch_freeze import BatchFreeze
from snakemake_kochi.phases.freeze import Freeze, load_freeze
from snakemake_kochi.phases.launcher import placement_of
from snakemake_kochi.phases.make import make, read_install
from snakemake_kochi.phases.products import Install, give_repository, scratch_directory
from snakemake_kochi.phases.run import Attempt, run_task
from snakemake_kochi.phases.script import (
    Environment,
    clean_up_on_sigterm,
    own_environment,
    source_variables,
)
from snakemake_kochi.project.expressions import parse_value
from snakemake_kochi.project.recipes import Requirement
from snakemake_kochi.project.values import parse_assignment
from snakemake_kochi.snapshot import materialise


def job_command(
    installs: Sequence[Install],
    *,
    copy: str | None = None,
    experiment: str = "",
    name: str = "",
    parameters: Sequence[str] = (),
    command: Sequence[str] = (),
    interactive: bool = False,
) -> tuple[str, ...]:
    """The argument list that runs such a job with this Python; see the module.

    `copy` is the directory in the copy ("." for its top), or None for the current directory.
    """
    # -P: a git.py or yaml.py in the user's directory must not replace the library.
    words = [sys.executable, "-P", "-m", "snakemake_kochi.phases.job"]
    for install in installs:
        words += ["--install", f"{install.dependency}:{install.recipe}:{install.digest}"]
    if experiment:
        words += ["--experiment", experiment, "--name", name]
        words += ["--interactive"] if interactive else []
        return (*words, *(word for text in parameters for word in ("--parameter", text)))
    if copy is not None:
        words += ["--copy", copy]
    return (*words, "--", *command)


def command_in_environment(environment: Environment, command: Sequence[str]) -> list[str]:
    """An argument list that prepares an environment and then executes a command as it is."""
    script = (
        # Sourced scripts see our arguments as their own, and some act on them.
        '_kochi_command=("$@"); set --\n'
        + environment.preamble()
        # Bash would report these with the line of our script.
        + "_kochi=${_kochi_command[0]} _kochi_why='command not found'\n"
        + "[[ $_kochi != */* ]] || _kochi_why='No such file or directory'\n"
        + '[ -e "$_kochi" ] && [[ $_kochi == */* ]] || type -P -- "$_kochi" > /dev/null || {\n'
        + '  echo "kochi: $_kochi: $_kochi_why" >&2; exit 127\n'
        + '}\nexec -- "${_kochi_command[@]}"\n'
    )
    return ["bash", "-c", script, "kochi", *command]


def execute(command: Sequence[str], variables: dict[str, str]) -> NoReturn:
    """Become a command: its exit status and signals are then those of this process."""
    sys.stdout.flush()
    os.execvpe(command[0], list(command), variables)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job; return its exit status. Our own errors are printed, with status 1."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:end])
    # A terminal that is closed ends its programs by SIGHUP.
    clean_up_on_sigterm(*([signal.SIGHUP] if os.isatty(0) else []))
    try:
        # Not for the command: a Snakemake started by it has a freeze of its own.
        freeze = load_freeze(Path(os.environ.pop("KOCHI_FREEZE")))
        installs = [_install(freeze, text) for text in options.install]
        if options.experiment:
            return _run_experiment(freeze, installs, options)
        return _run_command(freeze, installs, options.copy, words[end + 1 :])
    except KeyboardInterrupt:  # in a terminal, before the command has it
        return 128 + signal.SIGINT
    except (KochiError, OSError) as error:
        said = error if isinstance(error, KochiError) else told(error)
        print(f"kochi: {said}", file=sys.stderr)
        return error.status if isinstance(error, ScriptError) else 1


def _run_command(
    freeze: Freeze, installs: Sequence[Install], copy: str | None, command: Sequence[str]
) -> int:
    own = {"KOCHI_MACHINE": freeze.machine_name}
    environment = Environment(freeze.machine.load_env_on_machine, installs, {})
    words = command_in_environment(environment, command)
    if copy is None:
        execute(words, os.environ | own)
    own |= source_variables(freeze.snapshot.base, freeze.snapshot.dirty)
    variables = own_environment() | own
    with scratch_directory(freeze.workspaces) as scratch:
        # Named like the project: scripts and makefiles may look at the name of their directory.
        directory = scratch / (freeze.directory.name or "project")
        materialise(freeze.paths.store, freeze.snapshot.tree, directory)
        give_repository(freeze.git_directory, directory)
        # In a terminal, the command says what these keys do; it does not inherit these handlers.
        for number in (signal.SIGINT, signal.SIGQUIT) if os.isatty(0) else ():
            signal.signal(number, lambda *_: None)
        status = subprocess.Popen(words, cwd=directory / copy, env=variables).wait()
    return status if status >= 0 else 128 - status


def _run_experiment(
    freeze: Freeze, installs: Sequence[Install], options: argparse.Namespace
) -> int:
    experiment, interactive = freeze.experiment(options.experiment), options.interactive
    machine, batch = freeze.machine_name, BatchFreeze.of(freeze, experiment)
    point = experiment.point(machine, dict(map(parse_assignment, options.parameter)))
    values = {**experiment.facts_of(machine).values, **point.parameters}
    launcher = parse_value(experiment.run.launcher).render(values)
    resources = {"cpus_per_task": point.request.cores, **point.request.of_rule}
    timeout = experiment.build_request(experiment.build, point.parameters).timeout
    build = make(batch, batch.build, point.parameters, installs, timeout)
    step = batch.prepare
    prepared = make(batch, step, point.parameters, installs) if step else None
    if interactive:
        script = shell_script(experiment.file, experiment.run.script)
        batch = replace(batch, run=replace(batch.run, script=script, strict=False))
    attempt = Attempt(
        freeze=batch,
        point=replace(point, name=options.name or point.name),
        build=build,
        installs=installs,
        prepared=prepared,
        timeout=None if interactive else point.request.timeout,
        placement=placement_of(launcher, batch.launchers, machine, resources),
        # An isolated script is not told what the worker was told, and a shell needs these.
        told={n: os.environ[n] for n in TERMINAL_VARIABLES if n in os.environ and interactive},
    )
    try:
        run_task(attempt)
    except ScriptError as error:
        if not interactive:
            raise
        # The status of the last command that somebody typed is no failure.
        return error.status
    return 0


def _install(freeze: Freeze, text: str) -> Install:
    requirement, _, digest = text.rpartition(":")
    recipe = freeze.project.recipe(Requirement.parse(requirement))
    return read_install(freeze.paths, freeze.machine_name, recipe, digest)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m snakemake_kochi.phases.job", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--install", action="append", default=[], metavar="DEP:RECIPE:DIGEST")
    parser.add_argument("--copy", metavar="DIRECTORY", help="in the copy; '.' is its top")
    parser.add_argument("--experiment", default="", metavar="FILE")
    parser.add_argument("--name", default="")
    parser.add_argument("--interactive", action="store_true")
    parser.add_argument("--parameter", action="append", default=[], metavar="NAME=VALUE")
    return parser


# What programs learn from variables about their terminal.
TERMINAL_VARIABLES = ("TERM", "COLORTERM")

# Replaces ~/.bashrc. That may set PATH or load modules, as for a login: what the job's recipes and
# scripts have exported is put back afterwards.
_START = """\
_kochi_exported=$(export -p) _kochi_directory=$PWD
if [ -r ~/.bashrc ]; then . ~/.bashrc; fi
eval "$_kochi_exported" 2> /dev/null
cd -- "$_kochi_directory"
unset _kochi_exported _kochi_directory
"""


def shell_script(of: str = "", script: str = "") -> str:
    """Bash that becomes the interactive shell, with a `script` in its history, as one entry; `of`
    names where it comes from."""
    start = _START
    if script.strip():
        # Bash does not read the file any more once there is an entry.
        start += 'if [ -r "${HISTFILE-}" ]; then history -r; fi\n'
        start += f"history -s -- {shlex.quote(script.strip())}\n"
        said = f"The run script of {of} is in the history: press the up arrow."
        start += f"echo {shlex.quote(said)}\n"
    # Not from a file: an isolated script sees few of them.
    return f"exec bash --rcfile <(printf %s {shlex.quote(start)}) -i\n"


def shell_command() -> tuple[str, ...]:
    """An argument list that becomes the interactive shell."""
    return ("bash", "-c", shell_script())


if __name__ == "__main__":
    sys.exit(main())
