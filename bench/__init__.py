"""Measurements of the queue and its workers: `python -m bench --help`. See docs/benchmarks.md."""
