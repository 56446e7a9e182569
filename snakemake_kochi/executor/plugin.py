"""The entry point for Snakemake's plugin discovery: the executor and its options.

Each start of a Snakemake imports this module, whatever its executor, and so does each inner
Snakemake of a job. The rest of the package takes a quarter of such a start. It is imported for
`--executor kochi` only.
"""

# No `from __future__ import annotations`: Snakemake calls a setting's type on the option's text.
import os
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Optional

from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    # They go into the tickets' environment: any user may read the arguments of a process.
    pass_envvar_declarations_to_cmd=False,
    auto_deploy_default_storage_provider=False,
    # Our own thread notices results at once, so Snakemake need not wait before it looks.
    init_seconds_before_status_checks=0,
)


def _process_state() -> dict[str, str]:
    """What a process hands on to its children, besides its environment and its directory."""
    status = Path("/proc/self/status").read_text()
    return {
        "umask": next((line for line in status.splitlines() if line.startswith("Umask:")), ""),
        "niceness": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "limits": Path("/proc/self/limits").read_text(),
    }


_STATE_AT_START = _process_state()  # Snakemake imports this module before it reads a Snakefile


def changed_state() -> str:
    """What the Snakefile has changed: "umask", "niceness" or "limits"; "" if nothing."""
    now = _process_state()
    return next((name for name, value in now.items() if value != _STATE_AT_START[name]), "")


class Executor(RemoteExecutor):
    """Becomes a KochiExecutor when Snakemake instantiates it."""

    def __new__(cls, *arguments: Any, **options: Any) -> "Executor":
        module = import_module("snakemake_kochi.executor.executor")
        made: Executor = super().__new__(module.KochiExecutor)
        return made


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options as `--kochi-<name>`; the machine is $KOCHI_DEFAULT_MACHINE."""

    queue: Optional[str] = field(
        default=None,
        metadata={
            "help": "Submit all jobs to this queue, and start no worker: its workers are started "
            "with 'kochi work -q QUEUE -b'.",
            "env_var": False,
            "required": False,
        },
    )
    workers: Optional[int] = field(
        default=None,
        metadata={
            "help": "Number of local workers to start for this run. Default: 1, or 0 with "
            "--kochi-queue.",
            "env_var": False,
            "required": False,
            "type": int,
        },
    )
    where: Optional[str] = field(
        default=None,
        metadata={
            "help": "Where the run's workers are: 'here', on this computer, or in 'allocations' of "
            "the machine's scheduler. Default: 'allocations' if the machine has a 'scheduler' "
            "or an 'alloc_script', else 'here'.",
            "env_var": False,
            "required": False,
        },
    )
    cores: Optional[int] = field(
        default=None,
        metadata={
            "help": "Cores that each local worker hands out to jobs. Default: --cores if given, "
            "else the CPUs this process may use.",
            "env_var": False,
            "required": False,
            "type": int,
        },
    )
    runner: Optional[str] = field(
        default=None,
        metadata={
            "help": "The fastest runner that a worker may use: 'phase' (runs of the rule library, "
            "in a copy of a Python that has started; the default), 'shell' (plain shell commands, "
            "without Snakemake), 'zygote' (a copy of a process that has parsed the workflow), or "
            "'command' (a new Snakemake for each job). A job that a runner cannot execute takes "
            "the next one.",
            "env_var": False,
            "required": False,
        },
    )
