"""Does the cost of a point depend on the size of its batch?"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import PROFILE, Runner, kochi_executor

_LIMIT = 1.3  # of the largest batch to the second largest, per point
_MOST_OVERHEAD = 10.0  # ms
_DRY = ("--profile", str(PROFILE), "-n", "--quiet", "all")
# The runs may overlap: the benchmark measures the overhead of a point, not its work.
_SCRIPT = "echo $KOCHI_PARAM_N"
_EXPERIMENT = """\
batches:
  grid:
    params: {{n: {values}}}
    artifacts: [{{type: stdout, dest: "points/${{n}}.log"}}]
run:
  depend_params: [n]
  exclusive: false
  script: {script}
"""
_SNAKEFILE = """\
from snakemake_kochi import snakefile

module kochi:
    snakefile: snakefile()
    config: config

use rule * from kochi
"""


def measure(directory: Path, size: Size) -> list[Row]:
    """Batches of points that do nothing: the time per point of the dry run (which parses and makes
    the DAG), of the run, and of a run with nothing to do. The time of a batch of one point is
    subtracted before the division. The points' scripts are also run without Kochi: what a run takes
    beyond them is its overhead."""
    counts = size.numbers((100, 1000, 10_000), (2,))
    runner = Runner(directory)
    kinds = ("dry run", "run", "run with nothing to do")
    taken: dict[tuple[str, int], list[float]] = {}
    alone: dict[int, list[float]] = {}

    def stages(count: int) -> float:
        project = _project(directory, f"{count}-{len(taken.get(('run', count), ()))}", count)
        options = kochi_executor(size.slots)
        began = time.perf_counter()
        for kind, arguments in zip(kinds, (_DRY, options, options), strict=True):
            taken.setdefault((kind, count), []).append(_time(runner, project, arguments))
        alone.setdefault(count, []).append(_time_alone(runner, directory, count, size.slots))
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
            rows.append(Row(f"{kind}: one of {count:,} points", each, "ms", ratio, limit))
            if kind == "run":
                rows += _overhead(count, each, alone[count])
            before = each
    return rows


def _overhead(count: int, each: list[float], alone: list[float]) -> list[Row]:
    """Rows about one of `count` points: its script alone, and what its run takes beyond that.

    `each`: milliseconds of such a run. `alone`: seconds of all scripts.
    """
    scripts = [1000 * seconds / count for seconds in alone]
    beyond = [run - script for run, script in zip(each, scripts, strict=True)]
    return [
        Row(f"of this, the script of one of {count:,} points", scripts, "ms"),
        Row(
            f"of this, the overhead of one of {count:,} points", beyond, "ms", None, _MOST_OVERHEAD
        ),
    ]


def _project(directory: Path, name: str, points: int) -> Path:
    project = directory / f"project-{name}"
    project.mkdir()
    (project / "kochi.yaml").write_text("{}\n")
    experiment = _EXPERIMENT.format(values=list(range(points)), script=_SCRIPT)
    (project / "grid.yaml").write_text(experiment)
    (project / "Snakefile").write_text(_SNAKEFILE)
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    return project


def _time(runner: Runner, project: Path, arguments: tuple[str, ...]) -> float:
    """The seconds that the run takes.

    Raises RuntimeError, with the end of the output, if it fails.
    """
    command = [runner.python, "-m", "snakemake", *arguments, "--", "grid_grid"]
    began = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=project,
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


def _time_alone(runner: Runner, directory: Path, count: int, slots: int) -> float:
    """The seconds in which the script runs `count` times, `slots` at a time, without Kochi.

    As in a run, bash reads the script from a file. The memory of this process is not copied for it
    (vfork). Raises RuntimeError if a script fails.
    """
    bash = shutil.which("bash")
    assert bash is not None
    file = directory / "script.sh"
    file.write_text(f"{_SCRIPT}\n")
    environment = runner.environment()
    with open(os.devnull, "wb") as nowhere:
        output = [(os.POSIX_SPAWN_DUP2, nowhere.fileno(), 1)]
        began = time.perf_counter()
        for value in range(count):
            if value >= slots:
                _wait_for_script()
            variables = {**environment, "KOCHI_PARAM_N": str(value)}
            os.posix_spawn(bash, ["bash", str(file)], variables, file_actions=output)
        for _ in range(min(slots, count)):
            _wait_for_script()
        return time.perf_counter() - began


def _wait_for_script() -> None:
    _, status = os.wait()
    if status:
        raise RuntimeError(f"a script ended with status {os.waitstatus_to_exitcode(status)}")
