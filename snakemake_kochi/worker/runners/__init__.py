"""How a ticket is executed. Each way is a Runner; the first that can run a ticket executes it."""

from snakemake_kochi.worker.runners.choice import Runners
from snakemake_kochi.worker.runners.command import CommandRunner
from snakemake_kochi.worker.runners.interface import Execution, Exit, Runner
from snakemake_kochi.worker.runners.shell import ShellRunner

__all__ = ["CommandRunner", "Execution", "Exit", "Runner", "Runners", "ShellRunner"]
