"""$KOCHI_LAUNCH of a run: the words that start its tasks on the nodes of its job.

On one node tasks stay on the CPUs of their job, because no launcher knows which these are. On
several nodes they are bound to cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.launchers import MPIRUN, NO_LAUNCHER, Launcher, Launchers
from snakemake_kochi.schedulers.launchers import LAUNCHERS, Shape

# Of resources of a point, those that say what a launcher starts.
SHAPE = ("nodes", "tasks", "tasks_per_node", "cpus_per_task")
_TASKS = SHAPE[:3]


@dataclass(frozen=True)
class Placement:
    """How a point starts its tasks: the launcher, and its resources of SHAPE."""

    launcher: Launcher = NO_LAUNCHER
    resources: Mapping[str, int] = FrozenDict()

    @property
    def determines(self) -> list[str]:
        """What of it determines a run, as texts; none if the experiment and the machine say
        nothing."""
        found = [f"launcher={self.launcher.text}"] if self.launcher.name else []
        if self.launcher.starts_tasks:
            found += [f"{n}={self.resources[n]}" for n in _TASKS if n in self.resources]
        return found


NO_PLACEMENT = Placement()


def placement_of(
    launcher: str, launchers: Launchers, machine: str, resources: Mapping[str, object]
) -> Placement:
    """The placement of a point with this launcher (see `launchers.chosen`).

    Raises ConfigError if the machine has no such launcher.
    """
    shape = ((name, resources.get(name)) for name in SHAPE)
    return Placement(
        launchers.of(launcher, machine),
        FrozenDict((name, value) for name, value in shape if isinstance(value, int)),
    )


@dataclass(frozen=True)
class Files:
    """What a launcher's line names, all without blanks: the nodes, separated by commas, with the
    number of tasks of each (`slots`), and the host file."""

    nodes: str = "$KOCHI_NODELIST"
    slots: str = "$KOCHI_NODELIST"
    host_file: str = "$KOCHI_HOSTFILE"


def line_of(launcher: Launcher, shape: Shape, files: Files | None = None) -> str:
    """The text of $KOCHI_LAUNCH. Without `files`, variables are in their place."""
    if not launcher.starts_tasks:
        return ""
    files = files or Files()
    if launcher.is_template:
        return launcher.filled(
            {
                "tasks": str(shape.tasks),
                "nodes": str(shape.nodes),
                "tasks_per_node": str(shape.tasks_per_node),
                "cpus_per_task": str(shape.cpus_per_task or 1),
                "nodelist": files.nodes,
                "hostfile": files.host_file,
            }
        )
    if launcher.text == MPIRUN:
        return " ".join(_mpirun(shape, files))
    return " ".join(LAUNCHERS[launcher.text][0](shape))


def _mpirun(shape: Shape, files: Files) -> list[str]:
    """The words for Open MPI."""
    words = ["mpirun", "-n", str(shape.tasks)]
    by = f"ppr:{shape.tasks_per_node}:node"
    if shape.nodes == 1:
        return [*words, "--host", f"localhost:{shape.tasks}", "--map-by", by, "--bind-to", "none"]
    if shape.cpus_per_task:
        by += f":PE={shape.cpus_per_task}"
    return [*words, "--host", files.slots, "--map-by", by, "--bind-to", "core"]


def shape_of(
    resources: Mapping[str, int], nodes: int, granted: Sequence[int] = (), cpus_per_task: int = 0
) -> tuple[Shape, list[int]]:
    """What a launcher starts, and the number of tasks on each node.

    `resources`: those of the point. `nodes`: how many its job has. `granted`: the tasks on each
    node of the allocation, as far as known; they count if the allocation was requested for this
    job. `cpus_per_task` is that of the job, 0 if not known. Raises ValueError if the job has too
    few nodes.
    """
    wanted = resources.get("nodes", nodes)
    if wanted > nodes:
        raise ValueError(f"{wanted} nodes were requested, and the job has {nodes}")
    of_node = resources.get("tasks_per_node")
    total = resources.get("tasks") or (of_node or 1) * wanted
    if len(granted) == wanted < sum(granted):
        tasks = list(granted)
    elif of_node and of_node * wanted == total:
        tasks = [of_node] * wanted
    else:
        tasks = [total // wanted + (index < total % wanted) for index in range(wanted)]
        tasks = [number for number in tasks if number]
    return (
        Shape(
            nodes=len(tasks),
            tasks=sum(tasks),
            tasks_per_node=max(tasks),
            cpus_per_task=resources.get("cpus_per_task", cpus_per_task),
        ),
        tasks,
    )
