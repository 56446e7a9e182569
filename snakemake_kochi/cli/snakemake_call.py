"""Handing over to Snakemake, in a project's directory and with its rules."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from snakemake_kochi.cli.init import SNAKEFILES
from snakemake_kochi.cli.output import remark
from snakemake_kochi.location import Location
from snakemake_kochi.resources import workflow_directory

_USES_OUR_RULES = re.compile(r"^\s*use\s+rule\s+\*\s+from\s+\w+\s*(#.*)?$", re.MULTILINE)


def call_snakemake(
    location: Location,
    targets: Sequence[str],
    options: Sequence[str],
    variables: Mapping[str, str] | None = None,
) -> NoReturn:
    """Print the line and become Snakemake: signals and the exit status are its own then.

    The project's Snakefile is used if all rules of the library are in it under their own names,
    else the library's.
    """
    directory = location.require_project().directory
    words = [*targets, *_snakefile_options(directory), *options]
    added = {**location.variables, **(variables or {})}
    remark(f"$ cd {shlex.quote(str(directory))} && {shlex.join(['snakemake', *words])}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(directory)
    # -P: as for the command `snakemake`, the project's own modules are not in the way of ours.
    command = [sys.executable, "-P", "-m", "snakemake", *words]
    os.execve(sys.executable, command, {**os.environ, **added})


def _snakefile_options(directory: Path) -> list[str]:
    existing = [directory / name for name in SNAKEFILES if (directory / name).is_file()]
    if existing:
        text = existing[0].read_text("utf-8", "replace")
        if "snakemake_kochi" in text and _USES_OUR_RULES.search(text):
            return []
    return ["--snakefile", str(workflow_directory() / "Snakefile")]
