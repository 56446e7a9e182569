"""The Snakemake logger: the messages that people want to see of a run."""

from snakemake_kochi.logger.handler import LogHandler

__all__ = ["LogHandler"]
