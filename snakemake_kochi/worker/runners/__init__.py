"""How a ticket is executed. Each way is a Runner; the first that can run a ticket executes it."""

from typing import TYPE_CHECKING

from snakemake_kochi.lazy import lazy_names

if TYPE_CHECKING:
    from snakemake_kochi.worker.runners.choice import Runners
    from snakemake_kochi.worker.runners.command import CommandRunner
    from snakemake_kochi.worker.runners.interface import Execution, Exit, Runner
    from snakemake_kochi.worker.runners.shell import ShellRunner
    from snakemake_kochi.worker.runners.zygote import ZygoteRunner

# Not at once: the spawner, which imports two of the modules, has to stay small.
__getattr__ = lazy_names(
    __name__,
    {
        "choice": ("Runners",),
        "command": ("CommandRunner",),
        "interface": ("Execution", "Exit", "Runner"),
        "shell": ("ShellRunner",),
        "zygote": ("ZygoteRunner",),
    },
)

__all__ = ["CommandRunner", "Execution", "Exit", "Runner", "Runners", "ShellRunner", "ZygoteRunner"]
