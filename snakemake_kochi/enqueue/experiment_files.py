"""The files of experiments that a person names."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path

from snakemake_kochi.errors import KochiError, NameNotFoundError, nearest
from snakemake_kochi.project.document import read_text
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.project.recipes import Project
from snakemake_kochi.project.sent import path_here
from snakemake_kochi.project.shape import is_experiment


def is_experiment_file(word: str) -> bool:
    """Whether a word of a command line means an experiment.

    The suffix alone decides, so that a misspelt experiment is not taken for a command.
    """
    return word.endswith((".yaml", ".yml"))


def path_in_project(project: Project, word: str) -> str:
    """The path of a file below the project's directory, which is the name of an experiment there.

    Raises NameNotFoundError, with the nearest name, when the file does not exist, and KochiError
    when it is a directory or outside of the project.
    """
    path = path_here(project.directory, Path(word))
    if path.is_dir():
        raise KochiError(f"{word} is a directory, not an experiment file")
    if not path.is_file():
        raise NameNotFoundError(f"there is no file {word}, {nearest(word, _experiments(project))}")
    absolute, top = Path(os.path.abspath(path)), project.directory
    for candidate, directory in ((absolute, top), (absolute.resolve(), top.resolve())):
        if candidate.is_relative_to(directory):
            return candidate.relative_to(directory).as_posix()
    raise KochiError(
        f"{word} is outside of the project {top}",
        "Move it there: an experiment is a file of its project.",
    )


def _experiments(project: Project) -> list[str]:
    """The experiments of a project, as relative paths from the current directory."""
    from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS

    found = set()
    for path in {path for text in EXPERIMENT_GLOBS for path in project.directory.glob(text)}:
        # One that cannot be read is not suggested.
        with contextlib.suppress(OSError):
            if path.is_file() and is_experiment(path.read_text("utf-8", "replace")):
                found.add(os.path.relpath(path))
    return sorted(found)


def globs_with(project: Project, file: str) -> list[str] | None:
    """The globs that find all experiments and this one; None when the usual ones suffice."""
    from snakemake_kochi.phases.freeze import EXPERIMENT_GLOBS

    usual = {path for text in EXPERIMENT_GLOBS for path in project.directory.glob(text)}
    if project.directory / file in usual:
        return None
    return [*EXPERIMENT_GLOBS, glob.escape(file)]


def load(project: Project, file: str, machine: Machine | None = None) -> Experiment:
    """Read an experiment of the project from its working tree; its grids can be made for the given
    machine. Raises ConfigError."""
    text = read_text(project.directory / file, file)
    given = None
    if machine is not None:
        # Imported here: it loads what only grids need.
        from snakemake_kochi.phases.sources import given_now

        given = given_now(file, text, machine, project.directory)
    return load_experiment(file, text, project, given)
