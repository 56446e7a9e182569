"""Benchmarks of runs, the queue and the workers: `python -m bench --help`, docs/benchmarks.md."""
