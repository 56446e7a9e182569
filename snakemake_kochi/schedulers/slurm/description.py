"""What a Slurm tells of itself, as a machine of kochi.yaml with remarks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from humanfriendly import format_number
from humanfriendly.text import pluralize

from snakemake_kochi.project.values import implied_tag
from snakemake_kochi.schedulers.settings import AllocationSettings
from snakemake_kochi.schedulers.slurm.cluster import (
    Accounts,
    accounts,
    cluster_name,
    is_installed,
    partitions,
)
from snakemake_kochi.schedulers.slurm.commands import NoProgramError
from snakemake_kochi.schedulers.slurm.partitions import Partition


@dataclass(frozen=True)
class Description:
    """A machine's name, and an entry of `machines:` for it, without indentation."""

    machine: str
    text: str


def describe_machine() -> Description:
    """The machine that this host belongs to, by what its Slurm says. Raises KochiError."""
    if not is_installed():
        raise NoProgramError(
            "there is no program sbatch here",
            "Is this a login node of the cluster? If so, type: module load slurm\n"
            "How a cluster with another scheduler is described, docs/cluster.md tells.",
        )
    name = cluster_name()
    lines = [
        f"{_text(name)}:  # as Slurm calls its cluster",
        f"  hosts: {_text(socket.gethostname())}  # its login nodes: names, as a list, or with *",
        "  scheduler: slurm",
        "  # kochi_root: DIRECTORY  # that all nodes see; needed only if a run asks for it",
        "  allocation:",
        *(f"    {line}" for line in (*_partitions(partitions()), *_accounts(accounts()))),
        "    # time: 4:00:00  # by default what the jobs say, else the partition's default",
        f"    max_workers: {AllocationSettings().max_workers}  # allocations at a time",
    ]
    return Description(name, "".join(f"{line}\n" for line in lines))


def _partitions(found: Sequence[Partition]) -> Iterable[str]:
    default = next((each.name for each in found if each.is_default), None)
    if default is not None:
        yield f"partition: {_text(default)}  # Slurm's default"
    elif found:
        yield f"partition: {_text(found[0].name)}  # Slurm has no default: choose one of these"
    for each in found:
        longest = "no limit" if each.seconds is None else str(timedelta(seconds=each.seconds))
        gpus = "".join(
            f", {pluralize(count, f'GPU {model}'.strip())}" for model, count in each.gpus
        )
        features = f", features {', '.join(sorted(each.features))}" if each.features else ""
        yield (
            f"#   {each.name}: longest time {longest}; {pluralize(each.count or 0, 'node')} of "
            f"{pluralize(each.node.cores, 'core')}, {format_number(each.node.memory_mb)} MiB"
            f"{gpus}{features}"
        )


def _accounts(found: Accounts) -> Iterable[str]:
    if found.names:
        default = found.default or found.names[0]
        yield f"# account: {_text(default)}  # Slurm's default; yours are {', '.join(found.names)}"


def _text(text: str) -> str:
    """In YAML, as a text."""
    return text if implied_tag(text).endswith(":str") and text.isprintable() else json.dumps(text)
