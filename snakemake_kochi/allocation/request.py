"""What one submission requests: the allocations, and the start of the worker in each."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from snakemake_kochi.allocation.packing import obstacle
from snakemake_kochi.allocation.sizing import Shape, workers_to_request
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.schedulers.environment import print_node
from snakemake_kochi.schedulers.interface import (
    OF_JOB,
    UNKNOWN,
    AllocationRequest,
    AllocationSettings,
    Limits,
    Scheduler,
    Wanted,
)
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.worker import start_command, work_command
from snakemake_kochi.worker.node.capacity import OWN_MB
from snakemake_kochi.worker.settings import WorkerSettings, save_settings

# Seconds in which jobs may end after the scheduler's signal.
GRACE = 20.0


@dataclass(frozen=True)
class WorkerCommand:
    """The start of the workers of alike allocations; see `WorkerScript`.

    `setup` is a text for bash that comes first. `first_worker` is the number of the first worker,
    if they were given numbers. `saves`: whether the settings are written; not for a text that only
    people read. `has_shell`: the shell that executes the script is a child of another process, with
    which the worker is to end.
    """

    settings: WorkerSettings
    setup: str = ""
    first_worker: int | None = None
    saves: bool = True
    has_shell: bool = False

    def script(
        self, allocation: str, cores: str | None, output: Path | None = None, index: str = "0"
    ) -> str:
        """A script for bash that becomes the worker, which gets the signals for the script's shell.

        The call writes the settings that the script names; raises OSError. `allocation`, the
        scheduler's name for the allocation, and `cores`, the number of cores in it, are words for
        bash. Without `cores`, the worker has the cores that it may run on. `index`: which of the
        workers it is, as arithmetic of bash, from 0. `output`: a file for the script's output, if
        the scheduler has none.
        """
        first = [] if output is None else [f"exec >{shlex.quote(str(output))} 2>&1"]
        # The first line of the log, and the only one if the worker does not start.
        first.append(print_node())
        file = save_settings(self.settings) if self.saves else self.settings.path
        command = shlex.join((work_command if self.settings.echo else start_command)(file))
        worker = f"exec {command} --allocation {allocation}"
        if self.first_worker is not None:
            worker += f" --worker $(({self.first_worker} + {index}))"
        if cores is not None:
            worker += f" --cores {cores}"
        if self.has_shell:
            worker += ' --parent "$PPID"'
        return "\n".join(["#!/bin/bash", *filter(None, [*first, self.setup]), worker, ""])

    @property
    def grace(self) -> float:
        return self.settings.grace

    @property
    def machine(self) -> MachinePaths:
        return self.settings.paths

    def log(self, allocation: str) -> Path:
        """The file for an allocation's output other than that of its jobs."""
        return self.machine.allocation_log(self.settings.controller, allocation)


def nodes_of(request: AllocationRequest) -> AllocationRequest:
    """The part of a request that selects nodes, and so their limits."""
    return AllocationRequest(request.constraints, gpu_model=request.gpu_model, nodes=request.nodes)


def wanted_of(
    shape: Shape,
    request: AllocationRequest,
    limits: Limits,
    count: int,
    excluded: Collection[str] = (),
    purpose: str = "",
) -> Wanted:
    """What is requested for workers of a shape; `limits` are those of the request."""
    # For the jobs, and for the worker beside them.
    memory = shape.capacity.memory_mb
    return Wanted(
        cores=shape.capacity.cores,
        memory_mb=min(memory + OWN_MB, limits.node.memory_mb) if memory else 0,
        gpus=shape.capacity.gpus,
        seconds=shape.seconds,
        whole_node=shape.whole_node,
        count=count,
        excluded=tuple(excluded),
        request=request.with_room_for_worker(OWN_MB, limits.node),
        purpose=purpose,
    )


def how_to_fit(machine: Machine, keys: Sequence[str], seconds: float | None) -> str:
    """What to do about a job that needs more than these keys of `allocation` allow.

    `seconds`: the time limit; it is the partition's if the machine has another one or none.
    """
    is_set = [key for key in keys if key in machine.origins]
    if machine.scheduler is None:  # an alloc_script, which has no partitions
        return f"Request less by {OF_JOB}, or change {machine.allocation_at(is_set or keys)}."
    if "time" in keys and machine.allocation.time != seconds:
        limit = "that of the partition"
    else:
        limit = machine.allocation_at(is_set) if is_set else "that of the partition's largest node"
    return f"The limit is {limit}. Request less by {OF_JOB}, or choose another partition."


def unmet_cores(machine: Machine, limits: Limits) -> str:
    """A remark about a machine whose `cores` no node has, or ""."""
    wanted, most = machine.allocation.cores, limits.node.cores
    if wanted is None or wanted <= most:
        return ""
    return f"{machine.allocation_at(['cores'])}: no node has {wanted} cores, and {most} are used"


def purpose_of(tickets: Iterable[Ticket]) -> str:
    """What allocations for these jobs are for: "kochi:project=fib:rules=build,run"."""
    named = [(each.labels.get("project", each.directory), each) for each in tickets]
    projects = sorted({Path(project).name for project, _ in named})
    rules = sorted({each.labels.get("rule", each.name) for _, each in named})
    return f"kochi:project={','.join(projects)}:rules={','.join(rules)}" if named else "kochi"


def wanted_by_hand(
    scheduler: Scheduler, settings: AllocationSettings, count: int = 1, purpose: str = ""
) -> Wanted:
    """What is requested for workers that a person requests before there are jobs."""
    limits = scheduler.limits()
    # If there are several kinds of nodes, one of them: perhaps no node has the maximum of
    # everything.
    node = limits.nodes[0] if limits.nodes else limits.node
    return Wanted(
        node.cores,
        memory_mb=settings.memory_mb or 0,
        gpus=node.gpus,
        seconds=settings.time,
        count=count,
        purpose=purpose,
        comes_back=True,
    )


def settings_of(
    root: Root,
    machine: Machine,
    scheduler: Scheduler,
    controller: str,
    queue: str,
    request: AllocationRequest,
    shape: Shape,
    stays: bool,
) -> WorkerSettings:
    """The settings of a worker in an allocation. `stays`: it stays although it is idle."""
    return WorkerSettings(
        str(root.directory),
        machine.name,
        (queue,),
        most_memory_mb=_memory_for_jobs(shape, request) or None,
        allocation_seconds=shape.seconds,
        allocation_nodes=shape.capacity.nodes,
        grace=GRACE,
        stay=True,
        idle_timeout=None if stays else machine.allocation.idle_timeout,
        # When this run ends, jobs of another run would be requeued and executed twice.
        controller=controller,
        first=shape.first,
    )


def _memory_for_jobs(shape: Shape, request: AllocationRequest) -> int | None:
    """The most MiB that a worker may give to jobs: the rest is for the worker itself.

    None if no memory was requested.
    """
    if request.has_shape:
        return request.memory_mb
    return shape.capacity.memory_mb if 0 < shape.capacity.memory_mb < UNKNOWN // 2 else None


def text_for_one_job(
    location: Location,
    scheduler: Scheduler,
    controller: str,
    queue: str,
    request: AllocationRequest,
    wanted: Resources,
    rule: str,
) -> str:
    """What would be submitted for a job of a rule if no other one waited, as a text for bash.

    `wanted`: its resources on a worker. Nothing is written or submitted. Asks the scheduler for its
    limits; raises KochiError if it does not answer, or if no allocation can run the job.
    """
    scheduler.check(request, wanted.gpus or request.gpus)
    limits = scheduler.limits(nodes_of(request))
    if why := obstacle(wanted, limits):
        raise KochiError(f"no allocation on machine {location.machine.name} can run it: {why}")
    ((shape, count), *_) = workers_to_request({wanted: 1}, [], limits)
    settings = settings_of(
        *(location.root, location.machine, scheduler, controller, queue, request, shape, False)
    )
    worker = WorkerCommand(settings, location.machine.load_env_on_machine, saves=False)
    purpose = purpose_of([Ticket(rule, ("",), str(location.require_project().directory))])
    return scheduler.text(wanted_of(shape, request, limits, count, purpose=purpose), worker)
