"""Whole runs over two nodes that die: on GlusterFS, and on FUSE where flock stays on its node."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.node_chaos import Node, Project, run_node_chaos
from faulty_filesystem import FaultyFilesystem
from gluster import GlusterVolume
from hosts import Host
from support import wait_until

# Filesystems, and the kind of locks that is used there. On FUSE flock does not exclude both nodes.
GLUSTERFS = ("GlusterFS", "flock")
FUSE = ("FUSE", "lease")
NO_LOCK = ("FUSE", "flock")


@dataclass(frozen=True)
class Shared:
    """Where two nodes see one directory, and the kind of their locks."""

    mounts: dict[str, Path]
    lock_kind: str


@pytest.fixture(scope="module")
def filesystem(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], dict[str, Path]]]:
    """The mounts of a filesystem, which all tests share."""
    nodes = ("node1", "node2")
    with contextlib.ExitStack() as stack:

        @functools.cache
        def mounts(name: str) -> dict[str, Path]:
            if name == "GlusterFS":
                volume = stack.enter_context(GlusterVolume())
                return {node: volume.mount(node) for node in nodes}
            top = tmp_path_factory.mktemp("fuse")
            made = (FaultyFilesystem(top / "backing", top / node) for node in nodes)
            return {
                node: stack.enter_context(each).path for node, each in zip(nodes, made, strict=True)
            }

        yield mounts


@pytest.fixture
def shared(
    request: pytest.FixtureRequest, filesystem: Callable[[str], dict[str, Path]], tmp_path: Path
) -> Shared:
    """A new directory of the filesystem."""
    name, lock_kind = request.param
    places = {node: mount / tmp_path.name for node, mount in filesystem(name).items()}
    places["node1"].mkdir()
    return Shared(places, lock_kind)


@contextlib.contextmanager
def two_nodes(shared: Shared, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    place = tmp_path / "shared"
    place.mkdir()
    with Host("node1", tmp_path) as first, Host("node2", tmp_path) as second:
        yield (
            Node(first, shared.mounts["node1"], place),
            Node(second, shared.mounts["node2"], place),
        )


@pytest.mark.parametrize(
    ("shared", "jobs"),
    [
        pytest.param(GLUSTERFS, 60, id="GlusterFS"),
        pytest.param(FUSE, 60, id="FUSE"),
        pytest.param(NO_LOCK, 30, id="rename and link alone"),
    ],
    indirect=["shared"],
)
def test_jobs_on_two_nodes_of_which_one_dies_are_done_once_each(
    shared: Shared, jobs: int, tmp_path: Path
) -> None:
    outcome = run_node_chaos(shared.mounts, tmp_path, jobs=jobs, lock_kind=shared.lock_kind)
    print(outcome)
    assert outcome.problems == ()


def doctor(shared: Shared, node: Node) -> tuple[int, str]:
    """What `kochi doctor -q q` says on a node, with a worker on another one."""
    queue = shared.mounts["node1"] / "root/machines/local/queues/q"
    marks = "serving.*"
    wait_until(lambda: any(queue.glob(marks)), "the worker")
    examined = node.start("snakemake_kochi.cli", "doctor", "-q", "q")
    return examined.wait(300), examined.said


@pytest.mark.parametrize("shared", [GLUSTERFS, FUSE], ids=["GlusterFS", "FUSE"], indirect=True)
def test_doctor_finds_both_fit_and_a_run_on_the_other_node_takes_over_what_a_lost_node_left(
    shared: Shared, tmp_path: Path
) -> None:
    project = Project(
        shared.mounts["node1"] / "project", jobs=12, seconds=2.0, lock_kind=shared.lock_kind
    )
    with two_nodes(shared, tmp_path) as (node1, node2):
        node2.start_worker()
        status, said = doctor(shared, node1)
        assert status == 0, said
        assert f"{shared.lock_kind}: node2 and this node keep each other out" in said
        assert "by node2: always there and whole" in said
        assert "a file and the answer to it took" in said
        assert "by node2, each once" in said

        before = node1.start_run()
        wait_until(lambda: project.done() >= 3 or not before.is_running, seconds=120)
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


@pytest.mark.parametrize("shared", [NO_LOCK], ids=["FUSE"], indirect=True)
def test_doctor_finds_that_flock_does_not_reach_the_other_node(
    shared: Shared, tmp_path: Path
) -> None:
    Project(shared.mounts["node1"] / "project", jobs=1, lock_kind=shared.lock_kind)
    with two_nodes(shared, tmp_path) as (node1, node2):
        node2.start_worker()
        status, said = doctor(shared, node1)
    assert status == 1, said
    assert "flock: node2 got it while this node held it and this node got it" in said
    assert "lock_kind: lease" in said
