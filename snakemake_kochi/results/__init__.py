"""From records and captured output to tables and plots."""

from snakemake_kochi.results.plot import draw
from snakemake_kochi.results.table import read_runs, summarise, write_markdown

__all__ = ["draw", "read_runs", "summarise", "write_markdown"]
