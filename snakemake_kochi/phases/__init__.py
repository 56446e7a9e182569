"""Install, build and run: a script of the user's, executed in an environment of ours."""

from typing import TYPE_CHECKING

from snakemake_kochi.lazy import lazy_names

if TYPE_CHECKING:
    from snakemake_kochi.phases.batch_freeze import BatchFreeze, load_batch_freeze
    from snakemake_kochi.phases.build import build_experiment
    from snakemake_kochi.phases.build_file import Build, read_build, write_build
    from snakemake_kochi.phases.freeze import Freeze, load_freeze, take_freeze
    from snakemake_kochi.phases.install import current_record, install_recipe, recipe_description
    from snakemake_kochi.phases.install_set import Install, merge, read_manifest, write_manifest
    from snakemake_kochi.phases.keep import commit_at_exit
    from snakemake_kochi.phases.run import Output, Task, run_task
    from snakemake_kochi.phases.script import (
        SAVED_THREADS_VARIABLE,
        Environment,
        run_script,
        saved_threads,
    )

__getattr__ = lazy_names(
    __name__,
    {
        "build": ("build_experiment",),
        "build_file": (
            "Build",
            "read_build",
            "write_build",
        ),
        "batch_freeze": (
            "BatchFreeze",
            "load_batch_freeze",
        ),
        "freeze": (
            "Freeze",
            "load_freeze",
            "take_freeze",
        ),
        "install": (
            "current_record",
            "install_recipe",
            "recipe_description",
        ),
        "install_set": (
            "Install",
            "merge",
            "read_manifest",
            "write_manifest",
        ),
        "keep": ("commit_at_exit",),
        "run": (
            "Output",
            "Task",
            "run_task",
        ),
        "script": (
            "SAVED_THREADS_VARIABLE",
            "Environment",
            "run_script",
            "saved_threads",
        ),
    },
)

__all__ = [
    "SAVED_THREADS_VARIABLE",
    "BatchFreeze",
    "Build",
    "Environment",
    "Freeze",
    "Install",
    "Output",
    "Task",
    "build_experiment",
    "commit_at_exit",
    "current_record",
    "install_recipe",
    "load_batch_freeze",
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
