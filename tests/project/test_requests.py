"""What runs, builds and installations request: resources by name, and a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Point, Request
from snakemake_kochi.resources import workflow_directory
from snakemake_kochi.schedulers.names import NUMBERS, TEXTS

STUDY = """
default_params: {n_nodes: 1, threads: 2, size: small}
build: {script: x, depend_params: [n_nodes], resources: {mem_mb: '`100 * $n_nodes`'}, timeout: 1h}
run:
  script: x
  depend_params: [size]
  resources:
    nodes: $n_nodes
    tasks_per_node: 2
    cpus_per_task: $threads
    mem_mb: 4000
    gpu: "`1 if $n_nodes > 1 else 0`"
    runtime: 10
    slurm_partition: p_$size
batches:
  all: {params: {n_nodes: [1, 2]}}
  own:
    run: {resources: {mem_mb: 8000, constraint: avx}, timeout: "`30 * $n_nodes`s"}
    build: {resources: {runtime: 3}}
"""


def points(text: str, batch: str) -> list[Point]:
    return list(load_experiment("e.yaml", text, None).grid(batch, "local").points)


def test_every_resource_of_a_point_follows_from_its_parameters() -> None:
    one, two = (point.request for point in points(STUDY, "all"))
    assert dict(one.resources) == {
        "nodes": 1,
        "tasks_per_node": 2,
        "cpus_per_task": 2,
        "mem_mb": 4000,
        "gpu": 0,
        "runtime": 10,
        "slurm_partition": "p_small",
    }
    assert (two.resources["nodes"], two.resources["gpu"]) == (2, 1)


def test_a_batch_replaces_resources_by_name_and_one_time_limit_the_other() -> None:
    (point,) = points(STUDY, "own")
    run = point.request
    assert (run.resources["mem_mb"], run.resources["constraint"]) == (8000, "avx")
    assert (run.resources["nodes"], "runtime" in run.resources, run.timeout) == (1, False, 30)


def test_a_build_requests_what_its_batch_says() -> None:
    found = load_experiment("e.yaml", STUDY.replace("build: {res", "build: {script: z, res"), None)
    assert found.build_request(found.batches["own"].build, {"n_nodes": "1"}) == Request(
        resources={"mem_mb": 100, "runtime": 3}
    )


def test_a_timeout_gives_a_runtime_with_a_minute_for_what_is_around_the_script() -> None:
    assert [Request(timeout=seconds).of_rule for seconds in (0.5, 60, 61, 600)] == [
        {"runtime": minutes} for minutes in (2, 2, 3, 11)
    ]


def test_points_with_the_same_values_share_a_request() -> None:
    text = STUDY.replace("[1, 2]}}", "[1, 2]}, duplicates: 2}")
    first, again, other, _ = points(text, "all")
    assert first.request is again.request is not other.request


def test_a_wrong_value_that_batches_share_is_reported_once() -> None:
    text = STUDY.replace("gpu: ", "tasks: -2 # ")
    with pytest.raises(ConfigError) as caught:
        check_experiments([load_experiment("e.yaml", text, None)], "local")
    assert str(caught.value).count("1 or more, was expected, not '-2'") == 1


RECIPES = """
dependencies:
  blas:
    script: make
    resources: {mem_mb: 1000, gpu: 1, runtime: 30}
    recipes:
      - {name: plain}
      - {name: big, resources: {mem_mb: 4000}, timeout: 90s}
"""


def test_a_recipe_replaces_what_its_dependency_requests() -> None:
    recipes = load_project(Path("/p"), RECIPES).dependencies["blas"]
    assert recipes["plain"].request == Request(resources={"mem_mb": 1000, "gpu": 1, "runtime": 30})
    assert recipes["big"].request == Request(resources={"mem_mb": 4000, "gpu": 1}, timeout=90)


def test_the_schemas_list_the_names_that_rules_may_have() -> None:
    schema = yaml.safe_load((workflow_directory() / "schemas/kochi.schema.yaml").read_text())
    assert set(schema["definitions"]["resources"]["properties"]) == {*NUMBERS, *TEXTS}
