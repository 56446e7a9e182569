"""Tickets with one label go to different workers, if that costs no worker its work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from file_calls import Calls

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Queue, Ticket
from snakemake_kochi.queue.claiming import Claim, Claimer
from snakemake_kochi.queue.spreading import MOST_LEFT, MOST_TIMES
from snakemake_kochi.queue.wakeup import subscribe

MakeTicket = Callable[..., Ticket]


def submit(machine: MachinePaths, ticket: MakeTicket, *labels: str) -> None:
    """A ticket for each label; an empty one stands for none."""
    tickets = [ticket(each or "none", labels={"spread": each} if each else {}) for each in labels]
    Queue(machine, "q").submit(tickets)


def claim(claimer: Claimer, worker: int, limit: int = 1, is_idle: bool = True) -> list[str]:
    found = claimer.claim(worker, lambda _: "take", limit, is_idle=is_idle)
    return [each.ticket.name for each in found]


def take_turns(machine: MachinePaths, workers: int) -> Counter[tuple[str, int]]:
    """How many tickets with each label each worker gets, if each claims one after the other."""
    claimers = [Claimer(machine, "q") for _ in range(workers)]
    counts: Counter[tuple[str, int]] = Counter()
    while True:
        before = counts.total()
        for worker, claimer in enumerate(claimers):
            counts.update((name, worker) for name in claim(claimer, worker))
        if counts.total() == before:
            return counts


def test_the_duplicates_of_each_point_spread_over_workers(
    machine: MachinePaths, ticket: MakeTicket
) -> None:
    points = [f"p{number}" for number in range(6)]
    # In the worst order: turn and turn about, each worker would get all of a point.
    submit(machine, ticket, *[point for _ in range(2) for point in points])
    counts = take_turns(machine, 2)
    assert counts == {(point, worker): 1 for point in points for worker in range(2)}


def test_one_worker_alone_takes_all(machine: MachinePaths, ticket: MakeTicket) -> None:
    submit(machine, ticket, "a", "a", "b", "", "a")
    claimer = Claimer(machine, "q")
    assert [claim(claimer, 1) for _ in range(6)] == [["a"], ["b"], ["none"], ["a"], ["a"], []]


def test_tickets_without_a_label_keep_their_order(
    machine: MachinePaths, ticket: MakeTicket
) -> None:
    submit(machine, ticket, "", "", "")
    jobs = [each.ticket.job for each in Claimer(machine, "q").claim(1, lambda _: "take", 3)]
    assert jobs == sorted(jobs)


def test_a_worker_with_jobs_leaves_them_while_others_serve_the_queue(
    machine: MachinePaths, ticket: MakeTicket
) -> None:
    submit(machine, ticket, "a", "a", "b", "b")
    claimer = Claimer(machine, "q")
    for worker in (1, 2):
        subscribe(machine.queue("q"), worker)
    assert claim(claimer, 1, limit=4) == ["a", "b"]
    assert claim(claimer, 1, limit=2, is_idle=False) == []
    assert claim(Claimer(machine, "q"), 2, limit=1) == ["a"]
    # It has nothing else to do.
    assert claim(claimer, 1, limit=2) == ["b"]


def test_a_ticket_is_overtaken_a_limited_number_of_times(
    machine: MachinePaths, ticket: MakeTicket
) -> None:
    submit(machine, ticket, "a", "a", *[""] * (MOST_TIMES + 5))
    claimer = Claimer(machine, "q")
    names = [claim(claimer, 1)[0] for _ in range(MOST_TIMES + 2)]
    assert names == ["a", *["none"] * MOST_TIMES, "a"]


def test_the_cost_of_a_claim_does_not_grow_with_the_number_of_tickets(
    machine: MachinePaths, ticket: MakeTicket, calls: Calls
) -> None:
    def cost(more: int) -> tuple[int, int]:
        """The files that the next two claims open."""
        submit(machine, ticket, *["a"] * more)
        claimer = Claimer(machine, "q")
        assert claim(claimer, 1) == ["a"]
        found = []
        for _ in range(2):
            calls.clear()
            assert claim(claimer, 1) == ["a"]
            found.append(len(calls.tickets()))
        Queue(machine, "q").cancel_jobs()
        return found[0], found[1]

    first, second = cost(2 * MOST_LEFT)
    # Once it opens those that it leaves; afterwards it remembers them.
    assert first <= MOST_LEFT + 5
    assert second <= 8
    assert cost(10 * MOST_LEFT) == (first, second)


def test_a_claim_is_whole(machine: MachinePaths, ticket: MakeTicket) -> None:
    submit(machine, ticket, "a", "a")
    claimer = Claimer(machine, "q")
    found: list[Claim] = []
    for _ in range(2):
        found += claimer.claim(1, lambda _: "take")
    assert [each.path.exists() for each in found] == [True, True]
    assert claimer.is_empty()
