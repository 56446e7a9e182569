"""Run parameter grids on clusters, with Snakemake.

The package has a Snakemake executor with persistent workers, and rules that install, build and run
what Kochi files describe. In Python and in notebooks, `results` reads the results of all runs, and
`submit` runs a command as a job. In a Snakefile, `artifact` keeps outputs of any rule.
"""

from __future__ import annotations

# Every Snakemake and every job imports this package: `typing` and the modules in `_LATER` are not
# imported here. Type checkers take the name for the one in `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from snakemake_kochi.enqueue.job import submit
    from snakemake_kochi.own_rules.watch import artifact
    from snakemake_kochi.tables.frame import results

__all__ = ["__version__", "artifact", "results", "snakefile", "submit"]

__version__ = "0.1.0"  # setup.py reads this line; records contain the version

_LATER = {
    "artifact": "snakemake_kochi.own_rules.watch",
    "results": "snakemake_kochi.tables.frame",
    "submit": "snakemake_kochi.enqueue.job",
}


def snakefile(rules: str = "") -> str:
    """The path of the rule library's Snakefile, for `module kochi: snakefile: snakefile()`; with
    "tasks", of a rule for a file of commands."""
    from snakemake_kochi.resources import workflow_directory

    return str(workflow_directory() / (f"rules/{rules}.smk" if rules else "Snakefile"))


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
