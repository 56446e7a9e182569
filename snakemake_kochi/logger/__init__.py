"""The Snakemake logger: it shows the messages of a run that people need."""

from snakemake_kochi.logger.handler import LogHandler

__all__ = ["LogHandler"]
