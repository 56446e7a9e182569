"""The names of the resources that experiments and recipes may request, and what each holds.

They are those that rules have for Snakemake's Slurm executor: see `resources.py`, which interprets
them. All readers of experiments load this module.
"""

from __future__ import annotations

# The resources that become constraints, and the names of those.
CONSTRAINTS = {
    "slurm_partition": "partition",
    "slurm_account": "account",
    "qos": "qos",
    "reservation": "reservation",
    "constraint": "constraint",
}
# The numbers that give an allocation its shape.
SHAPE = ("nodes", "tasks", "tasks_per_node", "tasks_per_gpu", "cpus_per_task", "cpus_per_gpu")
OTHER_TEXTS = ("gres", "gpu_model", "mpi", "slurm_extra")

# Whole numbers, each with the least that is possible.
NUMBERS = {
    **dict.fromkeys(SHAPE, 1),
    "mem_mb": 1,  # of a node
    "mem_mb_per_cpu": 1,
    "gpu": 0,
    "runtime": 1,  # minutes
}
TEXTS = (*CONSTRAINTS, *OTHER_TEXTS)
