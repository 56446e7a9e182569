"""A worker that a person releases, and what a worker in an allocation sees of its controller."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.next.worker.walltime import Walltime
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import Node, ProcessIdentity
from snakemake_kochi.queue import (
    Capacity,
    Queue,
    Ticket,
    WorkerState,
    allocate_ids,
    find_worker,
    order_release,
)
from snakemake_kochi.queue.result import has_result
from snakemake_kochi.worker.orders import ControllerWatch, Orders, Surroundings
from snakemake_kochi.worker.own_directory import OwnDirectory
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
    """A controller on another host with a heartbeat of a second; a worker looks each second."""

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


def test_a_controller_whose_file_stands_still_is_doubted_then_dead_and_alive_at_the_next_beat(
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
def test_a_controller_that_this_worker_does_not_watch_is_not_presumed_dead(
    controller: Controller, more: dict[str, object]
) -> None:
    controller.beat(**more)
    if not more:
        worker = replace(WORKER, allocation=None)
        controller.watch = ControllerWatch(controller.machine, worker, lambda: controller.now)
    controller.pass_seconds(100)
    assert controller.seen == (False, False)


def test_a_controller_that_left_is_dead_at_once(controller: Controller) -> None:
    controller.beat(left=True)
    controller.pass_seconds(1)
    assert controller.seen == (True, False)


def test_a_controller_that_ended_normally_was_not_killed(controller: Controller) -> None:
    controller.pass_seconds(20)
    assert controller.seen == (True, False)
    controller.machine.controller("c").state.unlink()
    controller.pass_seconds(1)
    assert controller.seen == (False, False)


def test_a_filesystem_without_an_answer_says_nothing_about_the_controller(tmp_path: Path) -> None:
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


def test_waiting_allocations_are_cancelled_only_if_the_controller_is_dead_and_no_job_waits(
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


def test_an_idle_worker_stays_until_it_knows_whether_its_controller_is_dead(
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


# ---- release


def test_a_released_worker_claims_no_more_jobs_and_leaves_when_its_own_have_ended(site):
    worker = site.start(stay=True)
    site.submit("echo there > first; while [ ! -e go-on ]; do sleep 0.1; done; echo done")
    site.wait_for("first")
    order_release(site.machine, 0, "finish")
    site.wait_until(lambda: find_worker(site.machine, 0).state == "finishing")
    site.submit("true")
    (site.directory / "go-on").touch()
    assert worker.wait() == 0
    assert site.job(0).result.ok
    assert site.log(0) == "done\n"
    assert site.job(1).state == "waiting"
    left = find_worker(site.machine, 0)
    assert (left.state, left.reason) == ("left", "released by kochi release")


def test_a_worker_released_at_once_requeues_its_jobs_even_after_an_order_to_finish_them(site):
    worker = site.start(stay=True)
    site.submit("echo there > first; sleep 1000")
    site.wait_for("first")
    order_release(site.machine, 0, "finish")
    site.wait_until(lambda: find_worker(site.machine, 0).state == "finishing")
    order_release(site.machine, 0, "now")
    assert worker.wait() == 0
    assert (site.job(0).state, site.job(0).attempt) == ("waiting", 2)
    assert find_worker(site.machine, 0).state == "left"


def test_a_worker_on_another_node_finds_the_order_in_a_file(site):
    worker = site.start_elsewhere(stay=True, idle_wait=0.2)
    site.wait_until(lambda: site.machine.worker(0).state.exists())
    # No notification reaches a worker on another node.
    site.machine.worker(0).wakeup.unlink(missing_ok=True)
    order_release(site.machine, 0, "finish")
    assert worker.wait() == 0
    assert find_worker(site.machine, 0).reason == "released by kochi release"


def test_a_worker_that_was_released_before_its_start_leaves_at_once(site):
    (number,) = allocate_ids(site.machine, "worker", 1)
    site.machine.worker(number).directory.mkdir(parents=True, mode=0o700)
    order_release(site.machine, number, "now")
    site.submit("true")
    assert site.start(stay=True, worker=number, queues=("q",)).wait() == 0
    assert site.job(0).state == "waiting"


def test_a_worker_whose_allocation_begins_again_gets_another_number(site):
    (number,) = allocate_ids(site.machine, "worker", 1)
    for _ in range(2):
        worker = site.start(worker=number, queues=("q",), allocation="12")
        assert worker.wait() == 0
    assert [find_worker(site.machine, each).state for each in range(2)] == ["left"] * 2


def test_an_order_to_cancel_and_a_result_are_seen_on_a_node_that_has_cached_their_absence(
    tmp_path: Path,
) -> None:
    # A client of NFS does so for up to a minute.
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "there", cache_seconds=600) as there:
        machine = Root(there.path / "root").machine("local")
        surroundings = Surroundings({}, None, Walltime(None, 0.0))
        orders = Orders(machine, 0, OwnDirectory(machine.worker(0)), surroundings)
        cancelled, ended = machine.job(7), machine.job(8)
        for paths in (cancelled, ended):
            make_directory(paths.directory)
        assert orders.cancelled([7]) == set() and not has_result(ended)
        for file in (cancelled.cancel, ended.result):
            assert not file.exists()
            (tmp_path / "backing" / file.relative_to(there.path)).touch()
            assert not file.exists(), "its absence is cached"
        assert orders.cancelled([7]) == {7}
        assert has_result(ended)
