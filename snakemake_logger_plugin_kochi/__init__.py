"""The package that Snakemake's plugin discovery imports for `--logger kochi`."""

from snakemake_kochi.logger import LogHandler

__all__ = ["LogHandler"]
