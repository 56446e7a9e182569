"""What the rule library computes while a Snakefile is parsed."""

from snakemake_kochi.library.batch import BatchRules, BuildRule
from snakemake_kochi.library.library import Library, RecipeRule, chosen_machine, load

__all__ = ["BatchRules", "BuildRule", "Library", "RecipeRule", "chosen_machine", "load"]
