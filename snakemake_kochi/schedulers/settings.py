"""What a machine says of its allocations, as data."""

from __future__ import annotations

from dataclasses import dataclass

# Those of AllocationSettings that are options of sbatch by the same name.
SBATCH_OPTIONS = ("partition", "account", "qos", "reservation", "constraint", "gres")


@dataclass(frozen=True)
class AllocationSettings:
    """What is asked of a machine's scheduler for one allocation, and how many there may be.

    None leaves it to the scheduler, or to what the jobs need. `time` and `idle_timeout` are in
    seconds, `memory_mb` in MiB; `cores`, `memory_mb` and `gpus` are those of one node, the most
    that a job can have there. `node_spec` is for `alloc_script` alone, the texts from `partition`
    to `arguments` for Slurm. With fewer than `min_workers` more are asked for though nothing waits.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    gres: str | None = None
    arguments: tuple[str, ...] = ()
    node_spec: str | None = None
    nodes: int = 1
    time: float | None = None
    cores: int | None = None
    memory_mb: int | None = None
    gpus: int | None = None
    min_workers: int = 0
    max_workers: int = 8
    idle_timeout: float = 60.0
