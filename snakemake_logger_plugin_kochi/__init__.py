"""What Snakemake's plugin discovery looks for under this name; the logger lives elsewhere."""

from snakemake_kochi.logger import LogHandler

__all__ = ["LogHandler"]
