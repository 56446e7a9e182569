"""The server of shell jobs with a `benchmark:`, which Snakemake's own code measures."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

from snakemake_kochi.worker.job_process import (
    CANNOT_EXECUTE,
    NOT_FOUND,
    UNPREPARED,
    execute_shell_job,
    say,
)
from snakemake_kochi.worker.server import Server
from snakemake_kochi.worker.snakemake_internals import UnfitError, load_benchmarks
from snakemake_kochi.worker.supervisor import Message


def main(arguments: list[str]) -> None:
    server = Server(arguments)
    try:
        module = load_benchmarks()
    except UnfitError as error:
        server.say(failed=error.message)
        return

    def live(job: Any, request: Message) -> int:
        shell: Any = SimpleNamespace(**request["shell"])
        shell.benchmark = SimpleNamespace(**shell.benchmark)
        own = request["environment"]
        run = partial(_measure, module, job, shell.benchmark, own)
        return execute_shell_job(job, shell, own, run)

    server.serve(live)


def _measure(
    module: Any, job: Any, benchmark: Any, environment: dict[str, str], arguments: list[str]
) -> int:
    """Execute a command as often as the rule requires, and write the benchmark file if every
    execution succeeds.

    Returns an exit status. The command is a child in the same session: signals that end one
    process also reach the other.
    """
    records = []
    for _ in range(benchmark.repeats):
        record = module.BenchmarkRecord()
        try:
            process = subprocess.Popen(arguments, env=environment)
        except OSError as error:
            say(job, f"the command {arguments[0]!r} cannot be executed: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        with module.benchmarked(process.pid, record):
            status = process.wait()
        if status:
            return status if status > 0 else 128 - status
        records.append(record)
    try:
        module.write_benchmark_records(records, benchmark.file, False)
    except OSError as error:
        say(job, f"the benchmark cannot be written: {error}")
        return UNPREPARED
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
