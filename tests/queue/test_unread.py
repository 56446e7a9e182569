"""Tickets that are claimed before they are read, because the last ones were all taken."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_calls import Calls
from support import waiting_file, worker_state

from snakemake_kochi.files import to_json
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import Queue, Resources, Ticket, cancel, find_job
from snakemake_kochi.queue.claiming import Answer, Claim
from snakemake_kochi.queue.entries import running_entries
from snakemake_kochi.queue.ticket import read_ticket
from snakemake_kochi.queue.unread import UnreadClaims
from snakemake_kochi.queue.wakeup import subscribe

MakeTicket = Callable[..., Ticket]


def take(_: Ticket) -> Answer:
    return "take"


def narrow(ticket: Ticket) -> Answer:
    return "take" if ticket.resources.cores == 1 else "stop"


@pytest.fixture
def queue(machine: MachinePaths, ticket: MakeTicket) -> Queue:
    """A queue whose first tickets this worker has taken."""
    queue = Queue(machine, "q")
    queue.submit([ticket()] * 4)
    assert len(queue.claim(1, take, limit=4)) == 4
    return queue


def jobs(claims: list) -> list[int]:  # type: ignore[type-arg]
    return [claim.ticket.job for claim in claims]


def test_no_ticket_is_read_while_the_lock_is_held(
    queue: Queue, ticket: MakeTicket, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit([ticket()] * 20)
    move, under_the_lock = UnreadClaims.move, list[str]()

    def noted(self: UnreadClaims, *arguments: object) -> object:
        calls.clear()
        moved = move(self, *arguments)  # type: ignore[arg-type]
        under_the_lock.extend((*calls.opened, *calls.listed))
        return moved

    monkeypatch.setattr(UnreadClaims, "move", noted)
    assert jobs(queue.claim(1, take, 40, unread=(2, 8))) == [*range(4, 14)]
    # One listing of the shard, and one of those who serve the queue.
    assert [path for path in under_the_lock if "/subscribers" not in path] == [
        str(queue.paths.waiting / queue.paths.submitted_shard(4, 23))
    ]
    assert len(calls.locks()) == 0 and len(calls.opened) == 10


def test_a_ticket_that_is_not_taken_goes_back_with_those_behind_it(
    queue: Queue, ticket: MakeTicket
) -> None:
    wide = ticket(resources=Resources(cores=8))
    queue.submit([ticket(), ticket(), wide, ticket()])
    assert jobs(queue.claim(1, narrow, 9, unread=(9, 0))) == [4, 5]
    assert [(view.job, view.attempt) for view in queue.waiting()] == [(6, 1), (7, 1)]
    # Now it reads before it claims, and the wide ticket is not overtaken.
    assert queue.claim(1, narrow, 9, unread=(9, 0)) == []
    assert jobs(queue.claim(2, take, 9)) == [6, 7]


def test_tickets_that_went_back_are_not_overtaken_by_the_next_ones(
    queue: Queue, ticket: MakeTicket
) -> None:
    queue.submit([ticket()] * 20)
    answers: list[Answer] = ["take", "take", "stop"]
    assert jobs(queue.claim(1, lambda _: answers.pop(0), 9, unread=(2, 8))) == [4, 5]
    assert jobs(queue.claim(1, take, 2, unread=(1, 1))) == [6, 7], "now it reads before it claims"
    assert jobs(queue.claim(1, take, 9, unread=(4, 0))) == [8, 9, 10, 11]


def test_tickets_that_the_worker_gives_up_are_not_overtaken_by_its_next_claims(
    queue: Queue, ticket: MakeTicket
) -> None:
    queue.submit([ticket()] * 20)
    claims = queue.claim(1, take, 9, unread=(2, 2))
    assert jobs(claims) == [4, 5, 6, 7]
    assert queue.requeue_all(claims[2:]) == [None, None]
    assert jobs(queue.claim(1, take, 9, unread=(4, 0))) == [6, 7, 8, 9]


def test_the_tickets_of_a_dead_worker_are_not_overtaken_where_they_are_recovered(
    queue: Queue, machine: MachinePaths, ticket: MakeTicket
) -> None:
    queue.submit([ticket()] * 20)
    assert jobs(Queue(machine, "q").claim(2, take, 2)) == [4, 5]
    assert jobs(queue.claim(1, take, 9, unread=(2, 0))) == [6, 7]
    process = ProcessIdentity(os.getpid(), -1)
    dead = worker_state(2, node=this_node(), process=process)
    machine.worker(2).directory.mkdir(parents=True)
    machine.worker(2).state.write_bytes(to_json(dead.to_dict()))
    assert len(queue.recover()) == 2
    assert jobs(queue.claim(1, take, 9, unread=(4, 0))) == [4, 5, 8, 9]


def test_a_ticket_that_can_never_run_here_goes_back_and_is_skipped(
    queue: Queue, ticket: MakeTicket
) -> None:
    wide = ticket(resources=Resources(cores=8))
    queue.submit([ticket(), wide, ticket()])

    def fitting(ticket: Ticket) -> Answer:
        return "take" if ticket.resources.cores == 1 else "skip"

    assert jobs(queue.claim(1, fitting, 9, unread=(9, 0))) == [4, 6]
    assert [view.job for view in queue.waiting()] == [5]
    assert queue.is_empty(), "for this worker"
    assert jobs(Queue(queue.machine, "q").claim(2, take)) == [5]


def test_a_damaged_or_cancelled_ticket_is_ended_and_the_others_run(
    queue: Queue, machine: MachinePaths, ticket: MakeTicket, caplog: pytest.LogCaptureFixture
) -> None:
    queue.submit([ticket()] * 4)
    waiting_file(queue, 4).write_text("{")
    machine.job(5).directory.mkdir(parents=True)
    machine.job(5).cancel.touch()
    assert jobs(queue.claim(1, take, 9, unread=(9, 0))) == [6, 7]
    assert len(list(queue.paths.damaged.iterdir())) == 1
    reasons = [find_job(machine, job).result.reason for job in (4, 5)]  # type: ignore[union-attr]
    assert reasons == ["failed", "cancelled"]
    assert queue.waiting() == []


def test_the_last_tickets_are_shared_with_the_other_workers(
    queue: Queue, machine: MachinePaths, ticket: MakeTicket
) -> None:
    for worker in range(1, 5):
        subscribe(queue.paths, worker)
    queue.submit([ticket()] * 12)
    assert jobs(queue.claim(1, take, 40, unread=(1, 30))) == [4, 5, 6]
    assert jobs(queue.claim(1, take, 40, unread=(8, 0))) == [*range(7, 15)], "they start at once"


def test_emptied_shards_are_removed_and_new_ones_are_found(
    queue: Queue, ticket: MakeTicket
) -> None:
    queue.submit([ticket()] * 600)
    found: list[int] = []
    while claimed := jobs(queue.claim(1, take, 100, unread=(50, 50))):
        found += claimed
    assert found == [*range(4, 604)]
    assert queue.is_empty()
    assert list(queue.paths.waiting.iterdir()) == []
    queue.submit([ticket()])
    assert jobs(queue.claim(1, take, 100, unread=(50, 50))) == [604]


def test_a_cancelled_ticket_of_the_same_queue_is_left_alone(
    queue: Queue, machine: MachinePaths, ticket: MakeTicket
) -> None:
    queue.submit([ticket()] * 3)
    assert cancel(machine, 5) == "cancelled"
    assert jobs(queue.claim(1, take, 9, unread=(9, 0))) == [4, 6]


def test_a_claim_that_was_taken_from_a_worker_while_it_read_is_left_to_the_others(
    queue: Queue, machine: MachinePaths, ticket: MakeTicket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still after its claim, and was presumed dead. The next attempt has a draft."""
    queue.submit([ticket(), ticket(resources=Resources(cores=8))])
    others = Queue(machine, "q")
    put_back = UnreadClaims.put_back

    def put_back_late(self: UnreadClaims, *arguments: Any) -> None:
        for claim in [Claim(view_ticket, 1, "n", path) for view_ticket, path in claims_of(1, 5)]:
            others.requeue(claim, "lost")
        (again,) = others.claim(2, take)
        machine.job(5).draft(again.nonce).touch()
        taken.append(again)
        put_back(self, *arguments)

    def claims_of(worker: int, job: int) -> list[tuple[Ticket, Path]]:
        path = queue.paths.running_ticket(job, 1, worker)
        return [(read_ticket(path).with_attempt(1), path)]

    taken: list[Claim] = []
    monkeypatch.setattr(UnreadClaims, "put_back", put_back_late)
    assert jobs(queue.claim(1, narrow, 9, unread=(9, 0))) == [4]
    (again,) = taken
    assert again.path.exists() and machine.job(5).draft(again.nonce).exists()
    assert [view.attempt for view in queue.running() if view.job == 5] == [2]


def test_a_claim_that_cannot_go_back_does_not_keep_the_others_from_it(
    queue: Queue, machine: MachinePaths, ticket: MakeTicket
) -> None:
    queue.submit([ticket()] * 3)
    waiting_file(queue, 4).write_text("{")
    waiting_file(queue, 5).write_text("{")
    machine.job(4).directory.parent.mkdir(parents=True, exist_ok=True)
    machine.job(4).directory.write_text("")  # in its way
    assert jobs(queue.claim(1, take, 9, unread=(9, 0))) == [6]
    assert find_job(machine, 5).state == "ended"
    assert queue.paths.running_ticket(4, 1, 1).exists()
    # As the worker does with those of its claims that it does not know.
    machine.job(4).directory.unlink()
    (entry,) = [each for each in running_entries(queue.paths) if each.job == 4]
    queue.set_aside(entry, "damaged")
    assert find_job(machine, 4).state == "ended" and queue.waiting() == []


@pytest.mark.parametrize("seed", range(12))
def test_no_ticket_overtakes_another_one_whichever_are_claimed_before_they_are_read(
    machine: MachinePaths, ticket: MakeTicket, seed: int
) -> None:
    chance = random.Random(seed)
    workers = [Queue(machine, "q"), Queue(machine, "q")]
    held: list[list[Claim]] = [[], []]
    waiting: set[int] = set()
    for _ in range(100):
        number = chance.randrange(2)
        queue, own = workers[number], held[number]
        match chance.choice(["submit", "requeue", "claim", "claim", "claim"]):
            case "submit":
                tickets = [ticket()] * chance.choice([1, 5, 20])
                waiting |= {each.job for each in queue.submit(tickets)}
            case "requeue" if own:
                claim = own.pop(chance.randrange(len(own)))
                queue.requeue(claim)
                waiting.add(claim.ticket.job)
            case "claim":
                limit, room = chance.randint(1, 6), chance.randint(1, 6)
                unread = chance.choice([(0, 0), (limit, 0)])
                claims = queue.claim(number, with_room(room), limit, unread=unread)
                expected = sorted(waiting)[: min(limit, room)]
                if claims and unread != (0, 0):
                    # A new submission is seen a second later if there are others.
                    expected = expected[: len(claims)]
                assert jobs(claims) == expected
                waiting -= set(jobs(claims))
                own += claims
        a_second_later(workers[:number] + workers[number + 1 :])


def with_room(room: int) -> Callable[[Ticket], Answer]:
    places = iter(range(room))
    return lambda _: "stop" if next(places, None) is None else "take"


def a_second_later(workers: list[Queue]) -> None:
    """They list the directories of waiting tickets again: others may have put some back."""
    for queue in workers:
        queue._claimer._unread._list_due = 0.0
