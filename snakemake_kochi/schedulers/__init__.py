"""Batch systems: how allocations are requested, found again and ended; Slurm and alloc_script."""
