"""Measures what the queue relies on: filesystems, locks, clocks, this node, and another one."""

from snakemake_kochi.doctor.diagnose import Patient, diagnose
from snakemake_kochi.doctor.finding import Finding, Outcome, Verdict

__all__ = ["Finding", "Outcome", "Patient", "Verdict", "diagnose"]
