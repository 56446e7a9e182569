"""The command `kochi`."""

from snakemake_kochi.cli.main import main

__all__ = ["main"]
