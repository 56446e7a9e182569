"""Run parameter grids on clusters, with Snakemake.

The package has a Snakemake executor with persistent workers, and rules that install, build and run
what Kochi files describe.
"""

__all__ = ["__version__", "snakefile"]

__version__ = "0.1.0"  # setup.py reads this line; records contain the version


def snakefile() -> str:
    """The path of the rule library's Snakefile, for `module kochi: snakefile: snakefile()`."""
    from snakemake_kochi.resources import workflow_directory

    return str(workflow_directory() / "Snakefile")
