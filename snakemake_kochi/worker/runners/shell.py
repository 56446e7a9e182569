"""Plain shell commands of Snakemake jobs: prepared and executed without a Snakemake.

A small process, the spawner, forks the processes of the jobs. The worker itself forks only jobs
with a benchmark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from snakemake_kochi.next.worker.job_process import (
    CANNOT_EXECUTE,
    NOT_FOUND,
    say,
)
from snakemake_kochi.next.worker.shell_job import (
    TEMPORARY_SOURCES,
    UNPREPARED,
    execute_shell_job,
)
from snakemake_kochi.next.worker.snakemake_internals import UnfitError, load_benchmarks
from snakemake_kochi.queue.ticket import Benchmark, ShellJob, Ticket
from snakemake_kochi.worker.runners.command import fork_child
from snakemake_kochi.worker.runners.interface import Child, Runner, RunnerUnavailableError
from snakemake_kochi.worker.runners.spawner import Spawner, SpawnerFailedError


class ShellRunner(Runner):
    """Runs shell commands of Snakemake jobs."""

    name = "shell"

    def __init__(self, spawner: Spawner | None = None) -> None:
        self._spawner = spawner or Spawner()

    @property
    def helpers(self) -> tuple[int, ...]:
        return self._spawner.pids

    def close(self) -> None:
        self._spawner.close()

    def can_run(self, ticket: Ticket) -> bool:
        return ticket.shell is not None

    def start(
        self,
        ticket: Ticket,
        log: int,
        environment: Mapping[str, str],
        cpus: Collection[int] | None = None,
    ) -> Child:
        """As `Runner.start`.

        A job that cannot begin, for want of an input for example, writes a sentence to the log and
        has an exit status of 1.
        """
        shell = ticket.shell
        assert shell is not None
        environment = {**environment, **shell.environment}
        _require_here(shell, environment)
        if shell.benchmark is None and self._spawner.is_usable:
            # Go on: the worker itself forks the process, which takes longer.
            with contextlib.suppress(SpawnerFailedError):
                return self._spawner.fork(self.name, ticket, shell, log, environment, cpus)
        measure = None
        if shell.benchmark is not None:
            try:
                # The worker imports it once: that takes 0.04 s of CPU and 4 MB. In the forked
                # process it would take as long for each job, just before a measurement.
                module = load_benchmarks()
            except UnfitError as error:
                raise RunnerUnavailableError(error.message) from error
            measure = partial(_measure, module, ticket, shell.benchmark, environment)
        work = partial(execute_shell_job, ticket, shell, environment, run=measure)
        return fork_child(self.name, ticket, log, cpus, work)


def _require_here(shell: ShellJob, environment: Mapping[str, str]) -> None:
    """Raises RunnerUnavailableError where a Snakemake on this node would act differently."""
    program = shell.executable
    if "/" in program:
        is_there = os.access(program, os.X_OK)
    else:
        is_there = shutil.which(program, path=environment.get("PATH")) is not None
    if not is_there:
        raise RunnerUnavailableError(f"no {program} on this node")
    if shell.temporary_directory and shell.temporary_directory in shell.script:
        for name in TEMPORARY_SOURCES:
            path = environment.get(name, "")
            # It is unknown whether the path is quoted in the command, or must be.
            if path and shlex.quote(path) != path:
                raise RunnerUnavailableError(f"{name} is {path!r}, which needs quotes")


# ---- benchmarks


def _measure(
    module: Any,
    ticket: Ticket,
    benchmark: Benchmark,
    environment: Mapping[str, str],
    arguments: list[str],
) -> int:
    """Execute a command under Snakemake's own benchmark, and write the benchmark file.

    Executes the command as often as the rule requires, and writes the file only if every execution
    succeeds. Returns an exit status. The process that the worker forked stays as a supervisor, and
    starts the command as its child in the same session: signals that end one process also reach the
    other.
    """
    # The worker's own log is closed here.
    logging.getLogger().handlers[:] = [logging.StreamHandler()]
    records = []
    for _ in range(benchmark.repeats):
        record = module.BenchmarkRecord()
        try:
            process = subprocess.Popen(arguments, env=environment)
        except OSError as error:
            say(ticket, f"the command {arguments[0]!r} cannot be executed: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        with module.benchmarked(process.pid, record):
            status = process.wait()
        if status:
            return status if status > 0 else 128 - status
        records.append(record)
    try:
        module.write_benchmark_records(records, benchmark.file, False)
    except OSError as error:
        say(ticket, f"the benchmark cannot be written: {error}")
        return UNPREPARED
    return 0
