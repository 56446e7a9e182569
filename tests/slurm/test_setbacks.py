"""Allocations of a real Slurm that end before a worker starts: bad nodes, and users who cancel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_project import ClusterProject
from slurm_cluster import APART, SlurmCluster
from support import wait_until, write

SLURM = APART


@pytest.fixture
def blind_node(cluster: SlurmCluster, isolated_environment: Path) -> Iterator[str]:
    """A node that does not have the filesystem of KOCHI_ROOT."""
    home = str(isolated_environment.parent)
    cluster.run_on("node1", "mount", "-t", "tmpfs", "none", home)
    yield "node1"
    cluster.run_on("node1", "umount", home)


def submissions(cluster: SlurmCluster) -> list[str]:
    return [call for call in cluster.calls("sbatch") if "kochi-" in call]


def test_a_node_on_which_no_worker_starts_is_avoided_and_named_and_the_run_goes_on(
    project: ClusterProject, blind_node: str
) -> None:
    before = len(submissions(project.cluster))
    project.go()
    project.start()
    project.end_well()
    assert set(project.lines("done")) == {"0", "1"}
    assert f"This run avoids node {blind_node} for a day: 2 allocations ended" in project.said
    *first, last = submissions(project.cluster)[before:]
    assert [f"--exclude={blind_node}" in call for call in (*first, last)] == [False, False, True]
    # No missing log is named.
    assert project.said.count("it wrote no log") == 2
    assert "its log is" not in project.said


def test_a_run_goes_on_with_fewer_workers_if_the_user_cancels_pending_allocations(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=5, cores=2, idle_timeout="30s")
    project.write_jobs(10)
    project.start()
    project.wait_for_beginnings(4)
    wait_until(lambda: "PENDING" in project.cluster.jobs().values())
    before = len(submissions(project.cluster))
    name = re.findall(r"--job-name=(\S+)", submissions(project.cluster)[-1])[-1]
    project.cluster.run("scancel", "--state=PENDING", f"--name={name}")
    wait_until(lambda: "Cancelled before a worker started" in project.said)
    project.go()
    project.end_well()
    assert set(project.lines("done")) == set(map(str, range(10)))
    assert len(submissions(project.cluster)) == before
    assert re.search(
        r"fewer workers\. If jobs still wait, it requests more in \d\d s\.", project.said
    )
    assert project.said.count("Cancelled before a worker started") == 1
    assert project.cluster.jobs() == {}


def test_if_no_worker_starts_on_any_node_the_run_ends_and_names_an_existing_log(
    project: ClusterProject,
) -> None:
    text = """
        machines:
          own:
            scheduler: slurm
            load_env_script: {on_machine: "echo no such module; exit 3"}
            allocation: {max_workers: 1}
    """
    write(project.directory / "kochi.yaml", text)
    run = project.start()
    assert run.wait(200) == 1
    assert "the log ends with: no such module, each time" in project.said
    assert "Avoided: node1 and node2" in project.said
    logs = re.findall(r"The last one is \S+ on node \S+ \(\w+\); its log is (\S+)\. ", project.said)
    [log] = map(Path, logs)
    assert log.read_text().splitlines()[1:] == ["no such module"]
    assert "Traceback" not in project.said
    assert project.cluster.jobs() == {}
