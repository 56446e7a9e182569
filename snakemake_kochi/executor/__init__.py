"""The Snakemake executor."""

from snakemake_kochi.executor.plugin import Executor
from snakemake_kochi.executor.settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
