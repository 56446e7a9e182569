"""The end of a claimed ticket needs no lock: its result counts or its loss, for everybody."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import begin, result_of

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import link_exclusively
from snakemake_kochi.paths import JobPaths, MachinePaths
from snakemake_kochi.queue import (
    Inbox,
    Queue,
    Ticket,
    attempt_file,
    ending,
    find_job,
    queue_lock,
    recovery,
)
from snakemake_kochi.queue import result as results
from snakemake_kochi.queue.attempt_file import AttemptFile
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.queue.ending import deliver
from snakemake_kochi.queue.entries import QueueRemovedError
from snakemake_kochi.queue.result import find_attempt, read_attempt, read_result

MakeTicket = Callable[..., Ticket]


@pytest.fixture
def inbox(machine: MachinePaths) -> Inbox:
    return Inbox.create(machine)


@pytest.fixture
def claim(machine: MachinePaths, ticket: MakeTicket, inbox: Inbox) -> Claim:
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity)])
    (claim,) = queue.claim(1, lambda _: "take")
    return claim


@pytest.fixture(params=["begun", "not begun"])
def file(
    request: pytest.FixtureRequest, machine: MachinePaths, claim: Claim
) -> Iterator[AttemptFile | None]:
    """The file of the attempt, if it has begun."""
    if request.param == "not begun":
        yield None
        return
    file = begin(machine, claim)
    yield file
    file.close()


def hidden(machine: MachinePaths) -> list[str]:
    return [path.name for path in machine.job(0).directory.glob(".*")]


def test_a_result_is_published_while_another_process_holds_the_lock(
    machine: MachinePaths, claim: Claim, inbox: Inbox, file: AttemptFile | None
) -> None:
    with queue_lock(machine, "q"):
        assert Queue(machine, "q").finish(claim, result_of(claim), file)
    assert inbox.wait(60) == [result_of(claim)]
    assert machine.job(0).ticket.exists() and not claim.path.exists()
    assert hidden(machine) == []
    inbox.close()


def test_an_attempt_that_was_given_up_does_not_count(
    machine: MachinePaths, claim: Claim, inbox: Inbox, file: AttemptFile | None
) -> None:
    queue = Queue(machine, "q")
    queue.requeue(claim, "lost")
    assert not queue.finish(claim, result_of(claim), file)
    assert not machine.job(0).result.exists()
    assert machine.job(0).late_result(claim.nonce).exists()
    assert [view.attempt for view in queue.waiting()] == [2]
    assert hidden(machine) == []
    inbox.close()


def test_an_attempt_that_is_given_up_just_before_its_result_is_linked_does_not_count(
    machine: MachinePaths,
    claim: Claim,
    inbox: Inbox,
    file: AttemptFile | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(machine, "q")

    def link_late(source: Path | int, path: Path) -> bool:
        queue.requeue(claim, "lost")
        return link_exclusively(source, path)

    monkeypatch.setattr(attempt_file if file else ending, "link_exclusively", link_late)
    assert not queue.finish(claim, result_of(claim), file)
    assert not machine.job(0).result.exists()
    (again,) = queue.claim(2, lambda _: "take")
    assert again.ticket.attempt == 2
    monkeypatch.undo()
    assert queue.finish(again, result_of(again))
    assert [each.nonce for each in inbox.wait(60)] == [again.nonce]
    inbox.close()


def test_a_result_that_is_linked_just_before_its_attempt_is_given_up_counts(
    machine: MachinePaths,
    claim: Claim,
    inbox: Inbox,
    file: AttemptFile | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue(machine, "q")
    withdraw = recovery.withdraw_attempt

    def publish_first(paths: JobPaths, attempt: int) -> None:
        # The worker had looked whether the attempt was given up before that was written.
        machine.job(0).ended(1).rename(machine.job(0).directory / "aside")
        assert queue.finish(claim, result_of(claim), file)
        (machine.job(0).directory / "aside").rename(machine.job(0).ended(1))
        withdraw(paths, attempt)

    monkeypatch.setattr(recovery, "withdraw_attempt", publish_first)
    queue.requeue(claim, "lost")
    assert queue.waiting() == [] and queue.running() == []
    assert find_job(machine, 0).result == result_of(claim)
    assert inbox.wait(60) == [result_of(claim)]
    inbox.close()


def test_the_drafts_of_a_killed_worker_go_when_its_ticket_is_requeued(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    machine.job(0).directory.mkdir(parents=True)
    machine.job(0).draft(claim.nonce).write_text("{")
    Queue(machine, "q").requeue(claim, "lost")
    assert hidden(machine) == []
    assert [view.attempt for view in Queue(machine, "q").waiting()] == [2]
    inbox.close()


def test_a_result_for_nobody_leaves_no_second_name(
    machine: MachinePaths, ticket: MakeTicket
) -> None:
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    (claim,) = queue.claim(1, lambda _: "take")
    assert queue.finish(claim, result_of(claim))
    assert machine.job(0).result.stat().st_nlink == 1
    assert hidden(machine) == []


def test_a_result_that_counts_is_the_file_of_its_attempt(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    file = begin(machine, claim)
    began = read_attempt(machine.job(0).attempt(1))
    assert Queue(machine, "q").finish(claim, result_of(claim), file)
    assert machine.job(0).attempt(1).samefile(machine.job(0).result)
    assert read_attempt(machine.job(0).attempt(1)) == began
    assert read_result(machine.job(0).result) == result_of(claim)
    assert json.loads(machine.job(0).result.read_text())["process"]["pid"] == began.process.pid
    inbox.close()
    file.close()


def test_an_attempt_whose_worker_died_while_it_completed_the_file_is_read_and_given_up(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    path = machine.job(0).attempt(1)
    begin(machine, claim).close()
    began, content = read_attempt(path), path.read_bytes()
    other = machine.directory / "other"
    file = AttemptFile.begin(other, began)
    file.publish(result_of(claim), machine.directory / "result")
    file.close()
    complete = other.read_bytes()
    for length in range(len(content) - 2, len(complete)):
        path.write_bytes(complete[:length])
        assert read_attempt(path) == began, complete[:length]
    queue = Queue(machine, "q")
    queue.requeue(claim, "lost")
    assert not path.exists() and find_attempt(machine.job(0), 1) == began
    assert [view.attempt for view in queue.waiting()] == [2]
    inbox.close()


def test_a_result_that_found_no_room_is_published_later(
    machine: MachinePaths, claim: Claim, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, queue = begin(machine, claim), Queue(machine, "q")

    def full(descriptor: int, content: bytes, offset: int) -> int:
        if len(content) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[:7], offset)

    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        queue.finish(claim, result_of(claim), file)
    assert not machine.job(0).result.exists() and claim.path.exists()
    monkeypatch.undo()
    assert queue.finish(claim, result_of(claim), file)
    assert inbox.wait(60) == [result_of(claim)]
    inbox.close()
    file.close()


def test_a_result_whose_job_was_deleted_meanwhile_is_kept_as_a_late_one(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    file, queue = begin(machine, claim), Queue(machine, "q")
    claim.path.unlink()
    shutil.rmtree(machine.job(0).directory.parent)
    assert not queue.finish(claim, result_of(claim), file)
    assert machine.job(0).late_result(claim.nonce).exists()
    shutil.rmtree(machine.job(0).directory)
    shutil.rmtree(queue.paths.directory)
    with pytest.raises(QueueRemovedError):
        queue.finish(claim, result_of(claim), file)
    inbox.close()


def test_a_result_that_a_filesystem_shows_late_is_waited_for(
    machine: MachinePaths, claim: Claim, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = begin(machine, claim)
    before = machine.job(0).attempt(1).read_bytes()
    assert Queue(machine, "q").finish(claim, result_of(claim), file)
    result = machine.job(0).result
    complete = result.read_bytes()
    # What a client shows that keeps the content and the size, or the size alone.
    for late in (before, complete[: len(before)]):
        result.write_bytes(late)
        monkeypatch.setattr(time, "sleep", lambda _: result.write_bytes(complete))
        # As from a node whose clock is minutes behind.
        ago = time.time() - 300
        os.utime(result.parent, (ago, ago))
        assert read_result(result) == result_of(claim)
    result.write_bytes(before)
    with monkeypatch.context() as patch:
        patch.setattr(results, "SEEN_LATE", 0.0)
        with pytest.raises(DamagedFileError):
            read_result(result)
    # One that was damaged by a power failure is not waited for each time.
    monkeypatch.setattr(time, "sleep", None)
    hours_ago = time.time() - 7200
    os.utime(result.parent, (hours_ago, hours_ago))
    with pytest.raises(DamagedFileError):
        read_result(result)
    inbox.close()
    file.close()


def test_an_inbox_waits_for_a_result_that_is_shown_late_without_keeping_the_others(
    machine: MachinePaths, ticket: MakeTicket, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox, queue = Inbox.create(machine), Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity) for _ in range(3)])
    claims = queue.claim(1, lambda _: "take", limit=3)
    before = {}
    for claim in claims:
        file = begin(machine, claim)
        before[claim.ticket.job] = machine.job(claim.ticket.job).attempt(1).read_bytes()
        assert queue.finish(claim, result_of(claim), file)
        file.close()
    late = machine.job(1).result
    complete = late.read_bytes()
    late.write_bytes(before[1])
    monkeypatch.setattr(time, "sleep", None)
    assert sorted(result.job for result in inbox.wait(60)) == [0, 2]
    assert inbox.wait(0) == []
    late.write_bytes(complete)
    assert inbox.wait(0) == [result_of(claims[1])]
    # After a while it is damaged.
    other = Inbox.create(machine)
    deliver(machine, result_of(claims[2]), other.identity)
    machine.job(2).result.write_bytes(before[2])
    assert other.wait(0) == []
    monkeypatch.setattr("snakemake_kochi.queue.inbox.SEEN_LATE", 0.0)
    assert [result.reason for result in other.wait(0)] == ["failed"]
    other.close()
    inbox.close()


def test_an_error_at_the_close_of_a_file_costs_nothing_that_was_written(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    file = begin(machine, claim)
    assert Queue(machine, "q").finish(claim, result_of(claim), file)
    assert file._descriptor is not None
    os.close(file._descriptor)
    file.close()
    assert inbox.wait(60) == [result_of(claim)]
    inbox.close()


@pytest.mark.parametrize("fault", [errno.EXDEV, errno.EIO])
def test_after_an_error_the_file_of_an_attempt_is_reached_by_its_path(
    machine: MachinePaths,
    claim: Claim,
    inbox: Inbox,
    monkeypatch: pytest.MonkeyPatch,
    fault: int,
) -> None:
    """The filesystem may have been mounted anew meanwhile: a descriptor cannot be linked then."""
    file, link, opened = begin(machine, claim), os.link, os.open
    faults, reached = iter([fault]), []

    def link_of_mount(*arguments: Any, **options: Any) -> None:
        if number := next(faults, None):
            raise OSError(number, os.strerror(number))
        link(*arguments, **options)

    def open_noted(path: Any, *arguments: Any, **options: Any) -> int:
        reached.append(os.fspath(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "link", link_of_mount)
    queue = Queue(machine, "q")
    with pytest.raises((OSError, KochiError)):
        queue.finish(claim, result_of(claim), file)
    monkeypatch.setattr(os, "open", open_noted)
    assert queue.finish(claim, result_of(claim), file)
    assert str(machine.job(0).attempt(1)) in reached
    assert inbox.wait(60) == [result_of(claim)]
    inbox.close()
    file.close()


def test_a_result_counts_although_a_person_has_deleted_the_directory_of_the_job(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    file = begin(machine, claim)
    shutil.rmtree(machine.job(0).directory)
    assert Queue(machine, "q").finish(claim, result_of(claim), file)
    assert inbox.wait(60) == [result_of(claim)]
    assert machine.job(0).result.exists() and machine.job(0).ticket.exists()
    inbox.close()
    file.close()
