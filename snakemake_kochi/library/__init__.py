"""What the rule library computes while a Snakefile is parsed."""

from snakemake_kochi.library.batch import BatchRules, BuildRule
from snakemake_kochi.library.library import Library, chosen_machine, load
from snakemake_kochi.library.recipe import RecipeRule

__all__ = ["BatchRules", "BuildRule", "Library", "RecipeRule", "chosen_machine", "load"]
