"""kochi.yaml and experiments as frozen dataclasses; parameters; validation."""

from typing import TYPE_CHECKING

from snakemake_kochi.lazy import lazy_names

if TYPE_CHECKING:
    from snakemake_kochi.project.checks import check_experiments
    from snakemake_kochi.project.configuration import (
        configuration_file,
        find_project,
        load_project,
    )
    from snakemake_kochi.project.document import read_text
    from snakemake_kochi.project.experiment import Experiment
    from snakemake_kochi.project.experiment_file import is_experiment, load_experiment
    from snakemake_kochi.project.grid import Artifact, Batch, Choice, Grid, Phase, Point
    from snakemake_kochi.project.recipes import LOCAL, Machine, Project, Recipe, Requirement
    from snakemake_kochi.project.values import (
        encode_component,
        environment_name,
        parse_assignment,
    )

__getattr__ = lazy_names(
    __name__,
    {
        "checks": ("check_experiments",),
        "configuration": (
            "configuration_file",
            "find_project",
            "load_project",
        ),
        "document": ("read_text",),
        "experiment": ("Experiment",),
        "experiment_file": (
            "is_experiment",
            "load_experiment",
        ),
        "grid": (
            "Artifact",
            "Batch",
            "Choice",
            "Grid",
            "Phase",
            "Point",
        ),
        "recipes": (
            "LOCAL",
            "Machine",
            "Project",
            "Recipe",
            "Requirement",
        ),
        "values": (
            "encode_component",
            "environment_name",
            "parse_assignment",
        ),
    },
)

__all__ = [
    "LOCAL",
    "Artifact",
    "Batch",
    "Choice",
    "Experiment",
    "Grid",
    "Machine",
    "Phase",
    "Point",
    "Project",
    "Recipe",
    "Requirement",
    "check_experiments",
    "configuration_file",
    "encode_component",
    "environment_name",
    "find_project",
    "is_experiment",
    "load_experiment",
    "load_project",
    "parse_assignment",
    "read_text",
]
