"""Launchers in kochi.yaml and in experiments."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.launchers import Launcher, Launchers

MACHINES = """machines:
  vega:
    scheduler: slurm
    launcher: auto
    launchers:
      hydra: mpiexec -n {tasks} -ppn {tasks_per_node}
      srun: hydra
"""


def experiment(run: str, machines: str = MACHINES) -> Experiment:
    project = load_project(Path("/project"), machines)
    text = f"run:\n  script: x\n{run}batches: {{all: {{params: {{b: [cores, numa]}}}}}}\n"
    return load_experiment("bench.yaml", text, project)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "srun"),  # the machine's, which is that of its scheduler
        ("mpirun", "mpirun"),
        ("none", "none"),
        ("hydra", "mpiexec -n {tasks} -ppn {tasks_per_node}"),
        ("srun", "mpiexec -n {tasks} -ppn {tasks_per_node}"),  # another meaning of a known name
    ],
)
def test_an_experiment_has_the_launcher_that_it_names_or_that_of_the_machine(
    name: str, text: str
) -> None:
    launchers = load_project(Path("/project"), MACHINES).machine("vega").launchers
    assert launchers.of(name, "vega").text == text


def test_a_machine_without_a_launcher_starts_the_script_alone() -> None:
    assert Launchers().of("", "local") == Launcher()
    assert not Launchers().of("", "local").starts_tasks
    assert Launchers().of("auto", "local").text == "mpirun"


def test_a_launcher_of_another_machine_is_refused_with_what_to_add() -> None:
    with pytest.raises(ConfigError, match="machine 'local' has no launcher 'hydra'") as refused:
        Launchers().of("hydra", "local")
    assert "machines: local: launchers: {hydra: TEMPLATE}" in str(refused.value)
