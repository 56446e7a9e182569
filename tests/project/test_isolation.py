"""The keys about isolation of experiments and machines, and what is said of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import REPOSITORY

from snakemake_kochi.errors import ConfigError
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


def error(run: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(f"run:\n  script: x\n  {run}\n")
    return str(caught.value)


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
    assert experiment.remarks == ()


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("isolate: file", "e.yaml:3: run.isolate: the text 'file' is not possible here, did"),
        ("isolate: [files, net]", "isolate[1]: the text 'net' is not possible here, did you mean"),
        ("isolate: yes", "e.yaml:3: run.isolate: "),
        ("isolate: files\n  visible: [data]", "e.yaml:4: run.visible[0]: an absolute path without"),
        ("isolate: files\n  visible: /a/../b", "e.yaml:4: run.visible: an absolute path"),
        ("isolate: files\n  visible: [/:rw]", "$DATA:rw, was expected, not the text '/:rw'"),
        ("isolate: files\n  visible: [/a:/b]", "$DATA:rw, was expected, not the text '/a:/b'"),
        ("isolate: files\n  container: {image: /x.sif}", "a container has files of its own"),
        ("container: {volumes: [/a]}", "e.yaml:3: run.container: the key 'image' is missing"),
        ("container: {image: x, volume: [/a]}", "did you mean 'volumes'?"),
        ("container: {image: tools/x.sif}", "was expected, not the text 'tools/x.sif'"),
        ("container: {image: '--privileged'}", "debian:12, was expected, not the text '--pri"),
        ("container: {image: x, modules: [-v]}", "modules[0]: the name of a module"),
        ("container: {image: x, volumes: [/a:b]}", "volumes[0]: an absolute path, or two, wi"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_line(run: str, said: str) -> None:
    assert said in error(run)


def test_the_examples_of_the_page_are_valid() -> None:
    page = (REPOSITORY / "docs" / "isolation.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    read = [loaded(each).run.isolation for each in examples if each.startswith("run:")]
    assert [bool(each and each.image) for each in read] == [False, True]
    (of_machine,) = (each for each in examples if each.startswith("machines:"))
    project = load_project(Path("/nowhere"), of_machine)
    assert "BASH_FUNC_module%%" in project.machine("spica").isolation["environment"]


def test_visible_paths_without_isolated_files_are_remarked_on() -> None:
    (remark,) = loaded("run: {script: x, isolate: network, visible: /data}").remarks
    assert "run.visible: 'visible' has no effect without 'isolate: files'" in remark


def test_a_machine_says_what_isolated_scripts_need_there() -> None:
    paths = "visible: [/opt/modules, '/scratch:rw']"
    text = f"{{{paths}, environment: [MODULE*, LMOD_CMD], programs: shifter}}"
    assert machine(text).isolation == {
        "visible": ("/opt/modules", "/scratch:rw"),
        "environment": ("MODULE*", "LMOD_CMD"),
        "programs": ("shifter",),
    }
    assert machine("null").isolation == {}


def test_wrong_values_of_a_machine_are_named_with_their_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        machine("{visible: [opt], environment: ['*'],\n      programs: [podmann]}")
    said = str(caught.value)
    at = "machines.spica.isolation"
    assert f":3: {at}.visible[0]: an absolute path without '..', such as /opt" in said
    assert f":3: {at}.environment[0]: the name of an environment variable" in said
    assert f":4: {at}.programs[0]: the text 'podmann' is not possible here, " in said
    assert "did you mean 'podman'?" in said
