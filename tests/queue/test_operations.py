"""How many metadata operations the queue costs, counted by a filesystem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY, result_of

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import Inbox, Queue, Ticket


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    from bench.slow_filesystem import SlowFilesystem

    with SlowFilesystem(tmp_path / "backing", tmp_path / "mounted") as mounted:
        yield mounted


@pytest.fixture
def machine(slow: Any) -> MachinePaths:
    return Root(slow.path / "root").machine("local")


def operations(slow: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in slow.count():
        found[each.operation] += each.count
    return found


def test_a_controller_takes_a_result_in_by_one_open(
    slow: Any, machine: MachinePaths, ticket: Callable[..., Ticket]
) -> None:
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(str(number), controller=inbox.identity) for number in range(20)])
    for claim in queue.claim(4, lambda _: "take", limit=20):
        assert queue.finish(claim, result_of(claim))
    slow.count()
    assert len(inbox.wait(0)) == 20
    found = operations(slow)
    changing = {name: n for name, n in found.items() if name not in ("lookup", "getattr")}
    assert changing == {"readdir": 1, "open": 20, "create": 1}, "the jobs are noted in one file"
    assert found["lookup"] + found["getattr"] <= 20 * 2 + 10
    inbox.close()


def test_a_look_into_a_queue_without_tickets_costs_one_call_and_finds_the_next_ticket(
    slow: Any, machine: MachinePaths, ticket: Callable[..., Ticket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snakemake_kochi.files.kept._SETTLING", 0.0)
    queue = Queue(machine, "q")
    queue._recovery_due = math.inf  # how often it looks for dead workers is another matter

    def look() -> list[int]:
        claims = queue.claim(4, lambda _: "take", is_poll=True)
        return [claim.ticket.job for claim in claims]

    for number in range(3):
        queue.submit([ticket("next")])
        assert look() == [number]
        assert look() == look() == []
        slow.count()
        for _ in range(10):
            assert look() == []
        found = operations(slow)
        assert set(found) <= {"getattr"} and found.total() <= 10, found


def test_a_controller_that_was_not_notified_lists_nothing_without_a_look(
    slow: Any, machine: MachinePaths, ticket: Callable[..., Ticket]
) -> None:
    inbox = Inbox.create(machine)
    slow.count()
    assert inbox.wait(0, is_look=False) == []
    assert operations(slow) == {}
    queue = Queue(machine, "q")
    queue.submit([ticket("a", controller=inbox.identity)])
    (claim,) = queue.claim(4, lambda _: "take", limit=1)
    assert queue.finish(claim, result_of(claim))
    assert len(inbox.wait(0, is_look=False)) == 1, "notified"
    inbox.close()


@pytest.mark.parametrize(("count", "most"), [(1, 36), (2, 42), (8, 52), (80, 200)])
def test_a_submission_costs_two_operations_a_ticket_and_thirty_five_for_all(
    slow: Any, machine: MachinePaths, ticket: Callable[..., Ticket], count: int, most: int
) -> None:
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    slow.set_delay(0.005)  # longer than what the kernel has just learned serves further calls
    slow.count()
    queue.submit([ticket() for _ in range(count)])
    found = operations(slow)
    slow.set_delay(0.0)
    # Others wait in its shard, and it is one rename all the same; a second one is that of ids.json.
    assert found["rename"] == 1 + (count if count <= 2 else 1)
    assert found["create"] == count + 2 and found["mkdir"] == (count > 2)
    assert found["rmdir"] == 0 and found["readdir"] == 1, "of the workers"
    assert found.total() <= most


def test_a_claim_costs_five_operations_a_ticket_and_eleven_for_all(
    slow: Any, machine: MachinePaths, ticket: Callable[..., Ticket]
) -> None:
    counts = []
    # The kernel asks once more for what it has known for a second, so on a busy computer some of
    # the claims may take one call more.
    for name in ("q", "r", "s"):
        queue = Queue(machine, name)
        queue._recovery_due = math.inf  # how often it looks for dead workers is another matter
        queue.submit([ticket() for _ in range(20)])
        assert len(queue.claim(4, lambda _: "take", limit=2)) == 2, "the next ones are like these"
        slow.set_delay(0.02)  # longer than what the kernel has just learned serves further calls
        assert len(queue.claim(4, lambda _: "take", limit=8, unread=(8, 0))) == 8
        counts.append(operations(slow))
        slow.set_delay(0.0)
    fewest = min(counts, key=lambda count: count.total())
    # For each ticket, the kernel looks up both names and renames it, and looks up the new name and
    # opens it. The rest: the file of the lock, paused batches, the workers of the queue, its shards
    # and one of them. Nothing is asked about the directory of the queue.
    assert fewest == {
        "lookup": 8 * 3 + 2,
        "rename": 8,
        "open": 8 + 1,
        "flock": 2,
        "getattr": 3,
        "readdir": 3,
    }
