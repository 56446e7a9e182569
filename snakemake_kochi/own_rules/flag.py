"""`artifact()`: marks an output of a rule, which is then kept in the artifact branch.

Outputs of a rule carry Snakemake's flags, which stay when wildcards are replaced. Every process
that reads the Snakefile calls the function, so it imports little.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from snakemake.io import flag, is_flagged

from snakemake_kochi.errors import ConfigError, for_snakemake

_FLAG = "kochi_artifact"
# What cannot be kept, and why.
_REFUSED = {
    "temp": "temporary: Snakemake deletes it, so it cannot be kept",
    "directory": "a directory: only files can be kept; name the files in it",
    "pipe": "a pipe: only files can be kept",
    "service": "a service: only files can be kept",
    "storage_object": "in remote storage: only files of this computer can be kept",
}
# A wildcard, of which the constraint may contain braces.
_WILDCARD = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}")


@for_snakemake
def artifact(files: Any) -> Any:
    """Mark an output of a rule: when its job has succeeded, the file is kept in the artifact branch
    with a record.

    `files` is a path relative to the working directory, with or without wildcards and flags of
    Snakemake, or several of them (`expand`, `multiext`). Raises ConfigError for what cannot be
    kept, and outside of a Snakefile.
    """
    for file in files if isinstance(files, (list, tuple)) else (files,):
        if not isinstance(file, (str, Path)):
            raise ConfigError(
                f"artifact({files!r}): the path of an output was expected, or a list of paths",
                'Write, for example: output: artifact("counts/{sample}.csv")',
            )
        check_output(str(file), getattr(file, "flags", {}))
    workflow = _workflow()
    if workflow.is_main_process:
        from snakemake_kochi.own_rules.watch import watch

        watch(workflow)
    return flag(files, _FLAG)


def artifacts_of(outputs: Any) -> list[str]:
    """The marked ones among the outputs of a rule or a job. Raises ConfigError for one that cannot
    be kept."""
    found = [output for output in outputs if is_flagged(output, _FLAG)]
    for output in found:
        check_output(str(output), getattr(output, "flags", {}))
    return list(map(str, found))


def check_output(path: str, flags: Mapping[str, Any]) -> None:
    """Raise ConfigError for an output that cannot be kept. `path` may contain wildcards."""
    for name, why in _REFUSED.items():
        if flags.get(name):
            raise ConfigError(f'artifact("{path}"): this output is {why}')
    components = _WILDCARD.sub("x", path).split("/")
    if path.startswith("/") or {"", ".", ".."}.intersection(components):
        raise ConfigError(
            f'artifact("{path}"): a path relative to the working directory was expected, without '
            "'..', without empty parts and without '.'",
            "The file has the same path in the branch.",
        )


def _workflow() -> Any:
    """The workflow whose Snakefile calls, directly or by functions of the user."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        # Snakemake's own functions, such as `exists`, find it in the same way.
        workflow = frame.f_globals.get("workflow")
        if hasattr(workflow, "is_main_process"):
            return workflow
        frame = frame.f_back
    raise ConfigError(
        "artifact() was called outside of a Snakefile", "Call it around an output of a rule."
    )
