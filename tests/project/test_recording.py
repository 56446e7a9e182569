"""The keys `facts` and `recorded_variables`."""

from __future__ import annotations

from pathlib import Path

from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment_file import load_experiment

RUN = "run: {script: x}\n"


def test_facts_of_an_experiment_replace_those_of_kochi_yaml_and_those_the_defaults() -> None:
    project = load_project(
        Path("/p"), "facts: {cc: null, mpi: mpirun --version, a: x}\nrecorded_variables: A_*", None
    )
    text = "facts: {mpi: [one, two], modules: ''}\nrecorded_variables: [B, A_*]\n" + RUN
    both = project.recording.and_those_of(load_experiment("e.yaml", text, project).recording)
    assert both.facts == {"cc": "", "modules": "", "mpi": "one\ntwo", "a": "x"}
    assert both.variables == ("A_*", "B")
    default = load_project(Path("/p"), "machines:", None).recording
    assert default.facts.keys() == {"cc", "modules"}
