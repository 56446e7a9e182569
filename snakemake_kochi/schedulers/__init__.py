"""Batch systems: requesting, finding and ending allocations; Slurm and alloc_script."""
