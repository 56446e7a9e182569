"""Jobs, workers and runs of the old queue: goes with it, as do `jobs`, `packs` and `processes`."""

from __future__ import annotations

from collections.abc import Collection

from snakemake_kochi.cleaning.jobs import clean_jobs
from snakemake_kochi.cleaning.packs import clean_packs
from snakemake_kochi.cleaning.processes import clean_processes
from snakemake_kochi.cleaning.removal import Removal
from snakemake_kochi.packing.packer import pack
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.project.clean_rules import Rules


def clean_tickets(
    machine: MachinePaths, rules: Rules, removal: Removal, needed: Collection[str]
) -> None:
    """Delete what ended jobs, runs and workers have left. `needed` are jobs that others need."""
    clean_processes(machine, rules, removal)
    numbers = {int(job) for job in needed if job.isdecimal()}
    with removal.tolerating(f"jobs in {machine.jobs}"):
        clean_jobs(machine, rules, removal, numbers)
        clean_packs(machine, rules, removal, numbers)
    if not removal.is_dry:
        with removal.tolerating(f"packs in {machine.packs}"):
            removal.faults += pack(machine).faults
