"""`kochi doctor --allocations`: the nodes of a real Slurm, each a host of its own, examined."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_project import ClusterProject
from slurm_cluster import APART, SlurmCluster
from support import open_runs, wait_until

from snakemake_kochi.files import make_directory

COMMAND = (sys.executable, "-m", "snakemake_kochi.cli", "doctor", "--allocations")
# Makes a file system in which node2 has its own copy of each file that is opened for writing.
OWN_COPIES = 'mount -t tmpfs none /mnt && mkdir /mnt/upper /mnt/work && mount -t overlay none "$0" '
OWN_COPIES += '-o "lowerdir=$0,upperdir=/mnt/upper,workdir=/mnt/work"'


SLURM = APART


@pytest.fixture
def one_node(cluster: SlurmCluster) -> Iterator[None]:
    """The other node takes no jobs."""
    cluster.run("scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=test")
    yield
    cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    cluster.wait_for_state("idle", "node2")


class Doctor:
    """The output of `kochi doctor` for the machine of a project, on the login node."""

    def __init__(self, project: ClusterProject, *arguments: str) -> None:
        self.project = project
        self._errors = project.directory / "errors"
        environment = {**project.cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, "--json", *arguments],
                cwd=project.directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @property
    def remarks(self) -> str:
        return self._errors.read_text()

    def wait_for_test(self) -> None:
        """Wait until another node has answered."""
        machine = self.project.machine.directory
        # Directories come and go meanwhile; `walk` goes on with the others.
        wait_until(lambda: any("hello.json" in files for _, _, files in os.walk(machine)))

    def end(self) -> dict[str, dict[str, str]]:
        """The findings at its end, the last of each check."""
        out, _ = self.process.communicate(timeout=100)
        print(out, self.remarks)
        return {finding["check"]: finding for finding in json.loads(out)["checks"]}

    def assert_nothing_is_left(self) -> None:
        assert self.project.cluster.jobs() == {}
        machine = self.project.machine
        assert list(machine.directory.rglob(".trial-*")) == []
        for directory in (machine.allocations, machine.queues):
            assert list(directory.glob("*")) == []
        assert open_runs(machine.directory) == []
        assert set(self.project.states()) <= {"left"}


def test_two_nodes_are_requested_and_tested_with_each_other(
    project: ClusterProject,
) -> None:
    doctor = Doctor(project)
    measured = {check: finding["measured"] for check, finding in doctor.end().items()}
    assert doctor.process.returncode == 0
    assert measured["lock between nodes"] == "flock: node1 and this node keep each other out"
    assert measured["lock between compute nodes"] == "flock: node2 and node1 keep each other out"
    clock = measured["clock between compute nodes"]
    assert clock.startswith("the clock of node2 agrees with node1's")
    for pair, host in (("nodes", "node1"), ("compute nodes", "node2")):
        assert measured[f"between {pair}"] == f"a worker on {host} answers"
        assert "there and back" in measured[f"visibility between {pair}"]
        assert f"by {host}: always there and whole" in measured[f"rename between {pair}"]
    doctor.assert_nothing_is_left()
    assert project.machine.tested.exists()
    assert project.states() == ["left", "left"]


def test_locks_that_do_not_reach_another_compute_node_are_a_failure(
    project: ClusterProject,
) -> None:
    locks = project.machine.locks.directory
    make_directory(locks)
    project.cluster.run_on("node2", "bash", "-c", OWN_COPIES, str(locks))
    try:
        doctor = Doctor(project)
        found = doctor.end()
    finally:
        project.cluster.run_on("node2", "umount", str(locks), "/mnt")
    assert doctor.process.returncode == 1
    assert found["lock between nodes"]["verdict"] == "ok"
    lock = found["lock between compute nodes"]
    assert (lock["verdict"], lock["measured"]) == (
        "failed",
        "flock: node2 got it while node1 held it and node1 got it while node2 held it",
    )
    assert "lock_dir" in lock["advice"]
    assert f"rm {project.machine.lock_settings}" in lock["advice"]
    # Only locks: other files are visible there.
    assert found["rename between compute nodes"]["verdict"] == "ok"
    assert not project.machine.tested.exists()
    doctor.assert_nothing_is_left()


def test_a_worker_that_cannot_start_is_a_failure(project: ClusterProject) -> None:
    file = project.directory / "kochi.yaml"
    script = '{load_env_script: {on_machine: "echo no such module; exit 3"}, scheduler'
    file.write_text(file.read_text().replace("{scheduler", script))
    doctor = Doctor(project)
    between = doctor.end()["between nodes"]
    assert doctor.process.returncode == 1
    assert between["verdict"] == "failed"
    assert "ended before its worker started: " in between["measured"]
    assert "no such module" in between["measured"]
    log = Path(between["advice"].removeprefix("Its log is ").rstrip("."))
    assert "no such module" in log.read_text()
    log.unlink()
    doctor.assert_nothing_is_left()


def test_the_doctor_waits_for_a_busy_node_and_reports_slurms_reason(
    project: ClusterProject, one_node: None
) -> None:
    doctor = Doctor(project, "--wait", "15s")
    found = doctor.end()
    assert doctor.process.returncode == 0
    assert found["lock between nodes"]["verdict"] == "ok"
    compute = found["between compute nodes"]
    assert compute["verdict"] == "warning"
    assert compute["measured"].startswith("not tested: no worker started in allocation ")
    reason = compute["measured"].rpartition(" 15 seconds: ")[2]
    assert "ReqNodeNotAvail" in reason
    assert f" waits: {reason}" in doctor.remarks
    doctor.assert_nothing_is_left()


def test_a_partition_of_one_node_is_reported_to_have_no_second_one(project: ClusterProject) -> None:
    project.configure(partition="single")
    doctor = Doctor(project)
    found = doctor.end()
    assert doctor.process.returncode == 0
    assert found["lock between nodes"]["verdict"] == "ok"
    compute = found["between compute nodes"]
    assert compute["verdict"] == "warning"
    assert compute["measured"].startswith("not tested, without a second node: ")
    doctor.assert_nothing_is_left()


def test_pending_and_running_allocations_are_cancelled_on_sigterm(
    project: ClusterProject, one_node: None
) -> None:
    doctor = Doctor(project)
    wait_until(lambda: sorted(project.cluster.jobs().values()) == ["PENDING", "RUNNING"])
    doctor.process.terminate()
    doctor.process.communicate(timeout=60)
    assert doctor.process.returncode == 128 + signal.SIGTERM
    doctor.assert_nothing_is_left()


def test_ctrl_c_in_the_middle_of_a_test_leaves_nothing(project: ClusterProject) -> None:
    doctor = Doctor(project)
    doctor.wait_for_test()
    doctor.process.send_signal(signal.SIGINT)
    doctor.process.communicate(timeout=60)
    assert doctor.process.returncode == 130
    doctor.assert_nothing_is_left()


def test_the_workers_of_a_killed_doctor_leave_by_themselves(project: ClusterProject) -> None:
    doctor = Doctor(project, "--wait", "15s")
    doctor.wait_for_test()
    doctor.process.kill()
    doctor.process.communicate(timeout=60)
    assert project.cluster.jobs()
    wait_until(lambda: project.cluster.jobs() == {})
    assert set(project.states()) == {"left"}
