"""The end of a claimed ticket needs no lock: its result counts or its loss, for everybody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import result_of

from snakemake_kochi.files import link_exclusively
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Inbox, Queue, Ticket, ending, find_job, queue_lock, recovery
from snakemake_kochi.queue.claiming import Claim

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


def hidden(machine: MachinePaths) -> list[str]:
    return [path.name for path in machine.job(0).directory.glob(".*")]


def test_a_result_is_published_while_another_process_holds_the_lock(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    with queue_lock(machine, "q"):
        assert Queue(machine, "q").finish(claim, result_of(claim))
    assert inbox.wait(60) == [result_of(claim)]
    assert machine.job(0).ticket.exists() and not claim.path.exists()
    assert hidden(machine) == []
    inbox.close()


def test_an_attempt_that_was_given_up_does_not_count(
    machine: MachinePaths, claim: Claim, inbox: Inbox
) -> None:
    queue = Queue(machine, "q")
    queue.requeue(claim, "lost")
    assert not queue.finish(claim, result_of(claim))
    assert not machine.job(0).result.exists()
    assert machine.job(0).late_result(claim.nonce).exists()
    assert [view.attempt for view in queue.waiting()] == [2]
    assert hidden(machine) == []
    inbox.close()


def test_an_attempt_that_is_given_up_just_before_its_result_is_linked_does_not_count(
    machine: MachinePaths, claim: Claim, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(machine, "q")

    def link_late(source: Path, path: Path) -> bool:
        queue.requeue(claim, "lost")
        return link_exclusively(source, path)

    monkeypatch.setattr(ending, "link_exclusively", link_late)
    assert not queue.finish(claim, result_of(claim))
    assert not machine.job(0).result.exists()
    (again,) = queue.claim(2, lambda _: "take")
    assert again.ticket.attempt == 2
    monkeypatch.undo()
    assert queue.finish(again, result_of(again))
    assert [each.nonce for each in inbox.wait(60)] == [again.nonce]
    inbox.close()


def test_a_result_that_is_linked_just_before_its_attempt_is_given_up_counts(
    machine: MachinePaths, claim: Claim, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(machine, "q")
    withdraw = recovery.withdraw_drafts

    def publish_first(paths: object) -> None:
        # The worker had looked whether the attempt was given up before that was written.
        machine.job(0).ended(1).rename(machine.job(0).directory / "aside")
        assert queue.finish(claim, result_of(claim))
        (machine.job(0).directory / "aside").rename(machine.job(0).ended(1))
        withdraw(machine.job(0))

    monkeypatch.setattr(recovery, "withdraw_drafts", publish_first)
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
