"""The queue and its workers, without Snakemake: claims, short jobs, a slow filesystem."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Row, Size, Submitter, alternate, machine_at, workers
from bench.slow_filesystem import Operations, SlowFilesystem, total
from snakemake_kochi.base.wake import wake
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.names import Layout, Name

_CLAIMS = 512
_FLAT = 1.5  # of a claim among many tickets to one among few
_OF_WORKERS = ("worker", "supervisor")  # roles


def claims(directory: Path, size: Size) -> list[Row]:
    """A claim of one ticket, of which few or many wait in large submissions: 512 of them,
    beginning with the listing of the queue."""
    counts = 1000, size.number(100_000, 2000)
    places = [directory / str(count) for count in counts]
    for place, count in zip(places, counts, strict=True):
        place.mkdir(mode=0o700)
        Submitter(place).submit(count)
    names, most = iter(range(1, 1000)), min(_CLAIMS, *counts)
    values, ratios = alternate(
        size.runs(5),
        *(lambda place=place: _claim(place, str(next(names)), most) for place in places),
        scale=1000,
    )
    few, many = (f"a claim, {count:,} tickets waiting" for count in counts)
    return [Row(few, values[0], "ms"), Row(many, values[1], "ms", ratios[1], _FLAT)]


def _claim(place: Path, worker: str, count: int) -> float:
    """The seconds of a claim. What was claimed goes back."""
    layout = Layout(str(machine_at(place).directory))
    held = Claims(layout, "q", WorkerLife(layout, worker))
    claimed: list[Name] = []
    began = time.perf_counter()
    for _ in range(count):
        claimed += held.claim(lambda name, read, taken: None if taken else bool(read()))
    seconds = time.perf_counter() - began
    for name in claimed:
        held.put_back(name)
    return seconds / len(claimed)


def latency(directory: Path, size: Size) -> list[Row]:
    """The time from submitting a ticket to the first instruction of its job, on an idle worker."""
    values = []
    run = Submitter(directory)
    with workers(directory, 1):
        # `date` prints the time a little after its first instruction, because it is loaded first.
        for _ in range(size.number(40, 3)):
            time.sleep(0.1)
            began = time.time()
            run.submit(1, "date +%s.%N")
            (end,) = run.collect(1)
            values.append(1000 * (float(run.log_of(end)) - began))
    return [Row("from submission to the job's first instruction", values, "ms")]


def throughput(directory: Path, size: Size) -> list[Row]:
    """Short jobs per second of one worker, compared with starting the same programs directly."""
    count, runs = size.number(1000, 20), size.runs(5, 2)
    run = Submitter(directory)

    def plain() -> float:
        began = time.perf_counter()
        for _ in range(count):
            subprocess.run(["true"], check=True)
        return (time.perf_counter() - began) / count

    def jobs() -> float:
        began = time.perf_counter()
        run.submit(count)
        run.collect(count)
        return (time.perf_counter() - began) / count

    with workers(directory, 1, cores=2):
        values, ratios = alternate(runs, plain, jobs, scale=1000)
    return [
        Row("a `true` process, one after another", values[0], "ms"),
        Row("a `true` job, on a worker of 2 cores", values[1], "ms", ratios[1]),
        Row("jobs per second", [1000 / value for value in values[1]], "1/s"),
    ]


def slow_queue(directory: Path, size: Size) -> list[Row]:
    """Shell jobs that do nothing, on workers with 2 cores each, while each metadata operation below
    KOCHI_ROOT takes longer: from their submission to the last end. Each worker has a mount of its
    own, as on a node of its own. Then the operations of the workers, for each job. At last jobs of
    a second: as many a second as the workers have cores would be the best."""
    delays, counts = ((0.002,), (1, 2)) if size.quick else ((0.0, 0.002, 0.01), (1, 8))
    rows = []
    for delay in delays:
        for count in counts:
            jobs = size.number(60 if count == 1 else 400, 8)
            rows += _row(directory, size.runs(1), count, jobs, delay)
    # At least two rounds on each core, so that jobs follow others.
    jobs, script = size.number(240, 4 * counts[-1]), "true" if size.quick else "sleep 1"
    return [*rows, *_row(directory, size.runs(1), counts[-1], jobs, delays[-1], script)]


def _row(
    directory: Path, runs: int, count: int, jobs: int, delay: float, script: str = "true"
) -> list[Row]:
    rates, operations = [], []
    for number in range(runs):
        own = directory / f"{count}-{delay}-{script[:5]}-{number}".replace(" ", "")
        seconds, done = _run(own, count, jobs, delay, script)
        rates.append(jobs / seconds)
        operations += done
    what = f"{count} worker{'s' if count > 1 else ''}, {1000 * delay:.0f} ms an operation"
    what += f", {jobs:,} jobs{'' if script == 'true' else f' (`{script}`)'}"
    each = total(operations) / jobs / runs
    types = _types(operations, jobs * runs)
    return [Row(f"{what}: jobs", rates, "1/s"), Row(f"{what}: {types}", [each], "a job")]


def _run(
    directory: Path, count: int, jobs: int, delay: float, script: str
) -> tuple[float, list[Operations]]:
    backing = directory / "backing"
    with contextlib.ExitStack() as stack:
        nodes = [
            stack.enter_context(SlowFilesystem(backing, directory / f"node{number}"))
            for number in range(count)
        ]
        for node in nodes:
            stack.enter_context(workers(node.path, 1, cores=2))
        run = Submitter(backing)
        for node in nodes:
            node.set_delay(delay)
            node.count()  # not the starts
        began = time.perf_counter()
        run.submit(jobs, script)
        for number, node in enumerate(nodes, 1):
            wake(Layout(str(machine_at(node.path).directory)).worker(str(number)).wake)
        run.collect(jobs)
        seconds = time.perf_counter() - began
        done = [each for node in nodes for each in node.count() if each.role in _OF_WORKERS]
        for node in nodes:
            node.set_delay(0.0)  # so that the workers end soon
    return seconds, done


def _types(operations: Sequence[Operations], jobs: int) -> str:
    counted: Counter[str] = Counter()
    for each in operations:
        counted[each.operation] += each.count
    return ", ".join(f"{name} {count / jobs:.2g}" for name, count in counted.most_common())
