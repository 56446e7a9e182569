"""$KOCHI_LAUNCH, what determines a run of it, and the CPUs of its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import write

from snakemake_kochi.phases.launcher import (
    Files,
    Placement,
    line_of,
    placement_of,
    shape_of,
)
from snakemake_kochi.phases.placement import Topology, memory_nodes, place
from snakemake_kochi.project.launchers import Launcher, Launchers
from snakemake_kochi.schedulers.launchers import Shape

TWO = Shape(nodes=2, tasks=4, tasks_per_node=2, cpus_per_task=3)
ONE = Shape(nodes=1, tasks=2, tasks_per_node=2, cpus_per_task=3)


@pytest.mark.parametrize(
    ("launcher", "shape", "bind", "line"),
    [
        ("none", TWO, "cores", ""),
        (
            *("srun", TWO, ""),
            "srun --overlap --mem=0 --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=3 "
            "--cpu-bind=cores",
        ),
        (
            *("srun", TWO, "numa"),
            "srun --overlap --mem=0 --nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=3 "
            "--cpu-bind=ldoms",
        ),
        # On one node Kochi binds.
        (
            *("srun", ONE, "cores"),
            "srun --overlap --mem=0 --nodes=1 --ntasks=2 --ntasks-per-node=2 --cpu-bind=none",
        ),
        (
            *("mpirun", TWO, "cores"),
            "mpirun -n 4 --host $KOCHI_NODELIST --map-by ppr:2:node:PE=3 --bind-to core",
        ),
        (
            *("mpirun", ONE, "cores"),
            "mpirun -n 2 --host localhost:2 --map-by ppr:2:node --bind-to none",
        ),
        (
            *("go -n {tasks} -f {hostfile} -b {bind}", TWO, "sockets"),
            "go -n 4 -f $KOCHI_HOSTFILE -b sockets",
        ),
    ],
)
def test_the_line_of_a_launcher_is_known_without_running_it(
    launcher: str, shape: Shape, bind: str, line: str
) -> None:
    assert line_of(Launcher("x", launcher), shape, bind) == line


def test_the_line_on_a_node_names_its_files() -> None:
    files = Files("a,b", "a:2,b:2", "/hosts", "/task")
    said = line_of(Launcher("x", "mpirun"), TWO, "none", files)
    assert said == "mpirun -n 4 --host a:2,b:2 --map-by ppr:2:node --bind-to none /task"


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


def placement(launcher: str = "", bind: str = "", machine: str = "", tasks: int = 1) -> Placement:
    return placement_of(launcher, bind, Launchers(machine), "m", {"tasks": tasks, "mem_mb": 5})


def test_only_what_is_given_determines_a_run() -> None:
    assert placement(tasks=2).determines == []
    assert placement(machine="mpirun", tasks=2).determines == ["launcher=mpirun", "tasks=2"]
    assert placement("none", tasks=2).determines == ["launcher=none"]
    assert placement(bind="numa", tasks=2).determines == ["bind=numa"]


def node(root: Path) -> Path:
    """Two sockets with a NUMA node each, of two cores with two CPUs each: 0,4 1,5 | 2,6 3,7."""
    for cpu in range(8):
        own = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(own / "core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}\n")
        write(own / "physical_package_id", f"{cpu % 4 // 2}\n")
    for number, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        write(root / f"sys/devices/system/node/node{number}/cpulist", f"{cpus}\n")
    return root


@pytest.mark.parametrize(
    ("cpus", "bind", "tasks", "of_task", "places"),
    [
        (range(8), "cores", 2, 2, [(0, 4), (1, 5)]),
        (range(8), "cores", 4, 1, [(0, 4), (1, 5), (2, 6), (3, 7)]),  # whole cores
        (range(8), "cores", 2, 4, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (range(8), "cores", 2, 0, [(0, 1, 4, 5), (2, 3, 6, 7)]),  # an equal share
        (range(8), "cores", 3, 4, None),
        ([1, 2, 3, 5, 6, 7], "cores", 1, 4, [(2, 3, 6, 7)]),  # one node has enough
        ([1, 2, 6], "cores", 1, 3, [(1, 2, 6)]),
        (range(8), "sockets", 1, 0, [(0, 1, 4, 5)]),
        (range(8), "numa", 2, 4, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        ([0, 1, 2, 4], "numa", 2, 1, [(0, 1, 4), (0, 1, 4)]),  # only the CPUs of the job
    ],
)
def test_a_task_gets_whole_cores_sockets_or_numa_nodes(
    tmp_path: Path, cpus: range, bind: str, tasks: int, of_task: int, places: object
) -> None:
    topology = Topology.of(set(cpus), node(tmp_path))
    assert place(topology, bind, tasks, of_task) == places


def test_what_the_kernel_does_not_tell_counts_as_one(tmp_path: Path) -> None:
    topology = Topology.of({0, 1, 2}, tmp_path)
    assert topology == Topology(((0,), (1,), (2,)), {0: (0, 1, 2)}, {0: (0, 1, 2)})
    assert memory_nodes(topology, [1]) == [0]
