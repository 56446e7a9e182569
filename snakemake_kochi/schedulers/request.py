"""What a job says about the allocation in which it is to run, beyond what it takes of a worker.

The names are those of the resources that Snakemake's Slurm executor reads, with the same meaning.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any

from humanfriendly.text import pluralize

from snakemake_kochi.queue import Capacity
from snakemake_kochi.schedulers.settings import SBATCH_OPTIONS, AllocationSettings

_MOST_LETTERS = 24
# Generic resources that are GPUs: gpu, gpu:2, gpu:a100, gpu:a100:2.
GPUS = re.compile(r"gpu(?::(\w*[A-Za-z_][\w.-]*))?(?::(\d+))?")


@dataclass(frozen=True)
class AllocationRequest:
    """None: as the machine's settings say, of which a request overrides those of the same name; an
    empty text is for none at all.

    `gres` has generic resources other than GPUs. With `tasks`, `tasks_per_node` or several `nodes`
    a job has an allocation to itself, of that shape, with `cpus_per_task` for each task, and MiB of
    memory for each node or core. With `whole_nodes` nobody else's jobs are on its nodes.
    `arguments` are further ones for sbatch, after all others.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    gres: str | None = None
    gpu_model: str | None = None
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    memory_mb: int | None = None
    memory_mb_of_core: int | None = None
    gpus: int = 0
    whole_nodes: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """One that no other request has, and the beginning of which people understand; "" of none.
        As much of it as may be part of a queue's name."""
        if self == AllocationRequest():
            return ""
        letters = re.sub(r"[^A-Za-z0-9]+", "_", self.describe()).strip("_")
        values = [getattr(self, field.name) for field in fields(self)]
        digest = hashlib.sha256(repr(values).encode()).hexdigest()[:8]
        return f"{letters[:_MOST_LETTERS].strip('_') or 'own'}-{digest}"

    def over(self, settings: AllocationSettings) -> AllocationSettings:
        """What counts for its allocations. What a node has is said of the settings' partition: of
        another one it is for the scheduler to say."""
        own: dict[str, Any] = {
            name: value or None
            for name in SBATCH_OPTIONS
            if (value := getattr(self, name)) is not None
        }
        if self.nodes is not None:
            own["nodes"] = self.nodes
        if self.partition is not None and self.partition != settings.partition:
            own |= {"cores": None, "memory_mb": None, "gpus": None}
        return replace(settings, **own)

    def with_room_for_worker(self, memory_mb: int, node: Capacity) -> AllocationRequest:
        """With that much more memory on the first node of its shape, as far as nodes have it."""
        if self.memory_mb_of_core is not None:
            # On that node are this many cores at least.
            cores = (self.cpus_per_task or 1) * (self.tasks_per_node or 1)
            wanted = self.memory_mb_of_core + math.ceil(memory_mb / cores)
            most = max(self.memory_mb_of_core, node.memory_mb // max(1, node.cores))
            return replace(self, memory_mb_of_core=min(wanted, most))
        if self.memory_mb is not None:
            most = max(self.memory_mb, node.memory_mb)
            return replace(self, memory_mb=min(self.memory_mb + memory_mb, most))
        return self

    @property
    def shape(self) -> list[str]:
        """As arguments of sbatch the shape of its allocations; empty where that is what the jobs
        that wait need."""
        if self.tasks is None and self.tasks_per_node is None and (self.nodes or 1) == 1:
            return []
        arguments = [] if self.nodes is None else [f"--nodes={self.nodes}"]
        if self.tasks is not None:
            arguments.append(f"--ntasks={self.tasks}")
        if self.tasks_per_node is not None:
            arguments.append(f"--ntasks-per-node={self.tasks_per_node}")
        elif self.tasks is None:
            arguments.append("--ntasks-per-node=1")
        arguments.append(f"--cpus-per-task={self.cpus_per_task or 1}")
        if self.memory_mb_of_core is not None:
            arguments.append(f"--mem-per-cpu={self.memory_mb_of_core}M")
        elif self.memory_mb is not None:
            arguments.append(f"--mem={self.memory_mb}M")
        if self.gpus:
            # Of all its nodes together: a generic resource would be of each.
            model = f"{self.gpu_model}:" if self.gpu_model else ""
            arguments.append(f"--gpus={model}{self.gpus}")
        if self.whole_nodes:
            arguments.append("--exclusive")
        return arguments

    def generic_resources(self, settings: AllocationSettings, gpus: int) -> str | None:
        """The generic resources of each node: those of the settings, which are the request's where
        it has any, and `gpus`, unless the settings name GPUs and the request no model."""
        own = settings.gres.split(",") if settings.gres else []
        if self.shape:
            return ",".join(own) or None
        has_gpus = any(GPUS.fullmatch(each) for each in own)
        if gpus and (self.gpu_model or not has_gpus):
            own = [each for each in own if not GPUS.fullmatch(each)]
            model = f"{self.gpu_model}:" if self.gpu_model else ""
            own.append(f"gpu:{model}{gpus}")
        return ",".join(own) or None

    def describe(self) -> str:
        """For people: "partition long, account me, 2 nodes"; "" where nothing is requested."""
        named = (*SBATCH_OPTIONS, "gpu_model")
        said = [
            f"{name.replace('_', ' ')} {value}" for name in named if (value := getattr(self, name))
        ]
        if self.nodes is not None:
            said.append(pluralize(self.nodes, "node"))
        if self.tasks is not None:
            said.append(pluralize(self.tasks, "task"))
        if self.tasks_per_node is not None:
            said.append(f"{pluralize(self.tasks_per_node, 'task')} on each")
        if self.whole_nodes:
            said.append("nobody beside it")
        return ", ".join([*said, *self.arguments])


NO_REQUEST = AllocationRequest()
