"""Slurm's commands: their options, and the meaning of their answers."""
