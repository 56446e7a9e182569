"""Measures what the queue relies on: filesystems, locks, clocks, this node, and another one."""

from snakemake_kochi.doctor.diagnose import Patient, diagnose
from snakemake_kochi.doctor.finding import Finding, Outcome, Verdict
from snakemake_kochi.doctor.others import OtherNode, OtherNodes

__all__ = ["Finding", "OtherNode", "OtherNodes", "Outcome", "Patient", "Verdict", "diagnose"]
