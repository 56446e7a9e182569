"""Checks of what the queue relies on: filesystems, locks, clocks, this node, and other nodes."""

from snakemake_kochi.doctor.allocations import TrialAllocations
from snakemake_kochi.doctor.diagnose import diagnose
from snakemake_kochi.doctor.report import Finding

__all__ = ["Finding", "TrialAllocations", "diagnose"]
