"""A run in allocations that is resumed from another login node."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster_project import PROFILE, ClusterProject
from hosts import Host
from slurm_cluster import APART
from support import wait_until

SLURM = APART


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Host]:
    with Host("login2", tmp_path) as host:
        yield host


def test_a_run_on_another_login_node_waits_for_jobs_in_allocations(
    project: ClusterProject, other: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.5")
    project.configure(max_workers=2, idle_timeout="60s")
    project.write_jobs(6)
    run = project.start()
    project.wait_for_beginnings(4)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    command = (sys.executable, "-m", "snakemake", "--profile", str(PROFILE))
    environment = {**project.cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
    unlock = other.start(*command, "--unlock", cwd=project.directory, environment=environment)
    assert unlock.wait() == 0
    again = other.start(*command, cwd=project.directory, environment=environment)
    wait_until(
        lambda: again.said.count("still runs and is not started again") == 4 or not again.is_running
    )
    assert re.search(r"This run waits [67] s for a sign of life", again.said)
    project.go()
    assert again.wait(150) == 0, again.said
    assert all(len(began) == 1 for began in project.lines("began").values())
    assert set(project.lines("done")) == set(map(str, range(6)))
    assert list(project.machine.controllers.glob("*")) == []


def test_a_run_is_adopted_sooner_if_slurm_reports_the_end_of_its_own_allocation(
    project: ClusterProject, other: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "2")
    project.write_jobs(1)
    environment = {**project.cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
    command = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "2")
    here = (*command, "--kochi-where", "here")
    number = project.cluster.run(
        *("sbatch", "--parsable", f"--wrap=exec {shlex.join(here)}"),
        cwd=project.directory,
        environment={**os.environ, **environment},
    )
    wait_until(lambda: project.lines("began").get("0"))
    # All at once: otherwise the run would begin the job again whose worker scancel ends first.
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            variables = process.environ()
            # The Slurm of another test also counts its jobs from 1.
            of_job = variables.get("SLURM_JOB_ID") == number
            if of_job and variables.get("SLURM_CONF") == str(project.cluster.configuration):
                process.kill()
    wait_until(lambda: int(number) not in project.cluster.jobs())
    unlock = other.start(*command, "--unlock", cwd=project.directory, environment=environment)
    assert unlock.wait() == 0
    again = other.start(*here, cwd=project.directory, environment=environment)
    again.wait_for("This run waits 24 s for a sign of life")
    wait_until(lambda: "An earlier run in this directory was killed" in again.said, seconds=20)
    # Its worker died with it. This is not known yet: only its silence shows it.
    assert project.lines("began") == {"0": [number]}
