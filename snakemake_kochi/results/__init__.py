"""From records and captured output to tables and plots."""

from snakemake_kochi.results.collect import LeftOut, Run, Target, collect, collect_what_is_there
from snakemake_kochi.results.plot import draw

__all__ = ["LeftOut", "Run", "Target", "collect", "collect_what_is_there", "draw"]
