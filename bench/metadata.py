"""The operations on metadata that one more job of one line of shell costs, by area, process and
type. It is the difference between two runs with different numbers of jobs, so starts and ends do
not count. The project and KOCHI_ROOT are on a filesystem that counts them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.generic import arguments
from bench.measure import Row, Size, alternate, workers
from bench.slow_filesystem import SlowFilesystem
from bench.snakemake_runs import SHELL, Runner, kochi_executor, local_executor, write_workflow

_LONG = 'shell: "sleep 600; echo > {output}"'
_AREAS = {"root": "below KOCHI_ROOT", "project": "in the project"}


def measure(directory: Path, size: Size) -> list[Row]:
    count = size.number(200, 2)
    executors = {
        "kochi": (kochi_executor(size.slots), count),
        "local executor": (local_executor(size.slots), count),
        # It starts a Snakemake for each job.
        "cluster-generic": (arguments(directory, size.slots), min(count, 20)),
    }
    rows = []
    for executor, (words, jobs) in executors.items():
        fewer, more = (
            _count(directory / f"{executor}-{each}", words, each) for each in (jobs // 2, jobs)
        )
        more.subtract(fewer)
        rows += _rows(executor, more, jobs - jobs // 2)
    return rows


def _count(directory: Path, words: Sequence[str], jobs: int) -> Counter[tuple[str, str, str]]:
    with SlowFilesystem(directory / "backing", directory / "mounted") as slow:
        Runner(slow.path).time(SHELL, jobs, words)
        found: Counter[tuple[str, str, str]] = Counter()
        for each in slow.count():
            area = "root" if each.area == "root" else "project"
            found[area, each.role, each.operation] += each.count
    return found


def _rows(executor: str, found: Counter[tuple[str, str, str]], jobs: int) -> list[Row]:
    rows = []
    for area, role in sorted({key[:2] for key in found}, reverse=True):
        types = {key[2]: n / jobs for key, n in found.items() if key[:2] == (area, role)}
        if role == "benchmark" or (total := sum(types.values())) < 0.05:
            continue
        shown = sorted(types.items(), key=lambda each: -each[1])
        said = ", ".join(f"{name} {n:.1f}" for name, n in shown if n >= 0.05)
        rows.append(Row(f"{executor}: {role}, {_AREAS[area]}: {said}", [total], "a job"))
    return rows


def waiting(directory: Path, size: Size) -> list[Row]:
    """Operations on metadata a minute while nothing happens: of a run that waits for two jobs, of
    its worker, and of a worker without jobs. They are counted over a minute, half a minute after
    the start, when the pauses have grown."""
    settle, seconds = (3.0, 3.0) if size.quick else (30.0, 60.0)
    rows = []
    with SlowFilesystem(directory / "backing", directory / "mounted") as slow:
        with _waiting_run(slow.path):
            found = _rates(slow, settle, seconds)
        rows += [Row(f"a waiting run: {role}", [rate], "1/min") for role, rate in found.items()]
        with workers(slow.path / "idle", 1):
            found = _rates(slow, settle, seconds)
        rows += [Row("a worker without jobs", [found["worker"]], "1/min")]
    return rows


@contextmanager
def _waiting_run(directory: Path) -> Iterator[None]:
    run = directory / "waiting"
    run.mkdir(mode=0o700)
    write_workflow(run, 2, _LONG)
    nothing = subprocess.DEVNULL
    with subprocess.Popen(
        [sys.executable, "-m", "snakemake", *kochi_executor(2)],
        cwd=run,
        env=Runner(directory).environment(),
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)


def _rates(slow: SlowFilesystem, settle: float, seconds: float) -> dict[str, float]:
    """The operations a minute, by the role of a process."""
    time.sleep(settle)
    slow.count()
    time.sleep(seconds)
    found: Counter[str] = Counter()
    for each in slow.count():
        found[each.role] += each.count
    return {role: 60 / seconds * found[role] for role in ("Snakemake", "worker")}


def slow_runs(directory: Path, size: Size) -> list[Row]:
    """Runs of one-line jobs while each operation on metadata takes longer, with the project and
    KOCHI_ROOT on that filesystem."""
    count = size.number(1000, 6)
    delays = (0.001,) if size.quick else (0.0, 0.01, 0.05)
    rows = []
    for delay in delays:
        own = directory / f"{delay}"
        with SlowFilesystem(own / "backing", own / "mounted", delay) as slow:
            runner = Runner(slow.path)
            values, ratios = alternate(
                size.runs(1),
                partial(runner.time, SHELL, count, local_executor(size.slots)),
                partial(runner.time, SHELL, count, kochi_executor(size.slots)),
            )
            slow.set_delay(0.0)
        what = f"{count:,} one-line jobs, {1000 * delay:.0f} ms an operation"
        rows += [
            Row(f"{what}: local executor", values[0], "s"),
            Row(f"{what}: kochi", values[1], "s", ratios[1]),
        ]
    return rows
