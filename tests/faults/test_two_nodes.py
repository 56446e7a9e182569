"""Whole runs over two nodes that die: on GlusterFS, and on FUSE where flock stays on its node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.node_chaos import Node, Project, run_node_chaos
from faulty_filesystem import FaultyFilesystem
from gluster import GlusterVolume
from hosts import Host
from support import wait_until


@dataclass(frozen=True)
class Shared:
    """Where two nodes see one filesystem, and the kind of locks that exclude both."""

    mounts: dict[str, Path]
    lock_kind: str


@contextlib.contextmanager
def glusterfs(tmp_path: Path) -> Iterator[Shared]:
    with GlusterVolume() as volume:
        yield Shared({name: volume.mount(name) for name in ("node1", "node2")}, "flock")


@contextlib.contextmanager
def fuse(tmp_path: Path, lock_kind: str = "lease") -> Iterator[Shared]:
    with (
        FaultyFilesystem(tmp_path / "backing", tmp_path / "node1") as first,
        FaultyFilesystem(tmp_path / "backing", tmp_path / "node2") as second,
    ):
        yield Shared({"node1": first.path, "node2": second.path}, lock_kind)


@pytest.fixture(params=[glusterfs, fuse], ids=["GlusterFS", "FUSE"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    with request.param(tmp_path) as found:
        yield found


@contextlib.contextmanager
def two_nodes(shared: Shared, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    place = tmp_path / "shared"
    place.mkdir()
    with Host("node1", tmp_path) as first, Host("node2", tmp_path) as second:
        yield (
            Node(first, shared.mounts["node1"], place),
            Node(second, shared.mounts["node2"], place),
        )


def test_jobs_on_two_nodes_of_which_one_dies_are_done_once_each(
    shared: Shared, tmp_path: Path
) -> None:
    outcome = run_node_chaos(shared.mounts, tmp_path, jobs=200, lock_kind=shared.lock_kind)
    print(outcome)
    assert outcome.problems == ()


def test_a_run_on_the_other_node_takes_over_what_a_lost_node_left(
    shared: Shared, tmp_path: Path
) -> None:
    project = Project(
        shared.mounts["node1"] / "project", jobs=24, seconds=1.0, lock_kind=shared.lock_kind
    )
    with two_nodes(shared, tmp_path) as (node1, node2):
        node2.start_worker()
        before = node1.start_run()
        wait_until(lambda: project.done() >= 4 or not before.is_running, seconds=120)
        assert before.is_running, before.said
        node1.lose()
        run = node2.start_run("--rerun-incomplete", "--nolock")
        assert run.wait(240) == 0, run.said
        assert "on node1" in run.said, "it waits until the heartbeat there has stood still"
    # No worker died: the new run waits for what runs, and repeats nothing that has ended. But
    # Snakemake touches an output before it records that the job has ended: the one at which it died
    # seems to have changed.
    assert project.problems(most_again=0, most_twice=1) == []
    assert set(project.begun().values()) == {1}


def doctor(shared: Shared, tmp_path: Path) -> tuple[int, str]:
    """What `kochi doctor -q q` says on the first node, with a worker on the second."""
    Project(shared.mounts["node1"] / "project", jobs=1, lock_kind=shared.lock_kind)
    subscribers = shared.mounts["node1"] / "root/machines/local/queues/q/subscribers"
    with two_nodes(shared, tmp_path) as (node1, node2):
        node2.start_worker()
        wait_until(lambda: subscribers.is_dir() and any(subscribers.iterdir()), "the worker")
        examined = node1.start("snakemake_kochi.cli", "doctor", "-q", "q")
        return examined.wait(300), examined.said


def test_doctor_finds_both_fit_for_queues_of_two_nodes(shared: Shared, tmp_path: Path) -> None:
    status, said = doctor(shared, tmp_path)
    assert status == 0, said
    assert f"{shared.lock_kind}: node2 and this node keep each other out" in said
    assert "a hard link does not replace a file; also between directories" in said
    assert "by node2: always there and whole" in said
    assert "a file and the answer to it took" in said
    (time,) = (line for line in said.splitlines() if "directory time between nodes" in line)
    assert "changed by a new name, and seen after" in time


def test_where_no_lock_excludes_rename_and_link_still_keep_jobs_apart(tmp_path: Path) -> None:
    with fuse(tmp_path, "flock") as shared:
        outcome = run_node_chaos(shared.mounts, tmp_path, jobs=100, lock_kind=shared.lock_kind)
    print(outcome)
    assert outcome.problems == ()


def test_doctor_finds_that_flock_does_not_reach_the_other_node(tmp_path: Path) -> None:
    with fuse(tmp_path, "flock") as shared:
        status, said = doctor(shared, tmp_path)
    assert status == 1, said
    assert "flock: node2 got it while this node held it and this node got it" in said
    assert "lock_kind: lease" in said
