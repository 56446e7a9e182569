"""A long-lived process on one node that claims tickets and runs them."""

from snakemake_kochi.worker.start import run_worker

__all__ = ["run_worker"]
