"""$KOCHI_LAUNCH of a run: the words that start its tasks on the nodes of its job.

On one node tasks stay on the CPUs of their job, because no launcher knows which these are. On
several nodes, launchers bind them by options of their own.
"""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import read_file, write_file
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.launchers import MPIRUN, NO_LAUNCHER, Launcher, Launchers
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.schedulers.launchers import LAUNCHERS, Shape

# Of resources of a point, those that say what a launcher starts.
SHAPE = ("nodes", "tasks", "tasks_per_node", "cpus_per_task")
_KEYS = {"Cpus_allowed_list": "cpus", "Mems_allowed_list": "memory_nodes"}


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
            found += [f"{n}={self.resources[n]}" for n in SHAPE[:3] if n in self.resources]
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


def line_of(
    launcher: Launcher,
    shape: Shape,
    nodes: str = "$KOCHI_NODELIST",
    slots: str = "$KOCHI_NODELIST",
    host_file: str = "$KOCHI_HOSTFILE",
) -> str:
    """The text of $KOCHI_LAUNCH. `nodes`: separated by commas; `slots`: with the number of tasks of
    each; all without blanks."""
    if not launcher.starts_tasks:
        return ""
    if launcher.is_template:
        values = {"nodelist": nodes, "hostfile": host_file}
        values |= {name: str(getattr(shape, name)) for name in ("tasks", "nodes", "tasks_per_node")}
        return launcher.filled(values | {"cpus_per_task": str(shape.cpus_per_task or 1)})
    if launcher.text != MPIRUN:
        return " ".join(LAUNCHERS[launcher.text][0](shape))
    hosts, binding = f"localhost:{shape.tasks}", "none"
    by = f"ppr:{shape.tasks_per_node}:node"
    if shape.nodes > 1:
        hosts, binding = slots, "core"
        by += f":PE={shape.cpus_per_task}" if shape.cpus_per_task else ""
    return f"mpirun -n {shape.tasks} --host {hosts} --map-by {by} --bind-to {binding}"


def shape_of(
    resources: Mapping[str, int], nodes: int, granted: Sequence[int] = ()
) -> tuple[Shape, list[int]]:
    """What a launcher starts, and the number of tasks on each node.

    `resources`: those of the point. `nodes`: how many its job has. `granted`: the tasks on each
    node of the allocation, as far as known; they count if the allocation was requested for this
    job. Raises ValueError if the job has too few nodes.
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
    return Shape(len(tasks), sum(tasks), max(tasks), resources.get("cpus_per_task", 0)), tasks


@dataclass(frozen=True)
class Started:
    """How a run's script is started. `variables`: for its environment. `before`: lines for bash.
    `described`: the launcher for the record, if any. `counts_tasks`: the usage of the script has
    that of its tasks on this node."""

    variables: Mapping[str, str]
    before: str = ""
    described: Mapping[str, Any] | None = None
    counts_tasks: bool = True


def start(placement: Placement, machine: str, exclusive: bool, directory: Path) -> Started:
    """Prepare the start of a run's script.

    `directory`: private to the run. `exclusive`: the job has its worker to itself. Raises
    PhaseError if it cannot have its tasks.
    """
    launcher, resources = placement.launcher, placement.resources
    # A job on several nodes has an allocation to itself, also if it is not exclusive otherwise.
    exclusive = exclusive or resources.get("nodes", 1) > 1
    here = {platform.node(): len(os.sched_getaffinity(0))}
    hosts = _hosts() or here if exclusive else here  # each with its number of CPUs; this one first
    allocation = own_allocation(os.environ)
    granted = allocation.tasks if allocation is not None and exclusive else []
    try:
        shape, tasks = shape_of(resources, len(hosts), granted)
    except ValueError as error:
        raise PhaseError(
            f"{error}: {', '.join(hosts)}",
            f"On machine {machine}, correct 'nodes' in the resources of the run.",
        ) from error
    if not resources and not launcher.starts_tasks:
        tasks = list(hosts.values())
    used = dict(zip(hosts, tasks, strict=False))
    nodes, host_file = ",".join(used), directory / "hosts"
    lines = "".join(f"{host} slots={number}\n" for host, number in used.items())
    write_file(host_file, lines.encode())
    told = {"KOCHI_LAUNCH": "", "KOCHI_NODELIST": nodes, "KOCHI_HOSTFILE": str(host_file)}
    if not launcher.starts_tasks:
        return Started(told)
    works_in = LAUNCHERS[launcher.text][1] if launcher.text in LAUNCHERS else None
    own = f"machines: {machine}: launchers:"
    if works_in is not None and (allocation is None or allocation.scheduler != works_in):
        raise PhaseError(
            f"the launcher {launcher.text} works in allocations of {works_in}, and this "
            f"job on {platform.node()} is in none",
            f"Give machine {machine} another one in kochi.yaml: {own} {{{launcher.text}: mpirun}}; "
            "or use 'launcher: auto'.",
        )
    slots = ",".join(f"{host}:{number}" for host, number in used.items())
    line = line_of(launcher, shape, nodes, slots, str(host_file))
    told |= {"KOCHI_LAUNCH": line, **(allocation.variables_for(tasks) if allocation else {})}
    program, name = line.split()[0], launcher.name
    missing = (
        f"kochi: the launcher {name} needs a program {program}, and there is none on "
        f"{platform.node()}\nHave load_env_script of machine {machine} load it, or give it another "
        f"launcher in kochi.yaml: {own} {{{name}: ...}}"
    )
    # Here, before a script that does not stop at a command that fails.
    before = f"type -P -- {shlex.quote(program)} > /dev/null || "
    before += f"{{ printf '%s\\n' {shlex.quote(missing)} >&2; exit 127; }}\n"
    described = {"name": name, "line": line, "nodes": shape.nodes, "tasks": shape.tasks}
    described |= {"cpus_per_task": shape.cpus_per_task or None}
    # Tasks of a scheduler's launcher are no children of the script, and those of a template may not
    # be.
    return Started(told, before, described, counts_tasks=launcher.text == MPIRUN)


def _hosts() -> dict[str, int]:
    """The nodes of a job that has its worker to itself, as the worker says."""
    with suppress(KeyError, OSError, ValueError):
        lines = Path(os.environ["KOCHI_HOSTFILE"]).read_text("utf-8").splitlines()
        pairs = (line.partition(" slots=")[::2] for line in lines)
        return {host: int(number) for host, number in pairs}
    return {}


def binding() -> dict[str, Any]:
    """What the kernel allows the calling process, and so a script that it starts, for the record:
    "cpus" and "memory_nodes" as lists of the kernel, "memory_policy"."""
    found: dict[str, Any] = {"cpus": None, "memory_nodes": None, "memory_policy": None}
    with suppress(OSError):
        for line in read_file("/proc/self/status").decode("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key in _KEYS:
                found[_KEYS[key]] = value.strip()
    with suppress(OSError, IndexError), open("/proc/self/numa_maps", "rb", buffering=0) as maps:
        found["memory_policy"] = maps.read(200).split()[1].decode()
    return found
