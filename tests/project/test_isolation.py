"""The keys about isolation of experiments and machines."""

from __future__ import annotations

import re
from pathlib import Path

from support import REPOSITORY

from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Isolation
from snakemake_kochi.project.machines import Machine

BATCHES = """
build: {script: make, isolate: environment}
run:
  script: ./fib
  isolate: [network, files]
  visible: [/data/graphs, "~/out:rw"]
batches:
  all: {}
  open: {run: {isolate: null, visible: null}}
  image:
    run:
      isolate: network
      visible: null
      container:
        image: docker:registry.org/group/tool:1.5
        volumes: [/data, "/data/graphs:/graphs:ro"]
        modules: [gpu, mpich]
"""


def loaded(text: str) -> Experiment:
    return load_experiment("e.yaml", text, None)


def machine(text: str) -> Machine:
    return load_project(Path("/nowhere"), f"machines:\n  spica:\n    isolation: {text}\n").machine(
        "spica"
    )


def test_a_batch_replaces_the_keys_of_its_experiment_one_by_one() -> None:
    experiment = loaded(BATCHES)
    assert experiment.build.isolation == Isolation(("environment",))
    isolation = Isolation(("files", "network"), ("/data/graphs", "~/out:rw"))
    assert experiment.batch("all").run.isolation == experiment.run.isolation == isolation
    assert experiment.batch("open").run.isolation is None
    assert experiment.batch("image").run.isolation == Isolation(
        words=("network",),
        image="docker:registry.org/group/tool:1.5",
        volumes=("/data", "/data/graphs:/graphs:ro"),
        modules=("gpu", "mpich"),
    )


def test_the_examples_of_the_page_are_valid() -> None:
    page = (REPOSITORY / "docs" / "isolation.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    read = [loaded(each).run.isolation for each in examples if each.startswith("run:")]
    assert [bool(each and each.image) for each in read] == [False, True]
    (of_machine,) = (each for each in examples if each.startswith("machines:"))
    project = load_project(Path("/nowhere"), of_machine)
    assert "BASH_FUNC_module%%" in project.machine("spica").isolation["environment"]


def test_a_machine_says_what_isolated_scripts_need_there() -> None:
    paths = "visible: [/opt/modules, '/scratch:rw']"
    text = f"{{{paths}, environment: [MODULE*, LMOD_CMD], programs: shifter}}"
    assert machine(text).isolation == {
        "visible": ("/opt/modules", "/scratch:rw"),
        "environment": ("MODULE*", "LMOD_CMD"),
        "programs": ("shifter",),
    }
    assert machine("null").isolation == {}
