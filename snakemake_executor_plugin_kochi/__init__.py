"""What Snakemake's plugin discovery looks for under this name; the executor lives elsewhere."""

from snakemake_kochi.executor import Executor, ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
