"""Does a point of a batch cost the same however large the batch is?"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import PROFILE, Runner, kochi_executor

_LIMIT = 1.3  # of the largest number of points to the one before
_DRY = ("--profile", str(PROFILE), "-n", "--quiet", "all")
# Runs beside each other: what is measured is what a point costs us, not what it does.
_EXPERIMENT = """\
batches:
  grid:
    params: {{n: {values}}}
    artifacts: [{{type: stdout, dest: "points/${{n}}.log"}}]
run:
  depend_params: [n]
  exclusive: false
  script: echo $KOCHI_PARAM_N
"""
_SNAKEFILE = """\
from snakemake_kochi import snakefile

module kochi:
    snakefile: snakefile()
    config: config

use rule * from kochi
"""


def measure(place: Path, size: Size) -> list[Row]:
    """A batch of one trivial run for each point: the dry run, which is parsing and making the DAG,
    the run, and a run that finds nothing to do, each divided by its number of points; what a batch
    of one point takes is taken off before."""
    counts = size.numbers((100, 1000, 10_000), (2,))
    runner = Runner(place)
    kinds = ("dry run", "run", "run with nothing to do")
    taken: dict[tuple[str, int], list[float]] = {}

    def stages(count: int) -> float:
        directory = _project(place, f"{count}-{len(taken.get(('run', count), ()))}", count)
        options = kochi_executor(size.slots)
        began = time.perf_counter()
        for kind, arguments in zip(kinds, (_DRY, options, options), strict=True):
            taken.setdefault((kind, count), []).append(_time(runner, directory, arguments))
        return time.perf_counter() - began

    measures: list[Callable[[], float]] = [partial(stages, count) for count in (1, *counts)]
    alternate(size.runs(3), *measures)
    rows = []
    for kind in kinds:
        start = taken[kind, 1]
        rows.append(Row(f"{kind}: a batch of one point", start, "s"))
        before: list[float] | None = None
        for count in counts:
            runs = taken[kind, count]
            each = [1000 * (own - one) / (count - 1) for own, one in zip(runs, start, strict=True)]
            ratio = None
            if before is not None:
                ratio = statistics.median(a / b for a, b in zip(each, before, strict=True))
            limit = _LIMIT if before is not None and count == counts[-1] else None
            rows.append(Row(f"{kind}: a point of {count:,}", each, "ms", ratio, limit))
            before = each
    return rows


def _project(place: Path, name: str, points: int) -> Path:
    directory = place / f"project-{name}"
    directory.mkdir()
    (directory / "kochi.yaml").write_text("{}\n")
    (directory / "grid.yaml").write_text(_EXPERIMENT.format(values=list(range(points))))
    (directory / "Snakefile").write_text(_SNAKEFILE)
    subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
    return directory


def _time(runner: Runner, directory: Path, arguments: tuple[str, ...]) -> float:
    """Seconds. Raises RuntimeError, with the end of the output, when it fails."""
    command = [runner.python, "-m", "snakemake", *arguments, "--", "grid_grid"]
    began = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=directory,
        env=runner.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return seconds
