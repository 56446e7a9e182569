"""The orphans of a killed controller, without Snakemake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import result_of

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import (
    Claim,
    Ended,
    Inbox,
    Orphans,
    Queue,
    Result,
    Running,
    Ticket,
    cancel,
)

Make = Callable[..., Ticket]


def died(machine: MachinePaths, inbox: Inbox) -> str:
    """Let a controller be one whose process is gone."""
    path = machine.controller(inbox.identity).state
    state = json.loads(path.read_text())
    state["process"]["start"] = -1
    path.write_text(json.dumps(state))
    return inbox.identity


def end(queue: Queue, claim: Claim, outputs: Sequence[str] = ()) -> None:
    """Let a job write its outputs and succeed."""
    seen = {}
    for name in outputs:
        path = Path(claim.ticket.directory, name)
        path.write_text(name)
        seen[name] = (path.stat().st_mtime_ns, path.stat().st_size)
    assert queue.finish(claim, result_of(claim, outputs=seen))


@pytest.fixture
def queue(machine: MachinePaths) -> Queue:
    return Queue(machine, "q")


@pytest.fixture
def left(machine: MachinePaths, ticket: Make, tmp_path: Path, queue: Queue) -> list[Claim]:
    """A dead controller's three jobs, the first two claimed."""
    inbox = Inbox.create(machine, str(tmp_path))
    tickets = [
        ticket(name, controller=inbox.identity, identity=name, outputs=(f"{name}.txt",))
        for name in "abc"
    ]
    queue.submit(tickets)
    claims = queue.claim(4, lambda _: "take", limit=2)
    died(machine, inbox)
    return claims


def adopter(machine: MachinePaths, directory: Path) -> tuple[Inbox, Orphans]:
    inbox = Inbox.create(machine, str(directory))
    orphans = Orphans.find(machine, str(directory), inbox.identity)
    for dead in orphans.controllers:
        inbox.adopt(machine, dead)
    return inbox, orphans


def test_without_a_dead_controller_there_is_nothing(machine: MachinePaths, tmp_path: Path) -> None:
    inbox, orphans = adopter(machine, tmp_path)
    assert orphans.is_empty and orphans.take("a") is None and orphans.in_the_way(["a.txt"]) == []
    orphans.forget()
    assert machine.controller(inbox.identity).state.exists()


def test_a_running_job_is_given_once_and_its_result_comes_to_the_adopter(
    machine: MachinePaths, tmp_path: Path, queue: Queue, left: list[Claim]
) -> None:
    inbox, orphans = adopter(machine, tmp_path)
    assert orphans.running() == [0, 1, 2]
    assert orphans.withdraw() == [2], "the one that waited"
    assert orphans.has_ended(2)
    found = orphans.take("a")
    assert isinstance(found, Running) and found.ticket.job == 0
    assert orphans.take("a") is None
    assert [result.job for result in inbox.wait(0)] == [2]
    end(queue, left[0], ["a.txt"])
    assert [result.job for result in inbox.wait(60)] == [0], "notified"
    assert orphans.running() == [1]
    orphans.forget()
    assert len(list(machine.controllers.iterdir())) == 2, "job 1 runs still"
    end(queue, left[1])
    orphans.forget()
    assert [path.name for path in machine.controllers.iterdir()] == [inbox.identity]


def test_a_dead_controller_is_forgotten_while_the_ticket_of_an_ended_job_is_on_its_way(
    machine: MachinePaths, tmp_path: Path, queue: Queue, left: list[Claim]
) -> None:
    inbox, orphans = adopter(machine, tmp_path)
    orphans.withdraw()
    for claim in left:
        end(queue, claim)
    machine.job(left[0].ticket.job).ticket.rename(left[0].path)
    orphans.forget()
    assert [path.name for path in machine.controllers.iterdir()] == [inbox.identity]


@pytest.mark.parametrize("is_read", [False, True])
def test_a_success_is_taken_while_its_outputs_are_as_it_left_them(
    machine: MachinePaths, tmp_path: Path, queue: Queue, left: list[Claim], is_read: bool
) -> None:
    end(queue, left[0], ["a.txt"])
    end(queue, left[1], ["b.txt"])
    inbox, orphans = adopter(machine, tmp_path)
    assert orphans.unread() == 2
    if is_read:
        assert {result.job for result in inbox.wait(0)} == {0, 1}
    orphans.withdraw()
    found = orphans.take("a")
    assert isinstance(found, Ended) and found.result.job == 0
    os.utime(tmp_path / "b.txt", ns=(1, 1))
    assert orphans.take("b") is None
    assert orphans.take("c") is None, "cancelled"
    assert orphans.take(None) is None


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_job_that_ends_after_it_was_found_running_is_taken_as_ended(
    machine: MachinePaths, tmp_path: Path, queue: Queue, left: list[Claim], is_moved: bool
) -> None:
    _, orphans = adopter(machine, tmp_path)
    end(queue, left[0], ["a.txt"])
    if not is_moved:  # as between the two last steps of an end
        machine.job(0).ticket.rename(left[0].path)
    assert isinstance(orphans.take("a"), Ended)


def test_another_job_that_writes_the_same_file_is_in_the_way_until_it_has_ended(
    machine: MachinePaths, tmp_path: Path, queue: Queue, left: list[Claim]
) -> None:
    _, orphans = adopter(machine, tmp_path)
    assert orphans.in_the_way(["a.txt", "other.txt"]) == [0]
    orphans.clear([0])
    assert orphans.take("a") is None, "it is being ended"
    assert machine.job(0).cancel.exists()
    assert orphans.in_the_way(["a.txt"]) == [0]
    queue.requeue(left[0])
    assert orphans.in_the_way(["a.txt"]) == []


def test_one_thread_ends_jobs_while_another_looks_which_of_them_have_ended(
    machine: MachinePaths, tmp_path: Path, queue: Queue, ticket: Make
) -> None:
    inbox = Inbox.create(machine, str(tmp_path))
    jobs = range(100)
    queue.submit([ticket(str(n), controller=inbox.identity, outputs=(str(n),)) for n in jobs])
    queue.claim(4, lambda _: "take", limit=len(jobs))
    died(machine, inbox)
    _, orphans = adopter(machine, tmp_path)

    def clear() -> None:
        for job in jobs:
            orphans.clear([job])

    with ThreadPoolExecutor() as threads:
        cleared = threads.submit(clear)
        while not cleared.done():
            assert orphans.queues_of_ending() <= {"q"}
    assert orphans.queues_of_ending() == {"q"}


def test_no_success_is_missed_while_another_thread_takes_in_the_results(
    machine: MachinePaths, tmp_path: Path, queue: Queue, left: list[Claim], calls: Any
) -> None:
    end(queue, left[0], ["a.txt"])
    end(queue, left[1], ["b.txt"])
    inbox, orphans = adopter(machine, tmp_path)
    taken_in: list[Result] = []

    def take_in(path: str) -> None:
        if "/inbox/" in path and not taken_in:
            with ThreadPoolExecutor() as threads:
                calls.before_open = lambda path: None
                taken_in.extend(threads.submit(inbox.wait, 0.0).result())

    calls.before_open = take_in
    assert isinstance(orphans.take("a"), Ended) and isinstance(orphans.take("b"), Ended)
    assert {result.job for result in taken_in} == {0, 1}


def test_one_of_two_controllers_adopts_and_the_next_when_that_one_is_gone(
    machine: MachinePaths, tmp_path: Path, left: list[Claim]
) -> None:
    first, orphans = adopter(machine, tmp_path)
    assert not orphans.is_empty
    _, none = adopter(machine, tmp_path)
    assert none.is_empty
    died(machine, first)
    third, orphans = adopter(machine, tmp_path)
    assert len(orphans.controllers) == 2, "the first one, and its adopter"
    third.close()
    _, orphans = adopter(machine, tmp_path)
    assert len(orphans.controllers) == 2
    assert isinstance(orphans.take("a"), Running)


def test_what_was_left_in_another_directory_is_not_touched(
    machine: MachinePaths, tmp_path: Path, left: list[Claim]
) -> None:
    (tmp_path / "other").mkdir()
    _, orphans = adopter(machine, tmp_path / "other")
    assert orphans.is_empty
    assert orphans.withdraw() == []
    _, orphans = adopter(machine, tmp_path)
    assert orphans.running() == [0, 1, 2]


def test_a_controller_whose_directory_is_gone_is_forgotten(
    machine: MachinePaths, tmp_path: Path
) -> None:
    dead = died(machine, Inbox.create(machine, str(tmp_path / "gone")))
    _, orphans = adopter(machine, tmp_path)
    orphans.forget()
    assert not machine.controller(dead).state.exists()


def test_a_run_that_ended_before_its_jobs_is_adopted_from(
    machine: MachinePaths, ticket: Make, tmp_path: Path, queue: Queue
) -> None:
    inbox = Inbox.create(machine, str(tmp_path))
    queue.submit([ticket("a", controller=inbox.identity, identity="a", outputs=("a.txt",))])
    (claim,) = queue.claim(4, lambda _: "take")
    cancel(machine, 0)
    inbox.leave()
    # Its process lives still, as when Snakemake is called by another program.
    _, orphans = adopter(machine, tmp_path)
    assert orphans.controllers == (inbox.identity,)
    assert orphans.withdraw() == [0], "what was told to end is not waited for as if it went on"
    assert orphans.take("a") is None
    assert orphans.in_the_way(["a.txt"]) == [0]
    queue.requeue(claim)
    assert orphans.in_the_way(["a.txt"]) == []
    orphans.forget()
    assert not machine.controller(inbox.identity).directory.exists()


def test_only_the_queues_that_a_controller_used_are_looked_into(
    machine: MachinePaths, ticket: Make, tmp_path: Path, queue: Queue
) -> None:
    inbox = Inbox.create(machine, str(tmp_path))
    inbox.note_queue("used")
    for name in ("used", "q"):
        fields = {"controller": inbox.identity, "identity": name}
        Queue(machine, name).submit([ticket(name, **fields)])
    died(machine, inbox)
    (machine.queue("q").waiting_ticket(1, 1)).write_text("{")
    _, orphans = adopter(machine, tmp_path)
    assert orphans.withdraw() == [0]
    orphans.forget()
    assert not machine.controller(inbox.identity).directory.exists()
    assert not queue.is_empty()


def test_a_controller_whose_directory_is_away_is_left_alone_while_it_has_jobs(
    machine: MachinePaths, ticket: Make, tmp_path: Path, queue: Queue
) -> None:
    away = tmp_path / "away"
    inbox = Inbox.create(machine, str(away))
    queue.submit([ticket("a", controller=inbox.identity, identity="a", directory=str(away))])
    queue.claim(4, lambda _: "take")
    died(machine, inbox)
    _, other = adopter(machine, tmp_path)
    assert other.is_empty
    away.mkdir()
    _, orphans = adopter(machine, away)
    assert isinstance(orphans.take("a"), Running)
