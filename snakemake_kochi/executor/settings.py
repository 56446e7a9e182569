"""The options of `--executor kochi`."""

# No `from __future__ import annotations`: Snakemake calls a setting's type on what was typed.
from dataclasses import dataclass, field
from typing import Optional

from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
    # Results are noticed by our own thread, at once: there is nothing to wait for.
    init_seconds_before_status_checks=0,
)


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Options as `--kochi-<name>`; the machine is $KOCHI_DEFAULT_MACHINE."""

    queue: Optional[str] = field(
        default=None,
        metadata={
            "help": "Send all jobs to this queue, which has workers of its own (started with "
            "'kochi work -q QUEUE -b'); no worker is started.",
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
