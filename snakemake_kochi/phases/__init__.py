"""Install, build and run: a script of the user's, executed in an environment of ours."""

from snakemake_kochi.phases.build import Build, build_experiment, read_build, write_build
from snakemake_kochi.phases.freeze import Freeze, load_freeze, take_freeze
from snakemake_kochi.phases.install import current_record, install_recipe, recipe_description
from snakemake_kochi.phases.install_set import Install, merge, read_manifest, write_manifest
from snakemake_kochi.phases.run import Output, Task, run_task
from snakemake_kochi.phases.script import (
    SAVED_THREADS_VARIABLE,
    Environment,
    run_script,
    saved_threads,
)

__all__ = [
    "SAVED_THREADS_VARIABLE",
    "Build",
    "Environment",
    "Freeze",
    "Install",
    "Output",
    "Task",
    "build_experiment",
    "current_record",
    "install_recipe",
    "load_freeze",
    "merge",
    "read_build",
    "read_manifest",
    "recipe_description",
    "run_script",
    "run_task",
    "saved_threads",
    "take_freeze",
    "write_build",
    "write_manifest",
]
