"""The package that Snakemake's plugin discovery imports for `--executor kochi`."""

from snakemake_kochi.executor.plugin import Executor, ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
