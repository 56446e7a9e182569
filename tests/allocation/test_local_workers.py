"""The workers of a run: their number, and when the run stops starting more."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi import files
from snakemake_kochi.allocation.local_workers import LocalWorkers
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue import Capacity, Resources, WorkerState
from snakemake_kochi.queue.entries import worker_numbers
from snakemake_kochi.queue.wakeup import read_queues, subscribe
from snakemake_kochi.worker.node.capacity import capacity_of_this_node, gpus_of_this_node

PENDING = {"a": []}


class Started(list["subprocess.Popen[bytes]"]):
    """Stands for workers: processes that wait, in the order of their start."""

    command: tuple[str, ...] = ("sleep", "1000")

    def hook(self) -> None:
        """Called at each start."""

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        self.hook()
        self.append(subprocess.Popen(self.command, **options))
        return self[-1]

    def kill_last(self) -> None:
        self[-1].kill()
        self[-1].wait()


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    yield made
    for process in made:
        process.kill()
        process.wait()


def make(tmp_path: Path, started: Started, **how: Any) -> LocalWorkers:
    root = Root(tmp_path)
    logger: Any = logging.getLogger("test")
    return LocalWorkers(root, root.machine("local"), "me", 1, 1, logger, popen=started.start, **how)


def note_worker(machine: MachinePaths, node: Node) -> WorkerState:
    """A worker of the user that serves queue a."""
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    state = WorkerState(7, "running", process, node, ("a",), Capacity(1, 1), "", "")
    files.make_directory(machine.worker(7).directory)
    machine.worker(7).state.write_bytes(files.to_json(state.to_dict()))
    subscribe(machine.queue("a"), 7)
    return state


def test_a_job_gets_no_more_cores_and_memory_than_its_worker_has(
    tmp_path: Path, started: Started
) -> None:
    workers = make(tmp_path, started)
    most = capacity_of_this_node(1, gpus=0)
    wanted = Resources(cores=8, memory_mb=most.memory_mb + 1, runtime_seconds=5)
    assert workers.fit("one", wanted) == Resources(
        cores=1, memory_mb=most.memory_mb, runtime_seconds=5
    )
    assert workers.fit("one", Resources()) == Resources()


def test_gpus_that_its_worker_lacks_are_refused_with_the_rules_name(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = make(tmp_path, started)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    gpus_of_this_node.cache_clear()
    try:
        assert workers.fit("one", Resources(gpus=2)).gpus == 2
        with pytest.raises(KochiError, match=r"rule one, resource gpu: 3 GPUs needed.* has 2"):
            workers.fit("one", Resources(gpus=3))
    finally:
        gpus_of_this_node.cache_clear()


def test_only_deaths_in_a_row_count(tmp_path: Path, started: Started) -> None:
    workers = make(tmp_path, started)
    workers.serve(["a"])
    for _ in range(5):
        started.kill_last()
        workers.look_after(PENDING)
        workers.job_ended(len(started) - 1)
    assert len(started) == 6
    for _ in range(3):
        started.kill_last()
        workers.look_after(PENDING)
        workers.job_ended(1000)  # of another run's worker, which proves nothing
    started.kill_last()
    said = r"4 in a row without an ended job\. The last one, worker 8, .*wrote no log"
    with pytest.raises(WorkerError, match=said):
        workers.look_after(PENDING)
    assert len(started) == 9


def test_a_queue_added_while_a_worker_is_replaced_starts_no_second_one(
    tmp_path: Path, started: Started
) -> None:
    workers = make(tmp_path, started)
    workers.serve(["a"])
    scheduler = threading.Thread(target=workers.serve, args=(["b"],))

    def another_thread_asks() -> None:
        if scheduler.ident is None:
            scheduler.start()
            scheduler.join(0.5)

    started.kill_last()
    started.hook = another_thread_asks  # type: ignore[method-assign]
    workers.look_after(PENDING)
    scheduler.join()
    assert len(started) == 2
    assert read_queues(Root(tmp_path).machine("local"), 1) == ("a", "b")
    workers.stop()
    assert [process.poll() is None for process in started] == [False, False]


def test_a_worker_that_does_not_leave_is_killed(tmp_path: Path, started: Started) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
    started.command = ("sh", "-c", script)
    workers = make(tmp_path, started, grace=0.1)
    workers.serve(["a"])
    while not ready.exists():
        time.sleep(0.01)
    workers.stop()
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO])
@pytest.mark.parametrize(
    ("call", "path"), [("readdir", "*/subscribers"), ("rename", "*/queues.json")]
)
def test_filesystem_faults_are_reported_once_and_the_work_is_done_later(
    tmp_path: Path,
    started: Started,
    caplog: pytest.LogCaptureFixture,
    call: str,
    path: str,
    error: int,
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        workers = make(filesystem.path, started, look=0.0)
        machine = Root(filesystem.path).machine("local")
        machine.queue("a").make()
        with filesystem.fault(call, error, path) as fault:
            workers.serve(["a"])
            workers.look_after(PENDING)
            assert workers.will_serve("a")
            assert not started
            assert filesystem.count(fault) >= 2
        workers.look_after(PENDING)
        workers.look_after(PENDING)
        assert len(started) == 1
        assert read_queues(machine, max(worker_numbers(machine))) == ("a",)
        workers.stop()
    assert caplog.text.count("cannot check its own workers at the moment") == 1


def test_a_queue_left_to_another_worker_stays_so_while_its_state_is_unknown(
    tmp_path: Path, started: Started
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        machine = Root(filesystem.path).machine("local")
        note_worker(machine, this_node())
        workers = make(filesystem.path, started, look=0.0)
        workers.serve(["a"])
        with filesystem.fault("readdir", errno.EIO, "*/subscribers"):
            workers.look_after(PENDING)
            assert not workers.will_serve("a")
        assert not started


def test_a_queue_served_by_a_worker_on_another_node_is_left_to_it(
    tmp_path: Path, started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    workers = make(tmp_path, started)
    machine = Root(tmp_path).machine("local")
    state = note_worker(machine, Node("elsewhere", "some-id", "some-boot", "pid:[1]"))
    assert not workers.will_serve("a")
    workers.serve(["a"])
    assert started == []
    assert "This run leaves queue a to worker 7, which serves it on elsewhere." in caplog.text
    machine.worker(7).state.write_bytes(files.to_json(replace(state, state="left").to_dict()))
    assert workers.will_serve("a")
