"""The arguments with which sbatch is asked for workers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from snakemake_kochi.schedulers.interface import Wanted, time_limit
from snakemake_kochi.schedulers.settings import AllocationSettings
from snakemake_kochi.schedulers.worker_command import WorkerCommand

_EXCLUDE = re.compile(r"(?:--exc\w*=|-x)(.+)")


def sbatch_arguments(
    name: str, settings: AllocationSettings, wanted: Wanted, worker: WorkerCommand, log: Path
) -> list[str]:
    """For allocations with a job name, each for a worker; `settings`: those of the machine."""
    settings = wanted.request.over(settings)
    arguments = [
        f"--job-name={name}",
        f"--output={log}",
        *(wanted.request.shape or _shape(wanted, settings)),
        # Its shell alone: it has become the worker, which tells its jobs. Slurm may be early by
        # half a minute, and mostly the worker knows its end.
        f"--signal=B:USR1@{int(worker.settings.grace)}",
        "--requeue",
        "--open-mode=append",
    ]
    if gres := wanted.request.generic_resources(settings, wanted.gpus):
        arguments.append(f"--gres={gres}")
    if wanted.seconds is not None:
        arguments.append(f"--time={time_limit(wanted.seconds)}")
    if wanted.count > 1:
        arguments.append(f"--array=1-{wanted.count}")
    for option in ("partition", "account", "qos", "reservation", "constraint"):
        if (value := getattr(settings, option)) is not None:
            arguments.append(f"--{option}={value}")
    arguments += [*settings.arguments, *wanted.arguments, *wanted.request.arguments]
    return [*arguments, *_exclude(arguments, wanted.excluded)]


def _shape(wanted: Wanted, settings: AllocationSettings) -> list[str]:
    """For one worker that leads, on the first of its nodes."""
    arguments = [
        f"--nodes={settings.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={wanted.cores}",
    ]
    if wanted.memory_mb:
        arguments.append(f"--mem={wanted.memory_mb}M")
    if wanted.whole_node:
        arguments.append("--exclusive")
    return arguments


def _exclude(arguments: Iterable[str], nodes: Iterable[str]) -> list[str]:
    """The option that excludes these nodes, too: of several, sbatch heeds the last."""
    if not (added := list(nodes)):
        return []
    given = [found[1] for each in arguments if (found := _EXCLUDE.fullmatch(each))]
    return [f"--exclude={','.join([*given[-1:], *added])}"]
