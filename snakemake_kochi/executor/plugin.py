"""What Snakemake's plugin discovery finds.

Each start of a Snakemake imports it, with whatever executor and for each job that has a Snakemake
of its own. So the rest of the package, a quarter of such a start, is imported for `--executor
kochi` only.
"""

from __future__ import annotations

from typing import Any

from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor


class Executor(RemoteExecutor):
    """Becomes a KochiExecutor when it is made."""

    def __new__(cls, *arguments: Any, **options: Any) -> Executor:
        from snakemake_kochi.executor.executor import KochiExecutor

        made: Executor = super().__new__(KochiExecutor)
        return made
