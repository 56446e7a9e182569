"""A shell for a person in an allocation of its own, and a worker beside it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from snakemake_kochi.allocation.request import WorkerCommand, wanted_by_hand
from snakemake_kochi.allocation.workers import make_scheduler
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory, write_atomically
from snakemake_kochi.location import Location, how_to_describe, with_file_to_edit
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue.by_hand import reserve_workers
from snakemake_kochi.schedulers.native import BatchSystem, system
from snakemake_kochi.schedulers.script import LAUNCH_VARIABLE, AllocScript, mentions
from snakemake_kochi.worker.settings import WorkerSettings

_SHELL = 'exec "${SHELL:-/bin/bash}"'
# With job control, so that each has a process group: Ctrl-C in the shell is not for the worker. The
# worker leaves before the allocation ends, and requeues its jobs.
_BESIDE_WORKER = """\
#!/bin/bash
set -m
bash {worker} </dev/null &
"${{SHELL:-/bin/bash}}"
status=$?
kill %1 2>/dev/null
wait
exit $status
"""


@dataclass(frozen=True)
class Shell:
    """A command of this host that requests an allocation, and ends with the shell in it.

    It gets the `variables` in its environment. `typed`: a line for that shell, which starts the
    worker there, if nothing else does; "" if none is to be typed.
    """

    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    typed: str = ""


def shell_in_allocation(
    location: Location, queue: str | None, limit: str | None, has_terminal: bool
) -> Shell:
    """A shell by the machine's alloc_interact_script, or by its scheduler.

    The machine's settings have the nodes and the time. `limit`: the time as a person typed it.
    With a `queue`, a worker for it is in the same allocation; it ends with the shell. Raises
    KochiError.
    """
    machine = location.machine
    name = f"kochi-{location.unique_name('shell')}"
    if machine.alloc_interact_script:
        return _by_script(location, name, queue, limit)
    if machine.scheduler is not None:
        scheduler = system(machine.scheduler)
        return _by_scheduler(location, name, scheduler, queue, limit, has_terminal)
    if location.unread is not None:
        raise location.unread
    raise KochiError(
        f"machine {machine.name} has neither a scheduler nor an alloc_interact_script, by which a "
        "shell on a compute node is requested",
        _advice(location),
    )


def _advice(location: Location) -> str:
    machine = location.machine
    if machine.alloc_script:
        file = next(iter(with_file_to_edit(machine).files), "kochi.yaml")
        return (
            f"Write into {file}, for example: machines: {machine.name}: alloc_interact_script: "
            "srun --pty bash"
        )
    names = [
        each.name
        for each in location.machines.values()
        if each.scheduler is not None or each.alloc_interact_script
    ]
    if names:
        return f"Machines with one: {', '.join(names)}. Choose one with -m."
    return how_to_describe("NAME", "On a login node, describe the cluster in kochi.yaml")


# ---- by a scheduler


def _by_scheduler(
    location: Location,
    name: str,
    scheduler: BatchSystem,
    queue: str | None,
    limit: str | None,
    has_terminal: bool,
) -> Shell:
    machine = location.machine
    purpose = location.purpose("shell")
    allocator = make_scheduler(machine, name, limit)
    wanted = wanted_by_hand(allocator, machine.allocation, purpose=purpose)
    inner = ["bash", "-c", _SHELL]
    if queue is not None:
        ids = (scheduler.ALLOCATION, scheduler.CORES_OF_ALLOCATION)
        worker = _worker_file(location, name, queue, *ids)
        own = worker.with_suffix(".shell.sh")
        text = _BESIDE_WORKER.format(worker=shlex.quote(str(worker)))
        write_atomically(own, text.encode())
        inner = ["bash", str(own)]
    settings = machine.allocation
    words = scheduler.words_in_new(name, settings, wanted, inner, has_terminal)
    return Shell(tuple(words))


def _worker_file(
    location: Location, name: str, queue: str, allocation: str, cores: str | None
) -> Path:
    """A script that becomes a worker; `allocation` and `cores` are words for bash."""
    machine = location.machine
    paths = location.machine_paths
    (number,) = reserve_workers(paths, 1)
    settings = WorkerSettings(
        *(str(location.root.directory), machine.name, (queue,)), stay=True, echo=True
    )
    environment = machine.load_env_on_machine
    command = WorkerCommand(settings, environment, first_worker=number, has_shell=True)
    own = command.log(name).with_suffix(".sh")
    make_directory(own.parent)
    write_atomically(own, command.script(allocation, cores).encode())
    return own


# ---- by a script


def _by_script(location: Location, name: str, queue: str | None, limit: str | None) -> Shell:
    machine = location.machine
    settings = machine.allocation
    script = machine.alloc_interact_script
    settings_at = with_file_to_edit(machine).allocation_at
    allocator = AllocScript(name, script, settings, _script_at(machine), settings_at, limit)
    if (lack := allocator.lacks) is not None:
        raise KochiError(lack.reason, f"Add to the command: {lack.options}")
    own = None
    if queue is not None:
        cores = None if settings.cores is None else str(settings.cores)
        own = _worker_file(location, name, queue, name, cores)
    variables = allocator.variables(wanted_by_hand(allocator, settings), name, own)
    words = ("bash", "-eo", "pipefail", "-c", script)
    is_typed = own is not None and not mentions(script, LAUNCH_VARIABLE)
    # The words of every shell, also of csh and fish. The blank keeps it out of bash's history.
    typed = f" {variables[LAUNCH_VARIABLE]} &" if is_typed else ""
    return Shell(words, variables, typed)


def _script_at(machine: Machine) -> str:
    return f"machines: {machine.name}: alloc_interact_script"
