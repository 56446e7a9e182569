"""What the rule library computes while a Snakefile is parsed."""

from snakemake_kochi.library.batch import BatchRules
from snakemake_kochi.library.library import Library, RecipeRule
from snakemake_kochi.library.loading import chosen_machine, load
from snakemake_kochi.library.variants import BuildRule

__all__ = ["BatchRules", "BuildRule", "Library", "RecipeRule", "chosen_machine", "load"]
