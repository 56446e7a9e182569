"""The start of the rule library: what a run is frozen to, and what its jobs and its end need."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import ConfigError, for_snakemake
from snakemake_kochi.library.failures import BATCH, note_failures
from snakemake_kochi.library.library import Library
from snakemake_kochi.library.part import Part
from snakemake_kochi.library.run_order import RunOrder
from snakemake_kochi.location import find_location
from snakemake_kochi.phases.freeze import (
    Freeze,
    have_read,
    load_freeze,
    take_freeze,
    with_source_from,
)
from snakemake_kochi.phases.keep import commit_at_exit
from snakemake_kochi.phases.script import MAIN_VARIABLE, SAVED_THREADS_VARIABLE, saved_threads
from snakemake_kochi.phases.variants import with_variants

FREEZE_VARIABLE = "KOCHI_FREEZE"
# Names the freeze that a main process uses instead of taking one.
RERUN_VARIABLE = "KOCHI_RERUN"
_OWNER_VARIABLE = "KOCHI_FREEZE_OWNER"
PYTHON_VARIABLE = "KOCHI_PYTHON"


@for_snakemake
def load(workflow: Any, config: Mapping[str, Any] | None = None) -> Library:
    """The library of the project in the working directory, on the machine that is meant there.

    Snakemake's main process freezes the project; the processes of its jobs, and a second call while
    the same workflow is parsed, use the existing freeze. `config["kochi_experiments"]` is a list of
    globs, relative to the project, of experiment files; `config["kochi_experiment"]` is the file
    that is asked for: a mistake in another one is told in a line, and only its own remarks are.
    `config["kochi_git_remote"]` is a repository from which the checked-out commit is fetched.
    """
    owner = f"{os.getpid()}-{id(workflow):x}"
    asked = (config or {}).get("kochi_experiment")
    file = os.environ.get(FREEZE_VARIABLE)
    inherited = file is not None and not workflow.is_main_process
    again = file is not None and os.environ.get(_OWNER_VARIABLE) == owner
    if file is not None and (inherited or again):
        freeze = load_freeze(Path(file))
    else:
        freeze = _freeze_of_rerun() or take_freeze(
            Path.cwd(), chosen_machine(), *_globs(config or {}), named=asked
        )
        if (remote := _git_remote(config or {})) is not None:
            freeze = with_source_from(freeze, remote)
        if freeze.rerun is None:
            freeze = with_variants(freeze, Path.cwd())
        # Of the millions of objects of a large DAG none is garbage.
        gc.set_threshold(100_000)
        have_read()
        commit_at_exit(
            freeze.directory,
            freeze.paths,
            freeze.machine_name,
            lambda: not workflow.dryrun,
            freeze.project.large_files,
        )
        if freeze.machine.clean is not None:
            # Imported here: few runs clean up.
            from snakemake_kochi.cleaning.automatic import clean_at_exit

            paths = freeze.root.machine(freeze.machine_name)
            clean_at_exit(paths, Path.cwd(), lambda: not workflow.dryrun)
    os.environ[FREEZE_VARIABLE] = str(freeze.file)
    os.environ[_OWNER_VARIABLE] = owner
    os.environ[PYTHON_VARIABLE] = sys.executable
    os.environ[SAVED_THREADS_VARIABLE] = saved_threads()
    if not inherited:
        os.environ[MAIN_VARIABLE] = str(os.getpid())
    # The main process checked what the process of a job reads.
    is_first = not (inherited or again)
    # The process of a job makes one file, whichever part wants it.
    part = Part.of(config or {}) if workflow.is_main_process and freeze.rerun is None else None
    library = Library(freeze, inherited, is_first, part, asked)
    if workflow.is_main_process:
        RunOrder(lambda: library.batches).begin(workflow)
    if is_first:
        wanted = [str((config or {})[BATCH])] if BATCH in (config or {}) else []
        asked = part.asked if part is not None else {}
        note_failures(workflow, freeze, lambda: library.batches, wanted, lambda: asked)
    return library


def freeze_of(workflow: Any) -> Freeze | None:
    """The freeze that `load` took for a workflow in this process, if it did."""
    if os.environ.get(_OWNER_VARIABLE) != f"{os.getpid()}-{id(workflow):x}":
        return None
    return load_freeze(Path(os.environ[FREEZE_VARIABLE]))


def _freeze_of_rerun() -> Freeze | None:
    if (file := os.environ.get(RERUN_VARIABLE)) is None:
        return None
    freeze = load_freeze(Path(file))
    # A job of the rerun inherits the variable, and may run Snakemake in another directory.
    return freeze if os.path.samefile(freeze.directory, Path.cwd()) else None


def chosen_machine() -> str:
    """The name of the machine that is meant in the working directory. Raises ConfigError."""
    # Not read twice where the machine is named: the freeze reads the project.
    return os.environ.get("KOCHI_DEFAULT_MACHINE") or find_location(asks=True).machine.name


def _git_remote(config: Mapping[str, Any]) -> str | None:
    remote = config.get("kochi_git_remote")
    if remote is not None and (not isinstance(remote, str) or not remote):
        raise ConfigError(f"config kochi_git_remote: a repository was expected, not {remote!r}")
    return remote


def _globs(config: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    globs = config.get("kochi_experiments")
    if globs is None:
        return ()
    if isinstance(globs, str):
        return ([globs],)
    if not isinstance(globs, list) or not all(isinstance(glob, str) for glob in globs):
        raise ConfigError(f"config kochi_experiments: a list of globs was expected, not {globs!r}")
    return (globs,)
