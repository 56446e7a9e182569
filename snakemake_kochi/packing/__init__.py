"""Moves the files of ended jobs into packs, and forgets what the numbers of jobs have left.

`packer.py` does it; it is loaded only by the process that packs.
"""

from snakemake_kochi.packing.automatic import pack_at_exit, pack_in_background

__all__ = ["pack_at_exit", "pack_in_background"]
