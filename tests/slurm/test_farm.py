"""`kochi farm` on a Slurm without any configuration: on the login node, and in an allocation."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from support import Process, run, start, wait_until

FARM = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "farm")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return tmp_path


def nodes(directory: Path) -> list[str]:
    return [line.split()[1] for line in (directory / "done").read_text().splitlines()]


def test_tasks_run_in_allocations_that_the_farm_requests(cluster: SlurmCluster, here: Path) -> None:
    lines = [f"echo {n} $SLURM_JOB_ID >> done #: time=5" for n in range(20)]
    (here / "tasks").write_text("\n".join(lines))
    ran = run(*FARM, "tasks", "-j", "2", cwd=here, env={**cluster.environment})
    assert ran.returncode == 0
    assert "-j has no effect in allocations" in ran.stdout + (ran.stderr or "")
    assert len(nodes(here)) == 20
    assert all(number.isdecimal() for number in nodes(here))
    assert cluster.states() == {}
    assert "nothing" not in run(*FARM, "tasks", cwd=here, env={**cluster.environment}).stdout
    assert len(nodes(here)) == 20


@pytest.mark.parametrize("when", ["it requests", "tasks run", "another one waits"])
def test_the_next_farm_takes_over_from_a_killed_one(
    cluster: SlurmCluster, here: Path, isolated_environment: Path, when: str
) -> None:
    def farm() -> Process:
        return start(*FARM, "tasks", cwd=here, env={**cluster.environment}, start_new_session=True)

    lines = [f"sleep 0.2; echo {n} $SLURM_JOB_ID >> done" for n in range(20)]
    (here / "tasks").write_text("\n".join(lines))
    first = farm()
    wait_until(cluster.states if when == "it requests" else (here / "done").exists)
    second = farm() if when == "another one waits" else None
    if second:
        wait_until(lambda: len(list(isolated_environment.glob("machines/*/runs/*/own"))) == 2)
    first.kill()
    first.wait()
    second = second or farm()
    said, _ = second.communicate(timeout=120)
    print(said)
    assert second.wait() == 0
    found = [line.split()[0] for line in (here / "done").read_text().splitlines()]
    assert sorted(map(int, found)) == [*range(20)]
    wait_until(lambda: not cluster.states())


def test_one_on_each_node_of_an_allocation_share_a_list(cluster: SlurmCluster, here: Path) -> None:
    (here / "tasks").write_text(
        "".join(f"sleep 0.3; echo {n} $SLURMD_NODENAME >> done\n" for n in range(24))
    )
    command = ["srun", "-N2", "-n2", "-c1", *FARM, "tasks", "-j", "1"]
    ran = run(*command, cwd=here, env={**cluster.environment})
    assert ran.returncode == 0
    found = [line.split()[0] for line in (here / "done").read_text().splitlines()]
    assert sorted(found, key=int) == [str(n) for n in range(24)]
    assert len({*nodes(here)}) == 2


# The batch script of PyTaskFarmer's documentation ("SLURM example", "Clean-up In Batch Jobs").
BATCH_SCRIPT = f"""#!/bin/bash
#SBATCH --ntasks=1 --output=out --open-mode=append --requeue --signal=B:USR1@10
function func_trap
{{
    kill -s USR1 $PROCPID
    wait $PROCPID
    scontrol requeue $SLURM_JOB_ID
}}
trap func_trap USR1
{shlex.join(FARM)} --proc 1 $1 &
export PROCPID=$!
wait $PROCPID
"""


def test_the_elements_of_an_array_share_a_list(cluster: SlurmCluster, here: Path) -> None:
    (here / "slurm_test.sh").write_text(BATCH_SCRIPT)
    lines = [f"sleep 0.5; echo {n} $SLURM_JOB_ID >> done\n" for n in range(20)]
    (here / "tasks").write_text("".join(lines))
    cluster.run("sbatch", "--wait", "--array=1-2", "slurm_test.sh", "tasks", timeout=150, cwd=here)
    numbers = [line.split()[0] for line in (here / "done").read_text().splitlines()]
    assert sorted(map(int, numbers)) == [*range(20)]
    assert len({*nodes(here)}) == 2
