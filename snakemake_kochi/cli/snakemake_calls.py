"""How commands start Snakemake: in the project's directory, with the rule library."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from snakemake_kochi.cli.output import remark
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import is_there
from snakemake_kochi.location import Location
from snakemake_kochi.paths import WorkingPaths
from snakemake_kochi.resources import workflow_directory

_USES_OUR_RULES = re.compile(r"^\s*use\s+rule\s+\*\s+from\s+\w+\s*(#.*)?$", re.MULTILINE)

_TURNS = "snakemake_kochi.cli.turns"
_DRY_RUN = frozenset({"-n", "--dry-run", "--dryrun"})
_ELSEWHERE = frozenset({"-d", "--directory"})  # Snakemake writes somewhere else
_STATE = ("incomplete", "iocache", "locks", "log", "metadata")  # directories in .snakemake


def call_snakemake(
    location: Location,
    targets: Sequence[str],
    options: Sequence[str],
    variables: Mapping[str, str] | None = None,
    module: str | None = None,
) -> NoReturn:
    """Print the command line and become Snakemake, which then handles signals and the exit status.

    The project's Snakefile is used if it has all rules of the library under their own names, else
    the library's. `module` runs it, if not `_TURNS`.
    """
    command = snakemake_command(location, targets, options)
    _, environment = _command(location, [], variables or {})
    os.chdir(location.require_project().directory)
    if module:
        command[command.index(_TURNS)] = module
    os.execve(sys.executable, command, environment)


def snakemake_command(
    location: Location, targets: Sequence[str], options: Sequence[str]
) -> list[str]:
    """The command that `call_snakemake` becomes, which is printed. Raises KochiError when it could
    not write its state."""
    directory = location.require_project().directory
    words = [*targets, *snakefile_options(directory), *options]
    given = {word.partition("=")[0] for word in words}
    if not given & _ELSEWHERE:
        require_writable(location, dry_run=bool(given & _DRY_RUN))
    remark(f"$ cd {shlex.quote(str(directory))} && {shlex.join(['snakemake', *words])}")
    return _command(location, words, {})[0]


def require_writable(location: Location, dry_run: bool = False) -> None:
    """Raise KochiError unless this user may write Snakemake's state and the results.

    Snakemake would show a traceback after it has read everything. A dry run only makes the
    directories of the state that are missing.
    """
    directory = location.require_project().directory
    state = directory / ".snakemake"
    wanted = [state, *(state / name for name in _STATE)]
    wanted.append(WorkingPaths(directory, location.machine.name).results)
    if dry_run:
        wanted = [each for each in (state / "locks",) if not is_there(each)]
    for each in wanted:
        path = next(above for above in (each, *each.parents) if is_there(above))
        if not os.access(path, os.W_OK | os.X_OK):
            raise KochiError(
                f"you may not write to {path}, where Snakemake writes its state and the results",
                "Work in a clone of your own. Type: git clone "
                f"{shlex.quote(os.fspath(directory))} DIRECTORY",
            )


def run_snakemake(location: Location, words: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run Snakemake in the project's directory; return its exit status.

    Its output goes to standard error. If this process is told to end, by Ctrl-C or SIGTERM, so is
    Snakemake, and this process ends after it: raises KeyboardInterrupt or SystemExit.
    """
    command, environment = _command(location, words, variables)
    directory = location.require_project().directory
    process = subprocess.Popen(
        command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr
    )
    stopped: list[BaseException] = []

    def stop(*_: object) -> None:
        stopped.append(SystemExit(128 + signal.SIGTERM))
        process.terminate()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt as error:
                stopped.append(error)  # the terminal has told Snakemake, too
    finally:
        signal.signal(signal.SIGTERM, before)
    if stopped:
        raise stopped[0]
    return status


def _command(
    location: Location, words: Sequence[str], variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command that runs Snakemake, and its environment."""
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: as for the command `snakemake`, the project's own modules do not hide ours.
    command = [sys.executable, "-P", "-m", _TURNS, *words]
    return command, {**os.environ, **location.variables, **variables}


def snakefile_options(directory: Path) -> list[str]:
    from snakemake_kochi.cli.init import SNAKEFILES

    existing = [directory / name for name in SNAKEFILES if (directory / name).is_file()]
    if existing:
        text = existing[0].read_text("utf-8", "replace")
        if "snakemake_kochi" in text and _USES_OUR_RULES.search(text):
            return []
    return ["--snakefile", str(workflow_directory() / "Snakefile")]
