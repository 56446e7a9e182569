"""What a worker in an allocation sees of its controller."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import Node, ProcessIdentity
from snakemake_kochi.queue import Capacity, Queue, Ticket, WorkerState, find_worker
from snakemake_kochi.worker.orders import ControllerWatch
from tests.worker.conftest import Site

LOGIN = Node("login", "machine", "boot", "pid:[1]")
WORKER = WorkerState(
    worker=1,
    state="running",
    process=ProcessIdentity(1, 1),
    node=LOGIN,
    queues=("q",),
    capacity=Capacity(1, 0),
    started="2026-01-01T00:00:00+00:00",
    updated="2026-01-01T00:00:00+00:00",
    controller="c",
    allocation="7",
)


class Controller:
    """On another host, with a heartbeat of a second, watched each second."""

    def __init__(self, machine: MachinePaths) -> None:
        self.machine = machine
        self.now = 1000.0
        self.beats = 0
        self.watch = ControllerWatch(machine, WORKER, lambda: self.now)
        self.beat()

    def beat(self, **more: object) -> None:
        self.beats += 1
        path = self.machine.controller("c").state
        make_directory(path.parent)
        state = {"version": 1, "node": vars(LOGIN), "process": vars(ProcessIdentity(5, 5))}
        state |= {"heartbeat": self.beats, "heartbeat_interval": 1.0, "queues": ["q"], **more}
        write_atomically(path, to_json(state))

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.watch.look()

    @property
    def seen(self) -> tuple[bool, bool]:
        return self.watch.is_dead, self.watch.is_in_doubt


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(Root(tmp_path).machine("own"))


def test_one_whose_file_stands_still_is_doubted_then_dead_and_alive_when_it_beats(
    controller: Controller,
) -> None:
    assert controller.seen == (False, False)
    controller.pass_seconds(2)
    assert controller.seen == (False, False)
    controller.pass_seconds(6)
    assert controller.seen == (False, True)
    controller.pass_seconds(6)
    assert controller.seen == (True, False)
    controller.beat()
    controller.pass_seconds(1)
    assert controller.seen == (False, False)


@pytest.mark.parametrize("more", [{"heartbeat": None}, {}])
def test_one_that_gives_no_sign_at_all_and_of_which_no_allocation_knows_is_not_taken_for_dead(
    controller: Controller, more: dict[str, object]
) -> None:
    controller.beat(**more)
    if not more:
        worker = replace(WORKER, allocation=None)
        controller.watch = ControllerWatch(controller.machine, worker, lambda: controller.now)
    controller.pass_seconds(100)
    assert controller.seen == (False, False)


def test_one_that_left_is_dead_at_once(controller: Controller) -> None:
    controller.beat(left=True)
    controller.pass_seconds(1)
    assert controller.seen == (True, False)


def test_one_that_ended_in_good_order_was_not_killed(controller: Controller) -> None:
    controller.pass_seconds(20)
    assert controller.seen == (True, False)
    controller.machine.controller("c").state.unlink()
    controller.pass_seconds(1)
    assert controller.seen == (False, False)


def test_a_filesystem_that_does_not_answer_is_no_silence(tmp_path: Path) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        controller = Controller(Root(filesystem.path).machine("own"))
        controller.pass_seconds(1)
        with filesystem.fault("open", errno.EIO, "*/controller.json") as fault:
            controller.pass_seconds(100)
            assert filesystem.count(fault)
        controller.pass_seconds(1)
        assert controller.seen == (False, True)  # no more is counted than is seen
        controller.beat()
        controller.pass_seconds(1)
        assert controller.seen == (False, False)


def test_what_waits_is_cancelled_only_for_one_that_is_dead_and_for_whom_no_job_waits(
    controller: Controller, tmp_path: Path
) -> None:
    command = ("touch", str(tmp_path / "cancelled"))
    Queue(controller.machine, "q").submit([Ticket("x", ("x",), "/", controller="c")])
    controller.pass_seconds(8)
    controller.watch.cancel_waiting(command)
    controller.pass_seconds(8)
    controller.watch.cancel_waiting(command)
    assert not (tmp_path / "cancelled").exists()
    for path in controller.machine.queue("q").waiting.glob("*/*"):
        path.unlink()
    controller.watch.cancel_waiting(("no-such-program",))
    controller.watch.cancel_waiting(command)
    assert (tmp_path / "cancelled").exists()


def test_a_worker_that_has_waited_long_enough_waits_until_it_knows_whether_others_are_of_use(
    site: Site,
) -> None:
    Controller(site.machine)
    cancel = ("touch", str(site.directory / "cancelled"))
    worker = site.start(
        controller="c",
        allocation="7",
        cores=1,
        idle_wait=0.1,
        stay=True,
        idle_timeout=8,
        cancel_waiting=cancel,
    )
    assert worker.wait(60) == 0
    assert find_worker(site.machine, 0).reason == (
        "the run that started it was killed, and it has no job"
    )
    assert (site.directory / "cancelled").exists()
