"""Resources of Snakemake's Slurm executor, and the requests to sbatch that they become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.schedulers.interface import NO_REQUEST, AllocationRequest, AllocationSettings
from snakemake_kochi.schedulers.resources import read_request
from snakemake_kochi.schedulers.slurm.options import (
    generic_resources,
    request_shape,
    settings_for,
)
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Resources


def read(wanted: Resources = Resources(), **values: Any) -> tuple[AllocationRequest, Resources]:  # noqa: B008
    return read_request("one", values, wanted)


# ---- requests


def test_without_such_resources_nothing_is_requested() -> None:
    assert read(mem_mb=1000, disk_mb=10**6, runtime=3, tmpdir="/tmp") == (NO_REQUEST, Resources())
    assert NO_REQUEST.name == ""


@pytest.mark.parametrize(
    "values",
    [
        {"tasks": 1, "nodes": 1, "tasks_per_node": 1},
        {"slurm_partition": "", "slurm_account": "", "slurm_extra": "", "gpu_model": ""},
        {"mpi": "", "mem_mb_per_cpu": 0, "cpus_per_task": 1},
    ],
)
def test_resources_that_state_the_default_are_no_request(values: dict[str, Any]) -> None:
    assert read(**values) == (NO_REQUEST, Resources())


def test_a_jobs_resources_override_the_machines_settings() -> None:
    own = FrozenDict(partition="short", account="all", qos="low", constraint="cpu")
    settings = AllocationSettings(own, cores=4, memory_mb=1000)
    request, _ = read(slurm_partition="long", slurm_account="a, b", constraint="")
    assert settings_for(request, settings) == AllocationSettings(
        FrozenDict(partition="long", account="a", qos="low"), cores=None, memory_mb=None
    )
    assert settings_for(NO_REQUEST, settings) == settings
    request, _ = read(qos="high", slurm_partition="short")
    assert settings_for(request, settings) == replace(
        settings, constraints=FrozenDict({**own, "qos": "high"})
    )


def test_cores_and_memory_may_be_given_in_slurms_terms() -> None:
    _, wanted = read(Resources(cores=2, memory_mb=1), cpus_per_task=4, mem_mb_per_cpu=100)
    assert (wanted.cores, wanted.memory_mb) == (4, 400)
    assert read(Resources(cores=2), cpus_per_task=1)[1].cores == 2
    assert read(Resources(cores=2), cpus_per_task=-1)[1].cores == 2
    assert read(Resources(gpus=2), cpus_per_gpu=3)[1].cores == 6


@pytest.mark.parametrize(
    ("values", "gpus", "asked"),
    [
        ({"gres": "gpu:2"}, 0, "gpu:2"),
        ({"gres": "gpu"}, 0, "gpu:1"),
        ({"gres": "gpu:a100:2"}, 0, "gpu:a100:2"),
        ({"gpu_model": "a100"}, 0, "gpu:a100:1"),
        ({"gpu_model": "a100"}, 3, "gpu:a100:3"),
        ({"gres": "shard:4,gpu:1"}, 0, "shard:4,gpu:1"),
        ({"gres": "shard:4"}, 2, "shard:4,gpu:2"),
        ({"slurm_extra": "--gres=gpu:a100:1"}, 0, "gpu:a100:1"),
    ],
)
def test_gpus_are_counted_in_each_notation(values: dict[str, Any], gpus: int, asked: str) -> None:
    request, wanted = read(Resources(gpus=gpus), **values)
    number = int(asked.rpartition(":")[2])
    assert wanted.gpus == number
    settings = settings_for(request, AllocationSettings())
    assert generic_resources(request, settings, wanted.gpus) == asked
    assert request.arguments == ()


def test_a_machines_generic_resources_stay_except_gpus_that_a_job_requests() -> None:
    settings = AllocationSettings(FrozenDict(gres="gpu:v100:4,nvme:1"))
    assert generic_resources(NO_REQUEST, settings, 2) == "gpu:v100:4,nvme:1"
    request, _ = read(gpu_model="a100")
    assert generic_resources(request, settings, 1) == "nvme:1,gpu:a100:1"


def test_a_job_of_several_tasks_has_an_allocation_of_that_shape_to_itself() -> None:
    request, wanted = read(Resources(cores=3, memory_mb=500), mpi="srun", tasks=8)
    assert request_shape(request) == ["--ntasks=8", "--cpus-per-task=3", "--mem=500M"]
    assert wanted == Resources(cores=3, memory_mb=500, exclusive=True, pinned=False)
    request, wanted = read(mpi="mpirun", nodes=2, tasks_per_node=4, mem_mb_per_cpu=100)
    assert request_shape(request) == [
        *("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=1", "--mem-per-cpu=100M")
    ]
    assert wanted.cores == 4
    request, wanted = read(Resources(gpus=2), tasks=2, gpu_model="a100")
    assert request_shape(request) == ["--ntasks=4", "--cpus-per-task=1", "--gpus=a100:2"]
    assert generic_resources(request, AllocationSettings(), 0) is None
    assert "--exclusive" in request_shape(read(Resources(exclusive=True), nodes=2)[0])


def test_beside_a_job_of_several_nodes_is_memory_for_the_worker_if_nodes_have_as_much() -> None:
    def asked(node: Capacity, wanted: Resources, **values: object) -> str:
        request, _ = read(wanted, nodes=2, tasks_per_node=4, **values)
        (option,) = [
            each
            for each in request_shape(request.with_room_for_worker(512, node))
            if each.startswith("--mem")
        ]
        return option

    node = Capacity(8, 8000)
    assert asked(node, Resources(memory_mb=1000)) == "--mem=1512M"
    assert asked(node, Resources(memory_mb=7900)) == "--mem=8000M"
    assert asked(node, Resources(), mem_mb_per_cpu=100) == "--mem-per-cpu=228M"
    assert asked(node, Resources(), mem_mb_per_cpu=990) == "--mem-per-cpu=1000M"
    # What nodes have is not known, or less than that.
    assert asked(Capacity(1, 0), Resources(memory_mb=1000)) == "--mem=1000M"
    assert asked(Capacity(1, 0), Resources(), mem_mb_per_cpu=100) == "--mem-per-cpu=100M"
    request, _ = read(nodes=2)
    assert request.with_room_for_worker(512, node) == request


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("--qos=x --nice", ("--qos=x", "--nice")),
        ("'--qos=x --mail-type=END'", ("--qos=x", "--mail-type=END")),
        ("--nodelist node1 -w node2", ("--nodelist=node1", "-wnode2")),
        ("--comment='two words'", ("--comment=two words",)),
    ],
)
def test_further_options_are_split_as_by_a_shell(text: str, arguments: tuple[str, ...]) -> None:
    assert read(slurm_extra=text)[0].arguments == arguments


# ---- what cannot be


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--output=x", "kochi sets it,"),
        ("-o x", "kochi sets it,"),
        ("--out x", "kochi sets it,"),
        ("--array=1-3", "kochi sets it,"),
        ("-Jmine", "kochi sets it,"),
        ("--wrap=ls", "kochi starts workers itself"),
        ("-d afterok:1", "kochi starts workers itself"),
        ("--time=3", "use resource runtime"),
        ("-p long", "use resource slurm_partition"),
        ("--gpus=2", "use resource gpu"),
        ("-Mother", "all jobs of a run go to the cluster of its machine"),
    ],
)
def test_options_that_kochi_needs_for_itself_are_refused_with_the_reason(
    option: str, why: str
) -> None:
    with pytest.raises(KochiError, match=f"rule one, resource slurm_extra: .*: {why}"):
        read(slurm_extra=f"--nice {option}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"slurm_extra": "script.sh"}, r"'script.sh' is neither an option of sbatch nor"),
        ({"slurm_extra": "--comment='x"}, r"options of sbatch were expected"),
        ({"qos": ["a"]}, r"resource qos: \['a'\] cannot be used: a text"),
        ({"constraint": "a\nb"}, r"resource constraint: .*a text of one line"),
        ({"nodes": "many"}, r"resource nodes: 'many' .*a whole number from 1"),
        ({"nodes": -1}, r"resource nodes: -1 .*a whole number from 1"),
        ({"tasks": True}, r"resource tasks: True .*a whole number from 1"),
        ({"mem_mb_per_cpu": -1}, r"resource mem_mb_per_cpu: -1 .*a whole number from 1"),
        ({"gres": "'gpu:1'"}, r"resource gres: .*gpu:a100:2"),
        ({"gres": "gpu:1", "gpu": 1}, r"resource gres: .*GPUs are in resource gpu already"),
        ({"gpu_model": "a b"}, r"resource gpu_model: 'a b' .*the name of a model"),
        ({"mpi": "srun"}, r"resource mpi: .*tasks or tasks_per_node was expected"),
        ({"mpi": "srun", "tasks": 1}, r"resource tasks: 1 .*a whole number from 2"),
        ({"mpi": "srun", "tasks": 2, "tasks_per_node": 2}, r"resource tasks: .*not both"),
        ({"clusters": "other"}, r"resource clusters: all jobs of a run go to one cluster"),
    ],
)
def test_impossible_resources_are_refused_with_rule_and_resource(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(KochiError, match=f"rule one, resource .*{said}|{said}"):
        read(**values)
