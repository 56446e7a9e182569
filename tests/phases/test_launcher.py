"""$KOCHI_LAUNCH, and what determines a run of it."""

from __future__ import annotations

import pytest

from snakemake_kochi.phases.launcher import Placement, line_of, placement_of, shape_of
from snakemake_kochi.project.launchers import Launcher, Launchers
from snakemake_kochi.schedulers.launchers import Shape

TWO = Shape(nodes=2, tasks=4, tasks_per_node=2, cpus_per_task=3)
ONE = Shape(nodes=1, tasks=2, tasks_per_node=2, cpus_per_task=3)


@pytest.mark.parametrize(
    ("launcher", "shape", "line"),
    [
        ("none", TWO, ""),
        (
            *("srun", TWO),
            "srun --overlap --mem=0 --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=3 "
            "--cpu-bind=cores",
        ),
        # On one node they stay on the CPUs of the job.
        (
            *("srun", ONE),
            "srun --overlap --mem=0 --nodes=1 --ntasks=2 --ntasks-per-node=2 --cpu-bind=none",
        ),
        (
            *("mpirun", TWO),
            "mpirun -n 4 --host $KOCHI_NODELIST --map-by ppr:2:node:PE=3 --bind-to core",
        ),
        (
            *("mpirun", ONE),
            "mpirun -n 2 --host localhost:2 --map-by ppr:2:node --bind-to none",
        ),
        (
            *("go -n {tasks} -f {hostfile} -b cores", TWO),
            "go -n 4 -f $KOCHI_HOSTFILE -b cores",
        ),
    ],
)
def test_the_line_of_a_launcher_is_known_without_running_it(
    launcher: str, shape: Shape, line: str
) -> None:
    assert line_of(Launcher("x", launcher), shape) == line


def test_the_line_on_a_node_names_its_files() -> None:
    said = line_of(Launcher("x", "mpirun"), TWO, "a,b", "a:2,b:2", "/hosts")
    assert said == "mpirun -n 4 --host a:2,b:2 --map-by ppr:2:node:PE=3 --bind-to core"


@pytest.mark.parametrize(
    ("resources", "nodes", "granted", "tasks"),
    [
        ({}, 1, (), [1]),
        ({}, 3, (), [1, 1, 1]),  # of an allocation with three nodes
        ({"tasks": 4}, 1, (), [4]),
        ({"nodes": 2, "tasks": 5}, 2, (), [3, 2]),
        ({"nodes": 2, "tasks_per_node": 4}, 2, (1, 1), [4, 4]),
        ({"tasks": 5, "nodes": 2}, 2, (4, 1), [4, 1]),  # as the scheduler has placed them
        ({"tasks_per_node": 2}, 2, (8, 8), [8, 8]),  # --set-resources counts
        ({"nodes": 1, "tasks_per_node": 2}, 2, (), [2]),
    ],
)
def test_the_tasks_are_those_of_the_point_or_of_its_allocation(
    resources: dict[str, int], nodes: int, granted: tuple[int, ...], tasks: list[int]
) -> None:
    shape, found = shape_of(resources, nodes, granted)
    assert found == tasks
    assert (shape.tasks, shape.nodes, shape.tasks_per_node) == (sum(tasks), len(tasks), max(tasks))


def test_more_nodes_than_the_job_has_are_refused() -> None:
    with pytest.raises(ValueError, match="2 nodes were requested, and the job has 1"):
        shape_of({"nodes": 2}, 1)


def placement(launcher: str = "", machine: str = "", tasks: int = 1) -> Placement:
    return placement_of(launcher, Launchers(machine), "m", {"tasks": tasks, "mem_mb": 5})


def test_only_what_is_given_determines_a_run() -> None:
    assert placement(tasks=2).determines == []
    assert placement(machine="mpirun", tasks=2).determines == ["launcher=mpirun", "tasks=2"]
    assert placement("none", tasks=2).determines == ["launcher=none"]
