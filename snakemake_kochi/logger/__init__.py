"""The Snakemake logger: what a person wants to see of a run."""

from snakemake_kochi.logger.handler import LogHandler

__all__ = ["LogHandler"]
