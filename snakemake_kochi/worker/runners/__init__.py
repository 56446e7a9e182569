"""How a ticket is executed. Each way is a Runner; faster ones go beside `command`."""

from snakemake_kochi.worker.runners.command import CommandRunner
from snakemake_kochi.worker.runners.interface import Execution, Exit, Runner

__all__ = ["CommandRunner", "Execution", "Exit", "Runner"]
