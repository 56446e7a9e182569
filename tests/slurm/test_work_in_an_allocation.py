"""Workers that a user starts inside jobs of a real Slurm."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from seen import list_jobs, list_workers
from slurm_cluster import SlurmCluster
from support import wait_until, write

from snakemake_kochi.paths import MachinePaths, Root

SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(3))

    rule job:
        output: "out/{i}"
        shell: "echo $SLURM_JOB_ID $SLURMD_NODENAME > {output}"
"""


@pytest.fixture
def machine(isolated_environment: Path) -> MachinePaths:
    return Root(isolated_environment).machine("own")  # the name of the cluster


def test_jobs_of_a_run_are_executed_by_a_worker_inside_an_allocation(
    cluster: SlurmCluster, machine: MachinePaths, snakemake, tmp_path: Path
) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "q", "--blocking")
    allocation = cluster.run(
        *("sbatch", "--parsable", "--time=10", "--nodelist=node2", "--cpus-per-task=2"),
        *(f"--output={tmp_path}/worker.log", "--wrap", shlex.join([*work, "--cores", "2"])),
        cwd=tmp_path,
    )
    done = snakemake(
        *("--executor", "kochi", "--kochi-queue", "q", "--jobs", "3"),
        cwd=tmp_path,
        env=cluster.environment,
    )
    assert done.returncode == 0
    outputs = [(tmp_path / "out" / str(number)).read_text() for number in range(3)]
    assert outputs == [f"{allocation} node2\n"] * 3
    results = [view.result for view in list_jobs(machine, ended=True)]
    assert [result and result.reason for result in results] == ["success"] * 3

    # It stays for other runs, and leaves properly when its allocation is cancelled.
    assert [worker.state for worker in list_workers(machine)] == ["running"]
    cluster.cancel_jobs()
    wait_until(lambda: [worker.state for worker in list_workers(machine)] == ["left"])


def test_each_worker_of_an_array_knows_its_remaining_time(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    code = (
        "import os; from snakemake_kochi.worker.walltime import find_walltime; "
        "print(find_walltime(None, os.environ, 5.0).seconds_left())"
    )
    # None has left when the others ask.
    command = f"{shlex.join([sys.executable, '-c', code])} && sleep 60"
    cluster.run(
        *("sbatch", "--array=1-3", "--time=10", "--ntasks=1", f"--output={tmp_path}/said-%a"),
        *("--wrap", command),
        cwd=tmp_path,
    )

    def said() -> list[str]:
        return [path.read_text() for path in tmp_path.glob("said-*")]

    wait_until(lambda: len(said()) == 3 and all(said()))
    assert all(0 < float(seconds) < 600 for seconds in said()), said()
