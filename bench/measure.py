"""Parts that the benchmarks share: workers, tickets, medians of alternating runs, tables."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import tabulate

from snakemake_kochi import backoff
from snakemake_kochi.base.wake import Wake
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue.views import list_workers
from snakemake_kochi.tickets.names import Layout, make_queue, wake_workers
from snakemake_kochi.tickets.run import End, Run
from snakemake_kochi.tickets.ticket import ShellJob, Ticket
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.settings import WorkerSettings, save_settings

REPOSITORY = Path(__file__).resolve().parent.parent
_PATIENCE = 120.0  # seconds


@dataclass(frozen=True)
class Row:
    """A row of a table: a quantity, measured several times.

    `ratio` is the median of its ratios to another row, run by run. `limit` is the target: the
    largest `ratio`, or the largest value if the row has no ratio.
    """

    what: str
    values: Sequence[float]
    unit: str
    ratio: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Size:
    """The size of a benchmark: as requested on the command line, else its own default.

    With `quick`, the defaults are tiny: the benchmark is only tested.
    """

    quick: bool = False
    jobs: tuple[int, ...] = ()
    rounds: int | None = None
    cores: int | None = None

    def numbers(self, whole: Sequence[int], quick: Sequence[int]) -> tuple[int, ...]:
        """The numbers of jobs, for a benchmark that compares several numbers."""
        return self.jobs or tuple(quick if self.quick else whole)

    def number(self, whole: int, quick: int) -> int:
        """The number of jobs."""
        return self.numbers((whole,), (quick,))[0]

    def runs(self, whole: int, quick: int = 1) -> int:
        return self.rounds or (quick if self.quick else whole)

    @property
    def slots(self) -> int:
        return self.cores or len(os.sched_getaffinity(0))


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, with the median and the range of the values."""
    lines = [
        (
            row.what,
            f"{statistics.median(row.values):.4g}",
            f"{min(row.values):.3g} to {max(row.values):.3g}" if len(row.values) > 1 else "",
            row.unit,
            len(row.values),
            "" if row.ratio is None else f"{row.ratio:.3g}",
            "" if row.limit is None else f"at most {row.limit:.3g}",
        )
        for row in rows
    ]
    headers = ("", "median", "range", "", "runs", "ratio", "target")
    # Leave out empty columns.
    shown = [i for i in range(len(headers)) if i < 5 or any(line[i] for line in lines)]
    return tabulate.tabulate(
        [[line[i] for i in shown] for line in lines],
        [headers[i] for i in shown],
        tablefmt="github",
        disable_numparse=True,
    )


def alternate(
    runs: int, *measures: Callable[[], float], scale: float = 1.0
) -> tuple[list[list[float]], list[float]]:
    """Call each measurement `runs` times. They alternate, so that other load on the machine affects
    all of them alike.

    Returns the values of each, times `scale`, and the median ratio of each to the first.
    """
    values: list[list[float]] = [[] for _ in measures]
    for _ in range(runs):
        for measure, into in zip(measures, values, strict=True):
            into.append(measure() * scale)
    ratios = [
        statistics.median(value / first for value, first in zip(own, values[0], strict=True))
        for own in values
    ]
    return values, ratios


def facts(directory: Path) -> str:
    """The hardware and software of this machine, as text."""
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
    lines = [
        ("processor", f"{_processor()}, {cores}"),
        ("memory", f"{psutil.virtual_memory().total / 2**30:.0f} GiB"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("filesystem", _filesystem(directory)),
        ("Python", platform.python_version()),
        ("Snakemake", version("snakemake")),
        ("date", datetime.now(UTC).strftime("%Y-%m-%d")),
    ]
    return tabulate.tabulate(lines, tablefmt="plain")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    parts = psutil.disk_partitions(all=True)
    above = [part for part in parts if directory.resolve().is_relative_to(part.mountpoint)]
    return max(above, key=lambda part: len(part.mountpoint)).fstype if above else "unknown"


def machine_at(directory: Path) -> MachinePaths:
    return Root(directory / "root").machine("local")


class Submitter:
    """A run in `directory` that submits shell jobs to a queue, and collects their ends."""

    def __init__(self, directory: Path, queue: str = "q") -> None:
        machine = machine_at(directory)
        make_directory(machine.directory)
        self.layout = machine.layout
        self._directory, self._queue = directory, queue
        self._run = Run.begin(self.layout, str(directory))
        self._wake = Wake(self._run.paths.wake)

    def submit(self, count: int, script: str = "true") -> None:
        """Submit equal jobs, and wake the workers of this computer."""
        shell = ShellJob(script=script, executable="/bin/bash")
        # As large as the ticket of a job of Snakemake.
        labels = {"rule": "measure", "snakemake_job": "x" * 1000}
        command = ("/bin/sh", "-c", script)
        ticket = Ticket("job", command, str(self._directory), labels=labels, shell=shell)
        content = json.dumps(ticket.to_dict()).encode()
        self._run.submit(self._queue, {str(number): content for number in range(count)})
        wake_workers(self.layout, self._queue)

    def collect(self, count: int, pause: float = 0.05) -> list[End]:
        """The ends of so many jobs. Raises RuntimeError if one has failed: a benchmark of jobs that
        do not start would measure nothing."""
        ends: list[End] = []
        while len(ends) < count:
            self._wake.wait(pause)
            ends += self._run.collect()
        for end in ends:
            if end.name.state != "success":
                raise RuntimeError(f"job {end.name}: {end.line}: {self.log_of(end)!r}")
        return ends

    def log_of(self, end: End) -> bytes:
        return Path(self.layout.run(end.name.run).log(end.name)).read_bytes()

    def end(self) -> None:
        self._run.end()
        self._wake.close()


@contextlib.contextmanager
def workers(
    directory: Path, count: int, cores: int = 1, queue: str = "q"
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start workers that serve `queue`, and end them afterwards."""
    machine = machine_at(directory)
    # Before: a directory that is made while it is listed is an error.
    make_queue(Layout(str(make_directory(machine.directory))), queue)
    before = len(list_workers(machine))
    settings = WorkerSettings(str(directory / "root"), "local", (queue,), stay=True, cores=cores)
    command = start_command(save_settings(settings))
    nothing = subprocess.DEVNULL
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}  # not the installed package
    started = [
        subprocess.Popen(
            command, env=environment, stdin=nothing, stdout=nothing, start_new_session=True
        )
        for _ in range(count)
    ]
    try:
        wait_until(lambda: len(list_workers(machine)) == before + count)
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def import_of_tests(name: str) -> Any:
    """Import a helper module of the tests."""
    tests = str(REPOSITORY / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    return importlib.import_module(name)


def wait_until(
    condition: Callable[[], object], interval: float = 0.01, patience: float = _PATIENCE
) -> None:
    """Wait for `condition`. Raises TimeoutError after `patience` seconds."""
    if not backoff.wait_until(lambda: bool(condition()), patience, interval):
        raise TimeoutError(f"did not happen within {patience:.0f} s")
