"""Claims that another thread of the worker makes, where the worker would wait for them for long."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_kochi.next.worker.walltime import Walltime
from snakemake_kochi.queue import Capacity, Queue, Resources, find_worker
from snakemake_kochi.queue.entries import queue_lock
from snakemake_kochi.worker.claims import Claimed, Claims
from snakemake_kochi.worker.pace import Pace
from snakemake_kochi.worker.search import Search
from tests.worker.conftest import AHEAD, Site

# Each claim takes so long that the next one is made beside other work.
SLOW_CLAIMS = """
import os, time
import snakemake_kochi.queue.claiming as claiming
claim_lock = claiming.claim_lock
def slow_lock(*arguments):
    time.sleep(0.1)
    open("locking", "w").close()
    return claim_lock(*arguments)
claiming.claim_lock = slow_lock
"""
# What was claimed beside other work is read when the file `read` is there.
HELD_READ = (
    SLOW_CLAIMS
    + """
from snakemake_kochi.queue.unread import UnreadClaims
read = UnreadClaims.read
def held_read(*arguments):
    open("moved", "w").close()
    while not os.path.exists("read"):
        time.sleep(0.01)
    return read(*arguments)
UnreadClaims.read = held_read
import snakemake_kochi.worker.claims as claims
claims._UNKNOWN_INTERVAL = 0.0
take_unknown_due = claims.Claims.take_unknown_due
def noted(self):
    if os.path.exists("moved"):
        open("asked", "w").close()
    return take_unknown_due(self)
claims.Claims.take_unknown_due = noted
"""
)


def until(name: str) -> str:
    return f"echo > there-{name}; until [ -e {name} ]; do sleep 0.01; done"


def start_with_two_jobs(site: Site, change: str, **options: Any) -> tuple[Any, list[int]]:
    """A worker with slow claims, whose two cores have a job each that ends at a command."""
    jobs = [ticket.job for ticket in site.submit(until("one"), until("two"))]
    worker = site.start_changed(change, cores=2, cwd=site.directory, **options)
    for name in ("one", "two"):
        site.wait_for(f"there-{name}")
    (site.directory / "locking").unlink()
    return worker, jobs


def touch(site: Site, name: str) -> None:
    (site.directory / name).touch()


def test_a_worker_sees_the_end_of_a_job_while_it_waits_for_the_lock(site: Site) -> None:
    _, (first, second) = start_with_two_jobs(site, SLOW_CLAIMS, stay=True)
    (third,) = [ticket.job for ticket in site.submit("true")]
    with queue_lock(site.machine, "q"):
        touch(site, "one")
        site.wait_until(site.machine.job(first).result.exists)
        site.wait_until((site.directory / "locking").exists)
        touch(site, "two")
        site.wait_until(site.machine.job(second).result.exists)
        assert site.job(third).state == "waiting"
    assert site.ended(third).result.ok  # type: ignore[union-attr]


def test_a_worker_that_is_told_to_stop_while_it_waits_for_the_lock_holds_nothing(
    site: Site,
) -> None:
    worker, (first, second) = start_with_two_jobs(site, SLOW_CLAIMS, stay=True)
    later = [ticket.job for ticket in site.submit(*["true"] * 4)]
    with queue_lock(site.machine, "q"):
        touch(site, "one")
        site.wait_until((site.directory / "locking").exists)
        os.kill(site.worker_of(worker), signal.SIGTERM)
        site.wait_until(lambda: "draining" in site.machine.worker(0).state.read_text())
    assert worker.wait() == 0
    assert site.job(first).state == "ended"
    waiting = Queue(site.machine, "q").waiting()
    assert [(view.job, view.attempt) for view in waiting] == [
        (second, 2),
        *((job, 1) for job in later),
    ]


def test_what_was_claimed_beside_other_work_starts_once_it_is_known(site: Site) -> None:
    _, (first, _) = start_with_two_jobs(site, HELD_READ, stay=True, idle_wait=0.05)
    later = [ticket.job for ticket in site.submit(*["echo begun"] * 4)]
    touch(site, "one")
    site.wait_until((site.directory / "moved").exists)
    assert site.ended(first).result.ok  # type: ignore[union-attr]
    # The worker looks for claims that it does not know, and leaves these alone.
    for _ in range(2):
        (site.directory / "asked").unlink(missing_ok=True)
        site.wait_until((site.directory / "asked").exists)
    assert site.job(later[0]).state == "running"
    touch(site, "read")
    touch(site, "two")
    for job in later:
        assert site.ended(job).result.attempt == 1  # type: ignore[union-attr]
        assert site.log(job) == "begun\n"


def test_what_a_killed_worker_claimed_beside_other_work_goes_to_another(site: Site) -> None:
    worker, (_, second) = start_with_two_jobs(site, HELD_READ, stay=True)
    later = [ticket.job for ticket in site.submit(*["echo begun"] * 4)]
    touch(site, "one")
    site.wait_until((site.directory / "moved").exists)
    site.kill_worker(worker)
    touch(site, "two")
    site.start(cores=2)
    for job in (second, *later):
        assert site.ended(job).result.ok  # type: ignore[union-attr]
    assert all(site.log(job).splitlines()[-1] == "begun" for job in later)


NOT_READY = (
    SLOW_CLAIMS
    + """
from snakemake_kochi.worker.runners.interface import Runners
is_ready = Runners.is_ready
def is_ready_now(self, ticket):
    return is_ready(self, ticket) and (ticket.name != "head" or os.path.exists("ready"))
Runners.is_ready = is_ready_now
"""
)


def test_nothing_is_claimed_behind_a_ticket_that_is_still_being_prepared(site: Site) -> None:
    site.submit(*["true"] * 12)
    options: Any = {"cores": 2, "stay": True, "idle_wait": 0.2, "heartbeat": 0.5}
    site.start_changed(AHEAD + NOT_READY, cwd=site.directory, **options)
    site.ended(11)
    (head,) = site.submit("true", name="head")
    site.wait_until(lambda: find_worker(site.machine, 0).ahead == (head.job,))
    (site.directory / "locking").unlink()
    later = [ticket.job for ticket in site.submit(*["true"] * 4)]
    beats = find_worker(site.machine, 0).heartbeat
    site.wait_until(lambda: find_worker(site.machine, 0).heartbeat > beats + 3)
    assert not (site.directory / "locking").exists()
    site.start(cores=1, stay=True)
    for job in later:
        assert site.ended(job).result.worker == 1  # type: ignore[union-attr]
    touch(site, "ready")
    assert site.ended(head.job).result.worker == 0  # type: ignore[union-attr]


def test_a_ticket_that_was_claimed_ahead_does_not_start_without_its_time(site: Site) -> None:
    change = (AHEAD + SLOW_CLAIMS) + (
        "from snakemake_kochi.next.worker.walltime import Walltime\n"
        "Walltime.seconds_for_jobs = lambda self: 0.0 if os.path.exists('late') else 1000.0\n"
    )
    site.submit(*["true"] * 8)
    (long,) = site.submit(until("go"))
    later = [ticket.job for ticket in site.submit(*["true"] * 4, runtime_seconds=100)]
    site.start_changed(change, cores=1, cwd=site.directory, stay=True)
    site.wait_for("there-go")
    site.wait_until(lambda: find_worker(site.machine, 0).ahead == tuple(later))
    touch(site, "late")
    touch(site, "go")
    assert site.ended(long.job).result.ok  # type: ignore[union-attr]
    site.wait_until(lambda: len(Queue(site.machine, "q").waiting()) == len(later))
    site.start(cores=1)
    for job in later:
        result: Any = site.ended(job).result
        assert (result.ok, result.attempt, result.worker) == (True, 1, 1)


@pytest.fixture
def claims(site: Site) -> Claims:
    queue = Queue(site.machine, "q")
    made = Claims(site.machine, 0, Capacity(2, 1000), Walltime(None, 0.0), lambda _: queue)
    for _ in range(5):
        made.job_ended(0.05)
    return made


def test_tickets_claimed_behind_others_start_after_them(site: Site, claims: Claims) -> None:
    site.submit(*["true"] * 20)
    queue = Queue(site.machine, "q")
    claims.hold(claims.find(queue, claims.room([Resources()])))
    started = [claims.take_next().ticket.job for _ in range(4)]
    first = claims.held
    found = claims.find(queue, claims.room([]))
    assert not found.at_once, "there is room, but for those before"
    claims.hold(found)
    assert (*started, *claims.held) == tuple(range(4 + len(claims.held)))
    assert len(claims.held) > len(first) > 0


def slow_claims_of(site: Site, cores: int, seconds: float) -> Claims:
    """The claims of a worker that claims slowly, after jobs of this duration."""
    made = Claims(
        *(site.machine, 0, Capacity(cores, 10**6), Walltime(None, 0.0)),
        lambda ticket: Queue(site.machine, ticket.queue),
    )
    site.submit(*["true"] * 16)
    for claim in Queue(site.machine, "q").claim(0, lambda _: "take", limit=16):
        made.hold(Claimed([claim], [], False, cost=0.1))
        assert made.take_next() == claim
        made.job_ended(seconds)
    return made


@pytest.mark.parametrize(("cores", "seconds", "most"), [(64, 10.0, 6), (16, 2.0, 8), (2, 1.0, 2)])
def test_no_more_tickets_are_held_than_could_run_soon_however_often_the_worker_claims(
    site: Site, cores: int, seconds: float, most: int
) -> None:
    claims, queue = slow_claims_of(site, cores, seconds), Queue(site.machine, "q")
    site.submit(*["true"] * 200)
    for _ in range(20):
        if claims.are_few:
            claims.hold(replace(claims.find(queue, claims.room([Resources()] * cores)), cost=0.1))
    assert len(claims.held) == most


def test_a_worker_claims_before_it_holds_no_ticket_but_not_for_each_single_one(site: Site) -> None:
    claims, queue = slow_claims_of(site, 64, 10.0), Queue(site.machine, "q")
    site.submit(*["true"] * 20)
    claims.hold(claims.find(queue, claims.room([Resources()] * 64)))
    wanted = []
    while claims.held:
        wanted.append(claims.are_few)
        claims.take_next()
    assert wanted == [False, False, False, True, True, True]


def test_nothing_is_claimed_behind_an_exclusive_ticket_that_has_not_started_yet(site: Site) -> None:
    claims, queue = slow_claims_of(site, 4, 0.05), Queue(site.machine, "q")
    (exclusive,) = site.submit("true", exclusive=True)
    site.submit(*["true"] * 20)
    claims.hold_first(queue.claim(0, lambda _: "take", limit=1))
    assert not claims.are_few
    claims.claim_from(queue, [])
    assert claims.held == (exclusive.job,)


def test_the_next_queue_is_searched_while_tickets_are_held(site: Site) -> None:
    claims = slow_claims_of(site, 4, 0.05)
    (held, *later) = site.submit(*["true"] * 5, queue="b")
    empty, queue = Queue(site.machine, "a"), Queue(site.machine, "b")
    empty.paths.make()
    claims.hold_first(queue.claim(0, lambda _: "take", limit=1))
    served: Any = SimpleNamespace(
        queues=[empty, queue], is_pausing=lambda _: False, tried=lambda _, call: call()
    )
    search = Search(served, claims, Capacity(4, 10**6))
    assert search.begin([Resources()])
    search.background.wait()
    assert search.take()
    assert claims.held == (held.job, *(ticket.job for ticket in later))


def test_a_worker_that_is_told_to_stop_does_not_go_on_to_its_next_queues(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = slow_claims_of(site, 4, 0.05)
    for name in ("a", "b"):
        site.submit(*["true"] * 5, queue=name)
    queues = [Queue(site.machine, name) for name in ("a", "b")]
    served: Any = SimpleNamespace(
        queues=queues, is_pausing=lambda _: False, tried=lambda _, call: call()
    )
    asked: list[str] = []
    find = claims.find
    monkeypatch.setattr(claims, "_wake", lambda: False)
    monkeypatch.setattr(
        claims, "find", lambda queue, *others: (asked.append(queue.name), find(queue, *others))[1]
    )
    search = Search(served, claims, Capacity(4, 10**6))
    assert search.begin([Resources()])
    search.background.wait()
    assert not search.take()
    assert asked == ["a"]
    assert all(len(queue.waiting()) == 5 for queue in queues)


def test_a_search_of_another_thread_uses_nothing_that_the_loop_changes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, queue = slow_claims_of(site, 2, 0.05), Queue(site.machine, "q")
    site.submit(*["true"] * 20)
    room = claims.room([Resources()])

    def forbid(_: object) -> Any:
        raise AssertionError("this may be changing")

    for name in ("allowance", "next_held", "held", "coming"):
        monkeypatch.setattr(Claims, name, property(forbid))
    for name in ("allowance", "patience", "are_claims_slow"):
        monkeypatch.setattr(Pace, name, property(forbid))
    claims.is_searching = True
    assert claims.find(queue, room).ahead


def test_tickets_that_do_not_start_are_requeued_however_often_the_worker_claims(
    site: Site, claims: Claims
) -> None:
    site.submit(*["true"] * 20)
    queue = Queue(site.machine, "q")
    claims.hold(claims.find(queue, claims.room([Resources()] * 2)))
    deadline = claims.deadline
    claims.hold(claims.find(queue, claims.room([Resources()] * 2)))
    claims.claim_from(queue, [Resources()] * 2)
    assert claims.deadline == deadline


def test_claims_of_another_thread_are_not_taken_for_unknown_ones(claims: Claims) -> None:
    claims.is_searching = True
    assert not claims.take_unknown_due()
    assert not claims.is_empty
    claims.is_searching = False
    assert claims.take_unknown_due()
    assert claims.is_empty


def test_a_requeue_is_not_repeated_while_another_thread_may_claim_that_ticket(
    site: Site, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.submit("true")
    queue = Queue(site.machine, "q")
    (first,) = claims.claim_from(queue, []).at_once
    requeue = Queue.requeue_all

    def lose_the_answer(*arguments: Any) -> None:
        requeue(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "requeue_all", lose_the_answer)
        claims.requeue([first])
    claims.is_searching = True
    found = claims.find(queue, claims.room([]))
    monkeypatch.setattr(claims, "_retry_at", 0.0)
    claims.retry()
    assert claims.deadline > 0.0, "the loop would not sleep"
    claims.is_searching = False
    claims.hold(found)
    claims.retry()
    assert [claim.path for claim in found.at_once] == [first.path]
    assert first.path.exists()
