"""What the rule library computes while a Snakefile is parsed."""

from snakemake_kochi.library.library import Library, chosen_machine, load

__all__ = ["Library", "chosen_machine", "load"]
