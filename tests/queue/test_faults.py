"""Files that cannot be written, read or trusted: the other tickets go on."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import result_of, waiting_file

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue import (
    Attempt,
    Capacity,
    Inbox,
    Observer,
    Queue,
    Ticket,
    WakeUp,
    WorkerState,
    cancel_all,
    recover,
    shared_workers,
)
from snakemake_kochi.queue.deliveries import jobs_read
from snakemake_kochi.queue.result import VERSION
from snakemake_kochi.queue.wakeup import subscribe

Make = Callable[..., Ticket]
ELSEWHERE = Node("elsewhere", "some-id", "some-boot", "pid:[1]")


def take(ticket: Ticket) -> Any:
    return "take"


def set_worker(machine: MachinePaths, number: int, **fields: Any) -> None:
    """Write a worker's file; by default of one that died on this node."""
    state = WorkerState(
        number, "running", ProcessIdentity(1, 1), this_node(), ("q",), Capacity(1, 1), "", ""
    )
    make_directory(machine.worker(number).directory)
    machine.worker(number).state.write_bytes(to_json(replace(state, **fields).to_dict()))


def write_attempt(machine: MachinePaths, worker: int, pid: int) -> None:
    """Write the first attempt of job 0, whose main process is a process of this node."""
    process = ProcessIdentity.of(pid)
    assert process is not None
    attempt = Attempt(0, 1, "n", worker, this_node(), process, started="")
    make_directory(machine.job(0).directory)
    machine.job(0).attempt(1).write_bytes(to_json(attempt.to_dict()))


class FullDisk:
    """While it is `full`, this process makes no file without `spared` in its path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, spared: str = "\0") -> None:
        self.full = True
        self._spared = spared
        self._open = os.open
        monkeypatch.setattr(os, "open", self.opened)

    def opened(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if self.full and flags & os.O_EXCL and self._spared not in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return self._open(path, flags, *arguments, **options)


@pytest.fixture
def queue(machine: MachinePaths) -> Queue:
    return Queue(machine, "q")


def test_a_ticket_of_the_dead_that_cannot_be_requeued_does_not_block_other_tickets(
    machine: MachinePaths,
    ticket: Make,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_worker(machine, 0)
    queue.submit([ticket("a"), ticket("b")])
    queue.claim(0, take)
    disk = FullDisk(monkeypatch)
    time = 1000.0
    observer = Observer(lambda: time)
    other = Queue(machine, "q", observer=observer)
    assert [claim.ticket.name for claim in other.claim(1, take)] == ["b"]
    for _ in range(3):
        time += 10
        assert other.recover() == []
    assert len([r for r in caplog.records if "is not requeued yet" in r.message]) == 1
    disk.full = False
    time += 10
    assert len(other.recover()) == 1
    assert [view.attempt for view in queue.waiting()] == [2]


@pytest.mark.parametrize("controller", [None, "c"])
def test_a_ticket_that_cannot_be_read_is_skipped_for_now_and_still_counts(
    machine: MachinePaths,
    ticket: Make,
    caplog: pytest.LogCaptureFixture,
    controller: str | None,
) -> None:
    submitted = Queue(machine, "q")
    submitted.submit([ticket(name, controller=controller) for name in "abc"])
    unreadable = waiting_file(submitted, 0)
    kept = unreadable.with_suffix(".kept")
    unreadable.rename(kept)
    unreadable.mkdir()  # EISDIR: neither damaged nor gone
    queue = Queue(machine, "q", controller)
    assert [claim.ticket.name for claim in queue.claim(1, take)] == ["b"]
    assert [claim.ticket.name for claim in queue.claim(1, take)] == ["c"]
    assert queue.claim(1, take) == []
    assert not queue.is_empty(), "a worker that leaves would leave it alone"
    assert len([r for r in caplog.records if "is skipped for now" in r.message]) == 1
    unreadable.rmdir()
    kept.rename(unreadable)
    assert [claim.ticket.name for claim in Queue(machine, "q", controller).claim(2, take)] == ["a"]


def test_a_damaged_ticket_that_cannot_be_set_aside_blocks_no_other(
    machine: MachinePaths, ticket: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit([ticket("a"), ticket("b")])
    machine.queue("q").waiting_ticket(0, 1).write_text("{")
    FullDisk(monkeypatch)
    assert [claim.ticket.name for claim in queue.claim(1, take)] == ["b"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KochiError("no")])
def test_a_worker_gets_the_claims_made_before_an_error(
    ticket: Make, queue: Queue, error: Exception
) -> None:
    queue.submit([ticket("a"), ticket("b")])

    def accept(ticket: Ticket) -> Any:
        if ticket.name == "b":
            raise error
        return "take"

    assert [claim.ticket.name for claim in queue.claim(1, accept, limit=2)] == ["a"]
    with pytest.raises(type(error)):
        queue.claim(1, accept, limit=2)


def test_a_rename_whose_answer_was_lost_is_a_claim(
    ticket: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit([ticket("a")])
    rename = os.rename

    def retransmitted(source: Path, target: Path) -> None:
        rename(source, target)
        if "running" in str(target):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "rename", retransmitted)
    (claim,) = queue.claim(1, take)
    assert queue.finish(claim, result_of(claim))


@pytest.mark.parametrize("number", [1, 3])  # a file or a directory is renamed
def test_a_submission_whose_answer_was_lost_is_made_once_though_the_client_shows_old_names(
    machine: MachinePaths, ticket: Make, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    queue = Queue(machine, "q")
    queue.submit([ticket("first")])
    rename, stat = os.rename, os.stat
    kept: dict[str, os.stat_result] = {}

    def renamed(source: Path, target: Path) -> None:
        if "/submissions/" in str(source) and not kept:
            kept[str(source)] = stat(source)
            rename(source, target)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    # As a client with attribute caches: the name that it knows is there to the last.
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "stat", lambda path, **more: kept.get(str(path)) or stat(path, **more))
    queue.submit([ticket(str(n)) for n in range(number)])
    assert kept
    monkeypatch.undo()
    assert len(queue.claim(1, take, limit=10)) == 1 + number


def test_a_delivery_that_cannot_be_read_is_a_failure(
    machine: MachinePaths, ticket: Make, queue: Queue
) -> None:
    inbox = Inbox.create(machine)
    queue.submit([ticket("a", controller=inbox.identity)])
    (claim,) = queue.claim(1, take)
    queue.finish(claim, result_of(claim))
    path = machine.job(0).result
    # Written in place: the delivery is the same file.
    newer = json.loads(path.read_text()) | {"version": VERSION + 1}
    path.write_bytes(to_json(newer))
    (result,) = inbox.wait(0)
    assert (result.job, result.reason) == (0, "failed")
    assert "written by a newer snakemake_kochi" in result.detail
    assert inbox.wait(0) == []
    inbox.close()


@pytest.mark.parametrize("is_movable", [False, True])
def test_a_delivery_that_cannot_be_noted_as_read_is_reported_once_and_noted_later(
    machine: MachinePaths,
    ticket: Make,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    is_movable: bool,
) -> None:
    inbox = Inbox.create(machine)
    queue.submit([ticket("a", controller=inbox.identity)])
    (claim,) = queue.claim(1, take)
    queue.finish(claim, result_of(claim))
    with monkeypatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "write", full)
        if not is_movable:
            patch.setattr(os, "rename", full)
        assert [result.ok for result in inbox.wait(0)] == [True]
    paths = machine.controller(inbox.identity)
    assert (len(list(paths.inbox.iterdir())), len(paths.delivered_files())) == (
        (0, 1) if is_movable else (1, 0)
    )
    assert inbox.wait(0) == []
    assert jobs_read(paths) == (set() if is_movable else {claim.ticket.job})
    inbox.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_result_that_is_empty_after_a_power_failure_is_reported_as_a_failure_once(
    machine: MachinePaths, ticket: Make, queue: Queue, is_cancelled: bool
) -> None:
    inbox = Inbox.create(machine)
    queue.submit([ticket("a", controller=inbox.identity)])
    make_directory(machine.job(0).directory)
    machine.job(0).result.write_bytes(b"")
    if is_cancelled:
        cancel_all(machine, [0])
    else:
        assert queue.claim(1, take) == []
    assert queue.is_empty()
    (result,) = inbox.wait(60)
    assert (result.job, result.reason) == (0, "failed")
    assert str(machine.job(0).result) in result.detail
    inbox.close()


def test_a_cancellation_that_was_killed_half_way_is_completed_by_the_next_one(
    machine: MachinePaths, ticket: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit([ticket("a")])

    class Killed(BaseException):
        pass

    def killed(source: Path, target: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(Killed):
            cancel_all(machine, [0])
    assert [view.state for view in queue.waiting()] == ["waiting"]
    assert cancel_all(machine, [0]) == {0: "ended"}
    assert queue.waiting() == []
    assert queue.remove()


def test_a_cancellation_on_a_full_disk_reports_each_job_that_it_could_not_end(
    machine: MachinePaths, ticket: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_worker(machine, 0)
    queue.submit([ticket("a"), ticket("b")])
    queue.claim(0, take)
    make_directory(machine.job(0).directory)
    machine.job(0).cancel.touch()
    FullDisk(monkeypatch, spared="/.cancel")
    outcomes = cancel_all(machine, [0, 1])
    assert outcomes[0] == "cancelling"
    assert isinstance(outcomes[1], OSError)


def test_jobs_of_a_queue_that_cannot_be_locked_are_reported_as_not_cancelled(
    machine: MachinePaths, ticket: Make, queue: Queue
) -> None:
    queue.submit([ticket("a")])
    (away := machine.locks.directory).rename(away.with_name("away"))
    assert isinstance(cancel_all(machine, [0])[0], KochiError)


def test_a_dead_workers_ticket_whose_attempt_cannot_be_read_waits_for_its_processes(
    machine: MachinePaths,
    ticket: Make,
    queue: Queue,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    set_worker(machine, 7)
    queue.submit([ticket("a")])
    queue.claim(7, take)
    make_directory(machine.job(0).directory)
    machine.job(0).attempt(1).write_bytes(b"")
    variables = {"MACHINE": machine.name, "WORKER_ID": "7", "JOB_ID": "0", "ATTEMPT": "1"}
    job = {f"KOCHI_{name}": value for name, value in variables.items()}
    time = 1000.0
    observer = Observer(lambda: time)
    left = subprocess.Popen(["sleep", "1000"], env={**os.environ, **job})
    try:
        assert recover(machine, "q", observer) == []
        time += 30
        assert recover(machine, "q", observer) == []
        (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert f"processes {left.pid} seem to belong to it" in record.message
        assert left.poll() is None, "it may be of another KOCHI_ROOT"
    finally:
        left.kill()
        left.wait()
    assert recover(machine, "q", observer) == [], "processes are not searched for at each look"
    time += 60
    assert len(recover(machine, "q", observer)) == 1
    assert [view.attempt for view in queue.waiting()] == [2]


def test_an_unreadable_attempt_of_another_node_delays_nothing(
    machine: MachinePaths, ticket: Make, queue: Queue
) -> None:
    set_worker(machine, 7, node=ELSEWHERE, state="left")
    queue.submit([ticket("a")])
    queue.claim(7, take)
    make_directory(machine.job(0).directory)
    machine.job(0).attempt(1).write_bytes(b"")
    assert len(recover(machine, "q")) == 1


def test_processes_that_cannot_be_ended_are_waited_for_once_and_killed_again_rarely(
    machine: MachinePaths, ticket: Make, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_worker(machine, 7)
    queue.submit([ticket("a")])
    queue.claim(7, take)
    # A living worker of this queue, which is notified of each ticket.
    set_worker(machine, 3, process=ProcessIdentity.of(os.getpid()))
    subscribe(machine.queue("q"), 3)
    wakeup = WakeUp(machine.worker(3).wakeup)
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    write_attempt(machine, 7, left.pid)
    kills = []

    def refuse(pid: int, number: int) -> None:
        kills.append((pid, number))
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as after a setuid program

    time = 1000.0
    assert Observer().kill_patience == 5.0
    # A search for processes may take a tenth of a second, and more beside other programs.
    observer = Observer(lambda: time, kill_patience=2.0)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", refuse)
            assert recover(machine, "q", observer) == []
            assert set(kills) == {(left.pid, signal.SIGKILL)}
            assert len(kills) > 1, "it waits"
            kills.clear()
            for _ in range(3):
                assert recover(machine, "q", observer) == []
            assert kills == []
            time += 61
            assert recover(machine, "q", observer) == []
            assert len(kills) == 1, "it does not wait again"
        assert not wakeup.wait(0), "no ticket has come"
        time += 61
        assert recover(machine, "q", observer) == []
        assert left.wait() == -signal.SIGKILL, "it was killed"
        time += 61
        assert len(recover(machine, "q", observer)) == 1
        assert wakeup.wait(0)
    finally:
        left.kill()
        left.wait()
        wakeup.close()


def test_processes_are_killed_without_a_wait_for_them() -> None:
    from snakemake_kochi.processes import kill_job_processes

    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    identity = ProcessIdentity.of(left.pid)
    assert identity is not None
    kill_job_processes(identity, "no-nonce", 0.0)
    assert left.wait() == -signal.SIGKILL


def test_a_worker_that_died_idle_on_another_node_no_longer_serves_its_queues(
    machine: MachinePaths, queue: Queue, ticket: Make
) -> None:
    set_worker(machine, 3, node=ELSEWHERE)
    subscribe(machine.queue("q"), 3)
    assert [worker.worker for worker in shared_workers(machine, "q")] == [3]
    time = 1000.0
    observer = Observer(lambda: time)
    for _ in range(100):
        assert recover(machine, "q", observer) == []
        time += 1
    assert shared_workers(machine, "q") == []
