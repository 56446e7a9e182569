"""`kochi show`."""

from snakemake_kochi.cli.show.group import command

__all__ = ["command"]
