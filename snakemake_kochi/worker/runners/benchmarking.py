"""A shell command under Snakemake's own benchmark, as often as the rule wants it.

The process that the worker forked stays, as a supervisor, and starts the command as its child: in
the same session, so that what ends the one reaches the other.

Snakemake's module is imported by the worker, once, when the first job with a benchmark comes. That
takes 0.04 s of CPU and 4 MB; in the forked process it would take as long for each job, and a new
Python three times that, just before something is to be measured.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import subprocess
from typing import Any

from snakemake_kochi.queue.ticket import Benchmark, Ticket
from snakemake_kochi.worker.runners.interface import RunnerUnavailableError
from snakemake_kochi.worker.runners.job_process import CANNOT_EXECUTE, NOT_FOUND, say

_PARTS = ("BenchmarkRecord", "benchmarked", "write_benchmark_records")


def load_benchmarks() -> Any:
    """Snakemake's module. Raises RunnerUnavailableError where it lacks what is needed."""
    try:
        module = importlib.import_module("snakemake.benchmark")
    except ImportError as error:
        raise RunnerUnavailableError(f"Snakemake's benchmarks cannot be loaded: {error}") from error
    if missing := [name for name in _PARTS if not hasattr(module, name)]:
        raise RunnerUnavailableError(f"Snakemake's benchmarks have no {', '.join(missing)}")
    return module


def run_measured(
    module: Any,
    ticket: Ticket,
    benchmark: Benchmark,
    arguments: list[str],
    environment: dict[str, str],
) -> int:
    """Execute a command under a benchmark, and write that if all went well; returns an exit
    status. Raises OSError when the file cannot be written."""
    # The worker's own log is closed here.
    logging.getLogger().handlers[:] = [logging.StreamHandler()]
    records = []
    for _ in range(benchmark.repeats):
        record = module.BenchmarkRecord()
        if status := _run(module, record, ticket, arguments, environment):
            return status
        records.append(record)
    module.write_benchmark_records(records, benchmark.file, False)
    return 0


def _run(
    module: Any, record: Any, ticket: Ticket, arguments: list[str], environment: dict[str, str]
) -> int:
    try:
        process = subprocess.Popen(arguments, env=environment)
    except OSError as error:
        say(ticket, f"the command {arguments[0]!r} cannot be executed: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
    with _measuring(module, process.pid, record):
        status = process.wait()
    return status if status >= 0 else 128 - status


def _measuring(module: Any, pid: int, record: Any) -> contextlib.AbstractContextManager[Any]:
    context: contextlib.AbstractContextManager[Any] = module.benchmarked(pid, record)
    return context
