"""A run in allocations that is resumed from another login node."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_project import PROFILE, ClusterProject
from hosts import Host
from slurm_cluster import APART
from support import open_runs, wait_until

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
    assert open_runs(project.machine.directory) == []
