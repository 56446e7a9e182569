"""A paused batch: its jobs are claimed by no worker until it is resumed; others overtake them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from file_calls import Calls

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Queue, Ticket, explain
from snakemake_kochi.queue.paused import PausedBatch, PausedBatches, list_paused, pause, resume


@pytest.fixture
def batch(tmp_path: Path) -> PausedBatch:
    return PausedBatch(str(tmp_path), "fib.yaml", "scaling")


def ticket(batch: PausedBatch, name: str = "") -> Ticket:
    labels = {"experiment": batch.experiment, "batch": name or batch.batch}
    return Ticket("job", ("true",), batch.directory, labels=labels)


def claimed(queue: Queue, limit: int = 10) -> list[int]:
    return [claim.ticket.job for claim in queue.claim(1, lambda _: "take", limit)]


def look_again(queue: Queue) -> None:
    """As half a second later."""
    queue._claimer._paused._next = 0.0


def test_its_tickets_wait_and_others_overtake_them(
    machine: MachinePaths, batch: PausedBatch
) -> None:
    queue = Queue(machine, "q")
    other = ticket(batch, "debug")
    numbers = [each.job for each in queue.submit([ticket(batch), other, ticket(batch)])]
    assert pause(machine, batch)
    assert not pause(machine, batch)
    assert claimed(queue) == [numbers[1]]
    assert queue.is_empty()  # as a worker sees it that stays only for what it may claim
    said = explain(machine, numbers[0], str)
    assert said.startswith("batch scaling of fib.yaml has been paused; to resume it, type in")
    assert said.endswith(": kochi batch fib.yaml scaling --resume")

    assert resume(machine, batch)
    assert not resume(machine, batch)
    look_again(queue)
    assert claimed(queue) == [numbers[0], numbers[2]]


def test_a_worker_sees_that_a_batch_is_resumed_whose_tickets_came_back_to_another_directory(
    machine: MachinePaths, batch: PausedBatch
) -> None:
    queue, other = Queue(machine, "q"), Queue(machine, "q")
    queue.submit([ticket(batch)] * 6)
    assert claimed(other, 2) == [0, 1], "the next ones are like these"
    pause(machine, batch)
    assert claimed(queue) == []
    look_again(other)
    # It claims before it reads, and puts them back, one by one.
    assert other.claim(2, lambda _: "take", 9, unread=(9, 9)) == []
    assert [path.name for path in queue.paths.waiting.iterdir()] == ["00000000"]
    assert claimed(queue) == []
    resume(machine, batch)
    look_again(queue)
    assert claimed(queue) == [2, 3, 4, 5]


def test_a_batch_that_is_paused_while_a_worker_takes_its_jobs(
    machine: MachinePaths, batch: PausedBatch
) -> None:
    queue = Queue(machine, "q")
    numbers = [each.job for each in queue.submit([ticket(batch)] * 3)]
    assert claimed(queue, 1) == numbers[:1]
    pause(machine, batch)
    look_again(queue)
    assert claimed(queue) == []
    # Another process that comes later sees the same, also of a link to the directory.
    link = Path(batch.directory).parent / "link"
    link.symlink_to(batch.directory)
    by_link = PausedBatch(str(link), batch.experiment, batch.batch)
    assert by_link.digest == batch.digest
    assert claimed(Queue(machine, "q")) == []
    resume(machine, by_link)
    look_again(queue)
    assert claimed(queue) == numbers[1:]


def test_jobs_of_no_batch_or_of_another_directory_are_not_concerned(
    machine: MachinePaths, batch: PausedBatch, tmp_path: Path
) -> None:
    pause(machine, batch)
    seen = PausedBatches(machine)
    assert seen.has_changed()
    assert not seen.has_changed()
    assert seen.has(ticket(batch))
    elsewhere = PausedBatch(str(tmp_path / "other"), batch.experiment, batch.batch)
    assert not seen.has(ticket(elsewhere))
    assert not seen.has(Ticket("job", ("true",), batch.directory))
    assert [each.batch for each in list_paused(machine)] == ["scaling"]
    # A file of somebody's own, or half of one, pauses nothing and breaks nothing.
    (machine.paused / "notes.json").write_text("{")
    assert [each.batch for each in list_paused(machine)] == ["scaling"]


def test_without_a_paused_batch_a_claim_lists_one_directory_twice_a_second(
    machine: MachinePaths, batch: PausedBatch, calls: Calls
) -> None:
    queue = Queue(machine, "q")
    queue.submit([ticket(batch)] * 50)
    began = time.monotonic()
    for _ in range(10):
        assert len(claimed(queue, 1)) == 1
    assert 1 <= calls.listed.count(str(machine.paused)) <= 2 + 2 * (time.monotonic() - began)
