"""The tasks of one run: where they go, how they are bound, and what the kernel says about it."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_kochi.cpu_lists import format_cpus
from snakemake_kochi.errors import PhaseError
from snakemake_kochi.files import list_names, read_file, write_file
from snakemake_kochi.phases.ending import Usage
from snakemake_kochi.phases.launcher import Files, Placement, line_of, shape_of
from snakemake_kochi.project.launchers import MPIRUN, Launcher
from snakemake_kochi.schedulers.environment import own_allocation
from snakemake_kochi.schedulers.launchers import LAUNCHERS, NUMBER_VARIABLES

# Variables with the number of a task, in all tasks and on its node: of Open MPI, of MPICH and those
# made from it, of Cray, and of schedulers. Those of a scheduler come last, because a job that
# starts mpirun has them, too.
_NUMBERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", NUMBER_VARIABLES[0])
_NUMBERS_ON_NODE = (
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", NUMBER_VARIABLES[1]),
)
_MOST_NOTED = 64  # tasks
_TASK = re.compile(r"task-(\d+)")  # a file with what a task has noted
_NOT_FOUND = 127
# In bash and in sh. /proc/self is the shell's process.
_NOTE = """\
while IFS= read -r kochi_line; do
    case $kochi_line in Cpus_allowed_list:*|Mems_allowed_list:*) echo "$kochi_line" ;; esac
done < /proc/self/status
read -r _ kochi_line _ < /proc/self/numa_maps && echo "policy: $kochi_line"
read -r kochi_line < /proc/sys/kernel/hostname && echo "node: $kochi_line"
"""


_UNKNOWN = {"cpus": None, "memory_nodes": None, "memory_policy": None}
_KEYS = {
    "Cpus_allowed_list": "cpus",
    "Mems_allowed_list": "memory_nodes",
    "policy": "memory_policy",
    "node": "node",
}


def _read(file: Path | str) -> dict[str, Any]:
    try:
        lines = read_file(file).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    found = {_KEYS[key]: value.strip() for key, value in pairs if key in _KEYS}
    return {**_UNKNOWN, **found} if found else {}


def _own() -> dict[str, Any]:
    """As `_read`, of the calling process."""
    found = _read("/proc/self/status")
    with suppress(OSError, IndexError), open("/proc/self/numa_maps", "rb", buffering=0) as maps:
        found["memory_policy"] = maps.read(200).split()[1].decode()
    return found


@dataclass(frozen=True)
class Started:
    """How a run's script is started. `wrapper`: words before it that bind it. `before`: lines for
    bash. `variables`: for its environment. `described`: the launcher for the record, if any.
    `inherited`: the binding of this process. `missing`: what to say without its program."""

    directory: Path
    asked: str
    variables: Mapping[str, str]
    wrapper: tuple[str, ...] = ()
    before: str = ""
    described: Mapping[str, Any] | None = None
    # A script that nothing binds has what its parent has. Reading it there costs the run no time.
    inherited: dict[str, Any] = field(default_factory=_own)
    missing: str = field(default="", repr=False)
    counts_tasks: bool = False

    def check(self, status: int) -> None:
        """Raise PhaseError if a script that ended with this status could not begin."""
        if status == _NOT_FOUND and (self.directory / "missing").exists():
            message, _, hint = self.missing.partition("\n")
            raise PhaseError(message, hint)

    def own_seconds(self, usage: Usage | None) -> float | None:
        """The CPU time of the run on this node, from that of the script; None if not known."""
        # Tasks of a scheduler's launcher are no children of the script, and those of a template
        # may not be.
        if usage is None or not (self.described is None or self.counts_tasks):
            return None
        return usage.user_seconds + usage.system_seconds

    def binding(self) -> dict[str, Any]:
        """For the record: the `asked` binding, and that of the script and of the first tasks, as
        the kernel had it."""
        found = _read(self.directory / "script") if self.before else self.inherited
        found.pop("node", None)
        return {"asked": self.asked or None, **(found or _UNKNOWN), "tasks": self._tasks()}

    def _tasks(self) -> list[dict[str, Any]]:
        if self.described is None:
            return []  # without a launcher no task notes anything
        # Listed, because each attempt to open a file that is not there asks a shared disk.
        names: list[str] = []
        with suppress(OSError):  # it must not fail a run that has ended
            names = list_names(self.directory)
        found = []
        for number in sorted(int(match[1]) for match in map(_TASK.fullmatch, names) if match):
            if own := _read(self.directory / f"task-{number}"):
                found.append({"task": number, "node": None, **own})
        return found


def start(placement: Placement, machine: str, exclusive: bool, directory: Path) -> Started:
    """Prepare the start of a run's script.

    `directory` is made if tasks or a binding need it; the one around it is private to the run.

    `exclusive`: the job has its worker to itself. Raises PhaseError if it cannot have its tasks or
    its binding.
    """
    cpus = sorted(os.sched_getaffinity(0))
    # A job on several nodes has an allocation to itself, also if it is not exclusive otherwise.
    exclusive = exclusive or placement.resources.get("nodes", 1) > 1
    hosts = _hosts(exclusive, len(cpus))
    allocation = own_allocation(os.environ)
    granted = allocation.tasks if allocation is not None and exclusive else []
    launcher, bind = placement.launcher, placement.bind
    try:
        shape, tasks = shape_of(placement.resources, len(hosts), granted)
    except ValueError as error:
        raise PhaseError(
            f"{error}: {', '.join(hosts)}",
            f"On machine {machine}, correct 'nodes' in the resources of the run.",
        ) from error
    if not placement.resources and not launcher.starts_tasks:
        tasks = list(hosts.values())
    used = dict(zip(hosts, tasks, strict=False))
    host_file = directory.with_name("hosts")
    lines = "".join(f"{host} slots={number}\n" for host, number in used.items())
    write_file(host_file, lines.encode())
    variables = {
        "KOCHI_LAUNCH": "",
        "KOCHI_NODELIST": ",".join(used),
        "KOCHI_HOSTFILE": str(host_file),
    }
    noted = f"{{\n{_NOTE}}} 2> /dev/null > {shlex.quote(str(directory / 'script'))} || :\n"
    noted += "unset kochi_line\n"
    if not launcher.starts_tasks:
        if not (found := _places(bind, cpus, 1, shape.cpus_per_task, machine)):
            return Started(directory, bind, variables)
        directory.mkdir()
        return Started(directory, bind, variables, found[0], noted)
    _check_scheduler(launcher, machine)
    if len(str(directory).split()) != 1:
        raise PhaseError(
            f"the launcher {launcher.name} cannot be used, because bash splits $KOCHI_LAUNCH at "
            f"blanks, and {directory} has some",
            "Set KOCHI_ROOT, or kochi_root of the machine, to a directory without blanks.",
        )
    places: list[tuple[str, ...]] = []
    if shape.nodes == 1:
        places = _places(bind or "cores", cpus, shape.tasks, shape.cpus_per_task, machine, not bind)
        # Without a binding, tasks stay on the CPUs of their job: a launcher may allow them others.
        places = places or [_bound(cpus, ())] * shape.tasks
    slots = ",".join(f"{host}:{number}" for host, number in used.items())
    files = Files(variables["KOCHI_NODELIST"], slots, str(host_file), str(directory / "task"))
    line = line_of(launcher, shape, bind, files)
    directory.mkdir()
    _write_task(directory, places)
    variables["KOCHI_LAUNCH"] = line
    if allocation is not None:
        variables |= allocation.variables_for(tasks)
    program = line.split()[0]
    missing = directory / "missing"
    return Started(
        directory,
        bind,
        variables,
        (),
        f"type -P -- {shlex.quote(program)} > /dev/null || "
        f"{{ : > {shlex.quote(str(missing))}; exit {_NOT_FOUND}; }}\n{noted}",
        {
            "name": launcher.name,
            "line": line.removesuffix(f" {files.task}"),
            "nodes": shape.nodes,
            "tasks": shape.tasks,
            "cpus_per_task": shape.cpus_per_task or None,
        },
        counts_tasks=launcher.text == MPIRUN,
        missing=f"the launcher {launcher.name} needs a program {program}, and there is none on "
        f"{platform.node()}\nHave load_env_script of machine {machine} load it, or give it another "
        f"launcher in kochi.yaml: machines: {machine}: launchers: {{{launcher.name}: ...}}",
    )


def _check_scheduler(launcher: Launcher, machine: str) -> None:
    """Raise PhaseError if the launcher works only in allocations of a scheduler, and this job is in
    none."""
    known = LAUNCHERS.get(launcher.text)
    if known is None:
        return
    allocation = own_allocation(os.environ)
    if allocation is None or allocation.scheduler != known[1]:
        raise PhaseError(
            f"the launcher {launcher.text} works in allocations of {known[1]}, and this "
            f"job on {platform.node()} is in none",
            f"Give machine {machine} another one in kochi.yaml: machines: {machine}: launchers: "
            f"{{{launcher.text}: mpirun}}; or use 'launcher: auto'.",
        )


def _hosts(exclusive: bool, cpus: int) -> dict[str, int]:
    """The nodes of the job, each with its number of CPUs there; this one first."""
    here = {platform.node(): cpus}
    if not exclusive:
        return here
    with suppress(KeyError, OSError, ValueError):
        lines = Path(os.environ["KOCHI_HOSTFILE"]).read_text("utf-8").splitlines()
        pairs = (line.partition(" slots=")[::2] for line in lines)
        return {host: int(number) for host, number in pairs} or here
    return here


def _places(
    bind: str,
    cpus: Sequence[int],
    tasks: int,
    cpus_per_task: int,
    machine: str,
    may_fail: bool = False,
) -> list[tuple[str, ...]]:
    """For each task, the words before its command that bind it; none without a binding."""
    if bind in ("", "none"):
        return []
    # Imported here: most runs bind nothing.
    from snakemake_kochi.phases.placement import Topology, binds_memory, memory_nodes, place

    topology = Topology.of(cpus)
    found = place(topology, bind, tasks, cpus_per_task)
    if found is None:
        if may_fail:
            return []
        needed = tasks * (cpus_per_task or 1)
        raise PhaseError(
            f"bind: {bind} cannot be done: {tasks} tasks with {cpus_per_task or 1} CPUs each need "
            f"{needed}, in whole cores, and the job has {len(cpus)} ({format_cpus(cpus)})",
            f"Request cpus_per_task in the resources of the run, or use 'bind: none' on {machine}.",
        )
    nodes = sorted({node for own in found for node in memory_nodes(topology, own)})
    with_memory = bind == "numa" and binds_memory(nodes)
    return [_bound(own, memory_nodes(topology, own) if with_memory else ()) for own in found]


def _bound(cpus: Sequence[int], nodes: Sequence[int]) -> tuple[str, ...]:
    if nodes:
        memory = f"--membind={','.join(map(str, nodes))}"
        return ("numactl", f"--physcpubind={format_cpus(cpus)}", memory, "--")
    return ("taskset", "--cpu-list", format_cpus(cpus))


def _write_task(directory: Path, places: Sequence[Sequence[str]]) -> None:
    """Write the program that each task runs first.

    It binds the task, notes where it is, and becomes the command.
    """
    noting = directory / "noting"
    number = _first_of(_NUMBERS)
    noting.write_text(
        f"#!/bin/sh\nif [ {number} -lt {_MOST_NOTED} ]; then\n{{\n{_NOTE}}} 2> /dev/null "
        f'> {shlex.quote(str(directory))}/task-{number}\nfi\nexec "$@"\n'
    )
    own = "".join(
        f'{index}) exec {shlex.join(words)} {shlex.quote(str(noting))} "$@" ;;\n'
        for index, words in enumerate(places)
    )
    task = directory / "task"
    task.write_text(
        "#!/bin/sh\n"
        'case ${1-} in -*) echo "kochi: $1: options of a launcher go into a template in kochi.yaml:'
        ' machines: NAME: launchers:" >&2; exit 2 ;; esac\n'
        f"case {_first_of(_NUMBERS_ON_NODE)} in\n{own}"
        f'*) exec {shlex.quote(str(noting))} "$@" ;;\nesac\n'
    )
    for file in (task, noting):
        file.chmod(0o700)


def _first_of(variables: Sequence[str]) -> str:
    """The value of the first variable that is set, else 0, for sh."""
    text = "0"
    for name in reversed(variables):
        text = f"${{{name}:-{text}}}"
    return text
