"""Checks of what the queue relies on: filesystems, locks, clocks, this node, and other nodes."""

from snakemake_kochi.doctor.allocations import TrialAllocations
from snakemake_kochi.doctor.checks import Finding
from snakemake_kochi.doctor.diagnose import diagnose

__all__ = ["Finding", "TrialAllocations", "diagnose"]
