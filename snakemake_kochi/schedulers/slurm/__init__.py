"""Slurm's commands, what is told to them and what their answers mean."""
