"""A job's resources as a request for its allocation, and as its resources on a worker.

These are the resources that Snakemake's Slurm executor reads. Others mean the same everywhere:
threads, mem_mb, runtime, gpu. Neither that executor nor Kochi requests `disk_mb`: Snakemake gives
each job one by default, and few clusters configure the disk space of their nodes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from snakemake_kochi.errors import KochiError, nearest
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.schedulers.interface import AllocationRequest
from snakemake_kochi.schedulers.names import CONSTRAINTS, OTHER_TEXTS, SHAPE
from snakemake_kochi.schedulers.slurm.options import (
    GPUS,
    is_option,
    joined_options,
    refused_to_rule,
)
from snakemake_kochi.tickets.ticket import Resources

_CLUSTERS = ("clusters", "cluster", "slurm_cluster")
# All resources that matter for an allocation, or for a job's resources on a worker in one.
NAMES = frozenset({*CONSTRAINTS, *_CLUSTERS, *SHAPE, *OTHER_TEXTS, "mem_mb_per_cpu"})


class Values(Protocol):
    """Resources by name, in Snakemake's form."""

    def keys(self) -> Iterable[str]: ...

    def get(self, name: str, /) -> Any: ...


@dataclass(frozen=True)
class _Job:
    """A job's resources, and errors that name it."""

    rule: str
    values: Values

    def error(self, name: str, expected: str) -> KochiError:
        value = self.values.get(name)
        return KochiError(
            f"rule {self.rule}, resource {name}: {value!r} cannot be used: {expected}"
        )

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise self.error(name, "a text was expected")
        text = str(value).strip()
        if "\n" in text or "\0" in text:
            raise self.error(name, "a text of one line was expected")
        return text

    def number(self, name: str, least: int = 1) -> int | None:
        """A whole number; None for 0, which for Snakemake, too, is as if it were not given.

        It may be below `least`, which only the error message uses.
        """
        value = self.values.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, str) and re.fullmatch(r"\s*-?\d+\s*", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"a whole number from {least} was expected")
        return value or None


def requested(values: Values) -> list[str]:
    """The names of a job's resources that concern its allocation."""
    return sorted(NAMES.intersection(values.keys()))


def unknown(values: Values) -> dict[str, str]:
    """Unknown resources that look like such names, each with a likely correction."""
    names = [name for name in iter(values.keys()) if name.startswith("slurm_")]
    return {name: _meant(name) for name in names if name not in NAMES}


def _meant(name: str) -> str:
    plain = name.removeprefix("slurm_")
    if plain in NAMES or plain in ("runtime", "threads", "gpu", "mem_mb"):
        return f"did you mean '{plain}'?"
    return nearest(name, [each for each in NAMES if each.startswith("slurm_")])


def read_request(
    rule: str, values: Values, wanted: Resources
) -> tuple[AllocationRequest, Resources]:
    """A job's request, and its resources on a worker with that request.

    `wanted`: its resources without a request. Raises KochiError, naming the rule and the resource.
    """
    job = _Job(rule, values)
    for name in _CLUSTERS:
        if job.text(name):
            raise KochiError(
                f"rule {rule}, resource {name}: all jobs of a run go to one cluster, that of its "
                "machine",
                "Leave it out. For another cluster, name it as a machine in kochi.yaml, and type: "
                "export KOCHI_DEFAULT_MACHINE=...",
            )
    options = _options(job)
    gres, model, gpus = _generic_resources(job, options, wanted.gpus)
    texts = {name: job.text(resource) for resource, name in CONSTRAINTS.items()} | {"gres": gres}
    for name in ("partition", "account", "reservation"):
        texts[name] = texts[name] or None  # an empty text selects nothing
    if texts["account"]:
        # The first of several accounts, which are meant to be tried one after the other.
        texts["account"] = re.split(r"[,\s]+", texts["account"])[0]
    constraints = FrozenDict({name: text for name, text in texts.items() if text is not None})
    request = AllocationRequest(constraints, gpu_model=model, arguments=tuple(options))
    return _shaped(job, request, _sized(job, replace(wanted, gpus=gpus)))


def _sized(job: _Job, wanted: Resources) -> Resources:
    """The resources with the cores and the memory from resources in Slurm's terms."""
    cores = wanted.cores
    if (of_task := job.number("cpus_per_task")) is not None:
        cores = max(cores, of_task)
    elif wanted.gpus and (of_gpu := job.number("cpus_per_gpu")) is not None:
        cores = max(1, of_gpu * wanted.gpus) if of_gpu > 0 else cores
    memory = wanted.memory_mb
    if of_core := job.number("mem_mb_per_cpu"):
        if of_core < 0:
            raise job.error("mem_mb_per_cpu", "a whole number from 1 was expected")
        memory = of_core * cores
    return replace(wanted, cores=cores, memory_mb=memory)


def _shaped(
    job: _Job, request: AllocationRequest, wanted: Resources
) -> tuple[AllocationRequest, Resources]:
    """A request for an allocation of its own, if the job has several tasks or nodes."""
    tasks, of_node = job.number("tasks"), job.number("tasks_per_node")
    nodes, of_gpu = job.number("nodes"), job.number("tasks_per_gpu")
    for name in ("nodes", "tasks", "tasks_per_node", "tasks_per_gpu"):
        number = job.number(name)
        if number is not None and number < 1:
            raise job.error(name, "a whole number from 1 was expected")
    if job.values.get("mpi"):
        _check_mpi(job, tasks, of_node)
    elif wanted.gpus and (of_gpu or tasks):
        # Snakemake's Slurm executor interprets it in this way: for each GPU.
        tasks = (of_gpu or tasks or 1) * wanted.gpus
    if (tasks or 1) == 1 and (of_node or 1) == 1 and (nodes or 1) == 1:
        return request, wanted
    cores = job.number("cpus_per_task") or 0
    cores = cores if cores > 0 else wanted.cores
    of_core = job.number("mem_mb_per_cpu") or None
    memory_mb = None if of_core else wanted.memory_mb
    request = replace(
        request,
        nodes=nodes,
        tasks=None if of_node and (tasks or 1) == 1 else tasks,
        tasks_per_node=of_node,
        cpus_per_task=cores,
        memory_mb=memory_mb or None,
        memory_mb_of_core=of_core,
        gpus=wanted.gpus,
        whole_nodes=wanted.exclusive,
    )
    # The job runs on the first node, and has at least one task's cores there; Slurm decides how
    # many GPUs. A worker does not confine processes that the job starts on other nodes.
    on_first = cores * (of_node or 1)
    return request, replace(
        wanted,
        cores=on_first,
        exclusive=True,
        pinned=False,
        memory_mb=memory_mb,
        gpus=0,
        nodes=nodes or 1,
    )


def _check_mpi(job: _Job, tasks: int | None, of_node: int | None) -> None:
    if tasks is None and of_node is None:
        raise job.error("mpi", "with it, resource tasks or tasks_per_node was expected")
    if tasks is not None and of_node is not None:
        raise job.error("tasks", "with mpi, tasks or tasks_per_node was expected, and not both")
    name, number = ("tasks", tasks) if tasks is not None else ("tasks_per_node", of_node)
    if number == 1:
        raise job.error(name, "with mpi, a whole number from 2 was expected")


def _generic_resources(
    job: _Job, options: list[str], gpus: int
) -> tuple[str | None, str | None, int]:
    """Generic resources other than GPUs, the model of GPU, and the number of GPUs.

    It removes --gres from the options.
    """
    name, said = "gres", job.text("gres")
    for option in [each for each in options if each.startswith("--gres=")]:
        options.remove(option)
        name, said = "slurm_extra", option.partition("=")[2]
    model = job.text("gpu_model") or None
    if model is not None:
        if not re.fullmatch(r"[\w.-]+", model):
            raise job.error("gpu_model", "the name of a model, like a100, was expected")
        gpus = gpus or 1
    others = []
    for each in filter(None, (said or "").split(",")):
        if not re.fullmatch(r"[A-Za-z_]\w*(:[\w.-]+){0,2}", each):
            raise job.error(name, "name, name:number or name:type:number was expected (gpu:a100:2)")
        if (found := GPUS.fullmatch(each)) is None:
            others.append(each)
            continue
        if job.number("gpu"):
            raise job.error(name, "GPUs are in resource gpu already; leave out one of the two")
        model, gpus = found[1] or model, int(found[2] or 1)
    return ",".join(others) or ("" if said == "" else None), model, gpus


def _options(job: _Job) -> list[str]:
    """slurm_extra as arguments, each option in one word with its value."""
    text = job.text("slurm_extra") or ""
    try:
        words = shlex.split(text)
        if len(words) == 1 and text[0] in "'\"":
            words = shlex.split(words[0])  # quoted twice, as in many profiles
    except ValueError as error:
        raise job.error("slurm_extra", f"options of sbatch were expected ({error})") from error
    for word in filter(is_option, words):
        if why := refused_to_rule(word):
            raise KochiError(f"rule {job.rule}, resource slurm_extra: {word} cannot be used: {why}")
    try:
        return joined_options(words)
    except ValueError as error:
        raise job.error("slurm_extra", str(error)) from error
