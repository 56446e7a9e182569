"""The kochi executor compared with Snakemake's Slurm executor, on a real Slurm on this computer."""

from __future__ import annotations

import importlib.util
import itertools
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import REPOSITORY, Row, Size, alternate, import_of_tests, wait_until
from bench.snakemake_runs import CLUSTER_PROFILE, PROFILE, SHELL, Runner
from snakemake_kochi.queue.views import shared_workers

_NODES = 2
_CPUS = 4  # per node, according to the configuration of Slurm
_LIMIT = 1 / 100
_LIMIT_WITH_ALLOCATIONS = 1 / 50
_MOST_SUBMISSIONS = 4
_FEW = 20
_MANY = 1000  # for which the plugin takes half an hour
_MACHINE = "bench"
_CONFIGURATION = f"""\
machines:
  {_MACHINE}:
    scheduler: slurm
    allocation: {{max_workers: {_NODES}, time: 1h}}
"""
# The Slurm plugin has an environment of its own: every Snakemake imports each installed plugin when
# it starts, which takes about 0.2 s.
_ENVIRONMENT = REPOSITORY / ".venv-slurm"


def measure(directory: Path, size: Size) -> list[Row]:
    """kochi is measured twice: with the allocations that the run requests, and in two existing
    allocations, as a user has them who keeps workers for several runs.

    The plugin polls squeue as early as its options permit. It is measured with 100 submitted jobs
    at a time, with which it is fastest, and for few jobs also with one per processor. Only kochi is
    measured with many jobs, unless --jobs requests them.
    """
    runner = Runner(directory, _python())
    rows: list[Row] = []
    tests = import_of_tests("slurm_cluster")
    with tests.SlurmCluster(_NODES, _CPUS, settings=(tests.USUAL_PACE,)) as cluster:
        bench = _Bench(directory, runner, cluster)
        for count in size.numbers((20, 200), (2,)):
            rows += bench.compare(count, size.runs(1))
        if not (size.quick or size.jobs):
            rows += bench.alone(_MANY, size.runs(1))
    return rows


def _python() -> str:
    """An interpreter with both plugins, which both sides use."""
    if importlib.util.find_spec("snakemake_executor_plugin_slurm"):
        return sys.executable
    python = _ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(
            f"{python}: the Slurm plugin was expected; type: make environment-slurm"
        )
    return str(python)


class _Bench:
    def __init__(self, directory: Path, runner: Runner, cluster: Any) -> None:
        self._place = directory
        self._runner = runner
        self._cluster = cluster
        self._submissions: list[float] = []
        self._configuration = directory / "kochi.yaml"
        self._configuration.write_text(_CONFIGURATION)
        self._names: Iterator[str] = (f"q{number}" for number in itertools.count())

    def compare(self, count: int, runs: int) -> list[Row]:
        self._submissions = []
        slots = _NODES * _CPUS
        is_short = count <= _FEW
        values, ratios = alternate(
            runs,
            lambda: self._plugin(count, 100),
            lambda: self._cluster_profile(count),
            lambda: self._in_allocations(count),
            *([lambda: self._plugin(count, slots)] if is_short else []),
        )
        what = f"{count:,} one-line jobs, {slots} at a time"
        return [
            Row(f"{what}: Slurm plugin, 100 submitted", values[0], "s"),
            *(
                [Row(f"{what}: Slurm plugin, {slots} submitted", values[3], "s", ratios[3])]
                if is_short
                else []
            ),
            Row(
                f"{what}: kochi, --profile cluster",
                values[1],
                "s",
                ratios[1],
                _LIMIT_WITH_ALLOCATIONS,
            ),
            Row("the same: calls to sbatch", self._submissions, "", None, _MOST_SUBMISSIONS),
            Row(f"{what}: kochi, in existing allocations", values[2], "s", ratios[2], _LIMIT),
        ]

    def alone(self, count: int, runs: int) -> list[Row]:
        self._submissions = []
        values, _ = alternate(
            runs, lambda: self._cluster_profile(count), lambda: self._in_allocations(count)
        )
        what = f"{count:,} one-line jobs, {_NODES * _CPUS} at a time"
        return [
            Row(f"{what}: kochi, --profile cluster", values[0], "s"),
            Row("the same: calls to sbatch", self._submissions, "", None, _MOST_SUBMISSIONS),
            Row(f"{what}: kochi, in existing allocations", values[1], "s"),
        ]

    def _plugin(self, count: int, submitted: int) -> float:
        return self._runner.time(
            SHELL,
            count,
            (
                *("--profile", str(PROFILE), "--executor", "slurm", "--jobs", str(submitted)),
                *("--slurm-status-command", "squeue"),
                *("--slurm-init-seconds-before-status-checks", "1"),
                *("--max-status-checks-per-second", "1000"),
                *("--default-resources", "slurm_account=none", "slurm_partition=main"),
            ),
            self._cluster.environment,
        )

    def _cluster_profile(self, count: int) -> float:
        before = len(self._cluster.calls("sbatch"))
        further = {
            **self._cluster.environment,
            "KOCHI_CONF": str(self._configuration),
            "KOCHI_DEFAULT_MACHINE": _MACHINE,
        }
        seconds = self._runner.time(SHELL, count, ("--profile", str(CLUSTER_PROFILE)), further)
        self._submissions.append(len(self._cluster.calls("sbatch")) - before)
        return seconds

    def _in_allocations(self, count: int) -> float:
        queue = next(self._names)
        work = (self._runner.python, "-m", "snakemake_kochi.cli", "work", "--queue", queue)
        command = shlex.join([*work, "--blocking", "--cores", str(_CPUS)])
        options = (f"--cpus-per-task={_CPUS}", f"--output={self._place}/worker-%j.log")
        for _ in range(_NODES):
            self._cluster.run(
                *("sbatch", *options, "--wrap", command),
                cwd=self._place,
                environment=self._runner.environment(self._cluster.environment),
            )
        self._wait_for_workers(queue)
        arguments = ("--profile", str(PROFILE), "--kochi-queue", queue)
        seconds = self._runner.time(SHELL, count, arguments, self._cluster.environment)
        self._cluster.cancel_jobs()
        return seconds

    def _wait_for_workers(self, queue: str) -> None:
        wait_until(lambda: len(shared_workers(self._runner.machine, queue)) >= _NODES, 0.1)
