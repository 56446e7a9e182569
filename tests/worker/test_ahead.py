"""Tickets that a worker claims ahead where jobs are short, and tickets that it prefers."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from file_calls import note_calls

from snakemake_kochi.files import to_json
from snakemake_kochi.next.worker.walltime import Walltime
from snakemake_kochi.queue import Capacity, Kind, Queue, Resources, cancel, find_worker
from snakemake_kochi.queue.recovery import requeue
from snakemake_kochi.queue.skipped import ClaimSettings
from snakemake_kochi.worker.claims import Claims
from snakemake_kochi.worker.queues import Looks
from tests.worker.conftest import AHEAD, COUNT_WAKE_UPS

SHORT = ["true"] * 8
UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"


def start_with_some_ahead(site, *later):
    """A worker that has claimed a long job and the `later` ones after several short ones."""
    tickets = site.submit(*SHORT, UNTIL_GO, *later)
    worker = site.start(cores=1, stay=True, idle_wait=0.2)
    site.wait_until(site.machine.job(len(SHORT)).attempt(1).exists, "the long job")
    return worker, [ticket.job for ticket in tickets[len(SHORT) + 1 :]]


def test_short_jobs_are_claimed_ahead_and_run_in_their_order(site):
    site.submit(*(f"echo {i} >> order" for i in range(60)))
    worker = site.start(cores=1)
    assert worker.wait() == 0
    assert (site.directory / "order").read_text().split() == [str(i) for i in range(60)]
    assert all(site.job(i).result.attempt == 1 for i in range(60))


def test_tickets_held_behind_a_long_job_are_requeued_and_claimed_by_an_idle_worker(site):
    _, held = start_with_some_ahead(site, *(f"echo {i} > out{i}" for i in range(6)))
    site.start(cores=1, stay=True, idle_wait=0.2)
    for job in held:
        result = site.ended(job).result
        assert (result.ok, result.attempt, result.worker) == (True, 1, 1)
    assert not site.job(len(SHORT)).result, "the long job still runs"
    (site.directory / "go").touch()


def test_a_worker_sleeps_while_it_holds_tickets(site):
    tickets = site.submit(*SHORT, UNTIL_GO, *["true"] * 5)
    site.start_changed(
        COUNT_WAKE_UPS,
        cores=1,
        stay=True,
        idle_wait=0.2,
        cwd=site.directory,
    )
    site.wait_until(site.machine.job(len(SHORT)).attempt(1).exists, "the long job")
    before = site.wake_ups()
    queue = Queue(site.machine, "q")
    site.wait_until(lambda: len(queue.waiting()) == 5, "the others are requeued")
    # It held them for more than a second, with some looks.
    assert site.wake_ups() - before < 100
    (site.directory / "go").touch()
    assert site.ended(tickets[-1].job).result.ok


def test_the_tickets_that_a_worker_holds_are_read_from_its_state(site):
    site.submit("true")
    assert site.start(cores=1).wait() == 0
    state = find_worker(site.machine, 0)
    assert state.ahead == ()
    held = replace(state, ahead=(3, 4))
    site.machine.worker(0).state.write_bytes(to_json(held.to_dict()))
    assert find_worker(site.machine, 0) == held


def test_tickets_of_a_killed_worker_that_never_began_are_not_blamed(site):
    site.submit("true")
    assert site.start(cores=1).wait() == 0
    (ticket,) = site.submit("true")
    left = find_worker(site.machine, 0)
    # Each of these workers died after it had claimed the ticket ahead.
    for number in range(1, 5):
        dead = replace(left, worker=number, state="running", ahead=(ticket.job,))
        directory = site.machine.worker(number).directory
        directory.mkdir(mode=0o700)
        site.machine.worker(number).state.write_bytes(to_json(dead.to_dict()))
        queue = Queue(site.machine, "q")
        assert [claim.ticket.attempt for claim in queue.claim(number, lambda _: "take")] == [number]
        assert len(queue.recover()) == 1
    assert site.start(cores=1, worker=9, queues=("q",)).wait() == 0
    assert site.job(ticket.job).result.ok


def test_a_ticket_held_ahead_is_cancelled_without_being_run(site):
    _, held = start_with_some_ahead(site, "touch ran", "touch kept")
    assert cancel(site.machine, held[0]) in ("cancelling", "cancelled")
    result = site.ended(held[0]).result
    assert result.reason == "cancelled"
    (site.directory / "go").touch()
    assert site.ended(held[1]).result.ok
    assert not (site.directory / "ran").exists()
    assert not site.machine.job(held[0]).attempt(1).exists()


def test_a_worker_that_is_told_to_stop_requeues_the_tickets_that_it_holds(site):
    worker, held = start_with_some_ahead(site, *["true"] * 5)
    worker.send_signal(signal.SIGUSR1)
    assert worker.wait() == 0
    waiting = Queue(site.machine, "q").waiting()
    assert [(view.job, view.attempt) for view in waiting] == [
        (len(SHORT), 2),
        *((job, 1) for job in held),
    ]
    assert find_worker(site.machine, 0).ahead == ()


SLOW_REQUEUES = """
import time
import snakemake_kochi.queue.recovery as recovery
requeue = recovery.requeue
def slow(machine, paths, entry, ticket, end):
    if ticket.name != "long":
        time.sleep(0.2)
        open("requeued", "ab").write(b".")
    return requeue(machine, paths, entry, ticket, end)
recovery.requeue = slow
"""


def test_jobs_are_told_to_end_before_the_tickets_that_the_worker_holds_are_requeued(site):
    told = "trap 'wc -c < requeued > told; exit 0' TERM; echo > there; "
    site.submit(*SHORT)
    site.submit(told + "while :; do sleep 0.01; done", name="long")
    held = [ticket.job for ticket in site.submit(*["true"] * 6)]
    (site.directory / "requeued").touch()
    worker = site.start_changed(AHEAD + SLOW_REQUEUES, cores=1, cwd=site.directory, stay=True)
    site.wait_for("there")
    site.wait_until(lambda: find_worker(site.machine, 0).ahead == tuple(held))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert (site.directory / "told").read_text().split() == ["0"]
    assert (site.directory / "requeued").read_text() == "......"


@pytest.fixture
def claims_after(site):
    """Makes the claims of a worker after `jobs` jobs of this duration in seconds, if any."""

    def make(seconds=None, cores=2, first=(), jobs=5):
        queue = Queue(site.machine, "q")
        given = (Capacity(cores, 1000), Walltime(None, 0.0), lambda _: queue)
        claims = Claims(site.machine, 0, *given, first=first)
        for _ in range(jobs if seconds is not None else 0):
            claims.job_ended(seconds)
        return claims

    return make


def jobs_of(claims):
    return [claim.ticket.job for claim in claims]


def test_how_much_is_claimed_ahead_is_bounded_by_time_and_number(claims_after):
    assert claims_after().allowance() == 0, "nothing is known yet"
    assert claims_after(0.0).allowance() == 32
    assert claims_after(0.0, cores=64).allowance() == 32
    assert 4 <= claims_after(0.05).allowance() <= 6
    assert claims_after(0.2).allowance() == 0


def test_the_first_jobs_let_a_worker_claim_only_a_few_ahead(claims_after):
    assert [claims_after(0.0, jobs=jobs).allowance() for jobs in range(5)] == [0, 2, 4, 6, 32]


@pytest.mark.parametrize(("cost", "ahead"), [(0.05, 2), (0.2, 8), (0.4, 8), (1.0, 16)])
def test_the_slower_a_claim_the_more_is_claimed_ahead(site, claims_after, monkeypatch, cost, ahead):
    claims = claims_after(0.5)
    site.submit("true")
    clock = itertools.count(step=cost)
    monkeypatch.setattr(
        "snakemake_kochi.worker.claims.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    assert len(claims.claim_from(Queue(site.machine, "q"), []).at_once) == 1
    assert claims.allowance() == ahead


def test_an_exclusive_ticket_is_not_claimed_ahead(site, claims_after):
    claims = claims_after(0.01)
    site.submit(*["true"] * 3)
    site.submit("true", exclusive=True)
    site.submit("true")
    claimed = claims.claim_from(Queue(site.machine, "q"), [])
    assert (jobs_of(claimed.at_once), claimed.is_full) == ([0, 1], True)
    assert claims.held == (2,)


def test_a_ticket_whose_requeue_only_seemed_to_fail_is_not_taken_from_its_next_attempt(
    site, claims_after, monkeypatch
):
    site.submit("true")
    queue, claims = Queue(site.machine, "q"), claims_after()
    (first,) = claims.claim_from(queue, []).at_once
    requeue_all = Queue.requeue_all

    def lose_the_answer(*arguments):
        requeue_all(*arguments)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(Queue, "requeue_all", lose_the_answer)
        claims.requeue([first])
    assert not claims.is_empty, "it is to be repeated"
    (anew,) = claims.claim_from(queue, []).at_once
    assert anew.path == first.path
    monkeypatch.setattr(claims, "_retry_at", 0.0)
    claims.retry()
    assert anew.path.exists()
    assert claims.is_empty


def test_tickets_are_requeued_under_one_lock_and_a_fault_with_one_keeps_no_other(
    site, claims_after, monkeypatch
):
    tickets = site.submit(*["true"] * 5)
    queue, claims = Queue(site.machine, "q"), claims_after(0.01)
    claimed = claims.claim_from(queue, [])
    claims.hold_first(claimed.at_once)
    failing = tickets[1].job

    def fail(machine, paths, entry, *arguments):
        if entry.job == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return requeue(machine, paths, entry, *arguments)

    with monkeypatch.context() as patched, note_calls() as calls:
        patched.setattr("snakemake_kochi.queue.recovery.requeue", fail)
        claims.requeue_held()
    assert len(calls.locks()) == 1
    assert [view.job for view in queue.waiting()] == [0, 2, 3, 4]
    monkeypatch.setattr(claims, "_retry_at", 0.0)
    claims.retry()
    assert [view.job for view in queue.waiting()] == [0, 1, 2, 3, 4]
    assert claims.is_empty


@pytest.fixture
def make_preferring(site, claims_after):
    """Makes a function that claims for a worker with two cores, requested for jobs of ten minutes.

    The function returns the jobs that can start beside those that run.
    """
    kind = Kind(Resources(runtime_seconds=500), Resources(cores=2, runtime_seconds=700))
    claims = claims_after(first=(kind,))

    def make(settings=None):
        queue = Queue(site.machine, "q", settings=settings)
        return lambda running=(): jobs_of(claims.claim_from(queue, list(running)).at_once)

    return make


@pytest.fixture
def preferring(make_preferring):
    return make_preferring()


def test_jobs_for_which_a_worker_was_requested_are_claimed_before_earlier_ones(site, preferring):
    site.submit(*["true"] * 900, runtime_seconds=60)
    site.submit("true", runtime_seconds=600)
    site.submit("true", runtime_seconds=1000)
    site.submit("true", runtime_seconds=600, cores=2)
    assert preferring([Resources()]) == [900]
    # A ticket that does not fit yet is not overtaken, or it would never fit.
    assert preferring([Resources()]) == []
    assert preferring() == [902]
    # Without a job of its own kind the worker claims others.
    assert preferring() == [0, 1]


def test_a_worker_looks_only_a_little_way_ahead_for_its_own_kind(site, preferring):
    site.submit(*["true"] * 1500, runtime_seconds=60)
    site.submit("true", runtime_seconds=600)
    with note_calls() as calls:
        assert preferring() == [0, 1]
        assert 1000 <= len(calls.tickets()) < 1010
        calls.clear()
        for job in range(2, 42, 2):
            assert preferring() == [job, job + 1]
    # Each claim opens the two, and two new ones.
    assert len(calls.tickets()) <= 20 * 4


def test_the_first_ticket_is_not_skipped_for_ever(site, preferring):
    site.submit("true", runtime_seconds=60, cores=2)
    site.submit(*["true"] * 100, runtime_seconds=600)
    own = []
    # One of two running jobs ends at a time, so the wide job never fits meanwhile.
    while taken := preferring([Resources()]):
        own += taken
    assert own == list(range(1, 33))
    assert preferring() == [0], "it starts when it fits"
    assert preferring([Resources()]) == [33]


def test_the_first_ticket_is_not_skipped_for_long(site, make_preferring):
    preferring = make_preferring(ClaimSettings(longest_before=0.2))
    site.submit("true", runtime_seconds=60, cores=2)
    site.submit(*["true"] * 3, runtime_seconds=600)
    assert preferring([Resources()]) == [1]
    time.sleep(0.3)
    assert preferring([Resources()]) == []
    assert preferring() == [0]


def test_nothing_is_claimed_ahead_beside_an_exclusive_job(site, claims_after):
    site.submit(*["true"] * 3)
    claims = claims_after(0.01)
    claimed = claims.claim_from(Queue(site.machine, "q"), [Resources(exclusive=True)])
    assert (claimed.at_once, claims.held, claimed.is_full) == ([], (), True)


def test_a_ticket_that_can_never_run_is_not_claimed_ahead(site, claims_after):
    site.submit(*["true"] * 2)
    site.submit("true", cores=3)
    site.submit("true")
    claims = claims_after(0.01)
    claimed = claims.claim_from(Queue(site.machine, "q"), [])
    assert (*jobs_of(claimed.at_once), *claims.held) == (0, 1, 3)


def test_without_short_jobs_before_only_what_fits_is_claimed(site, claims_after):
    site.submit(*["true"] * 5)
    claims = claims_after()
    claimed = claims.claim_from(Queue(site.machine, "q"), [])
    assert (len(claimed.at_once), claims.held, claimed.is_full) == (2, (), False)


def test_no_more_tickets_are_read_than_there_are_free_cores(site, claims_after):
    site.submit(*["true"] * 5)
    with note_calls() as calls:
        claimed = claims_after().claim_from(Queue(site.machine, "q"), [Resources()])
    assert (len(claimed.at_once), claimed.is_full) == (1, False)
    assert len(calls.tickets()) == 1


def test_an_idle_worker_looks_less_and_less_often_until_something_happens():
    now = 1000.0
    looks = Looks(2.0, lambda: now)
    assert looks.is_due

    def wait_after(cost=0.0, found=False):
        nonlocal now
        looks.begin()
        now += cost
        looks.end(found)
        return looks.deadline - now

    waits = [wait_after() for _ in range(9)]
    assert 1.0 <= waits[0] <= 2.0
    assert all(5.0 <= wait <= 10.0 for wait in waits[-3:])
    assert len(set(waits[-3:])) == 3, "jittered"
    looks.reset()
    assert 1.0 <= wait_after(found=True) <= 2.0
    assert 1.0 <= wait_after() <= 2.0, "something was found"
    assert 25.0 <= wait_after(cost=1.0) <= 50.0, "a slow filesystem"


def test_no_look_is_due_while_one_lasts_in_another_thread():
    now = 1000.0
    looks = Looks(2.0, lambda: now)
    looks.begin()
    assert not looks.is_due
    now += 0.1
    looks.end(found=False)
    assert looks.deadline - now >= 3.75, "fifty times as long as the look took"


def test_a_worker_with_jobs_looks_for_orders_every_five_seconds_at_least():
    now = 1000.0
    looks = Looks(2.0, lambda: now)
    waits = []
    for number in range(20):
        if number % 3:
            looks.skip()
        else:
            looks.begin()
            looks.end(found=False, is_busy=True)
        waits.append(looks.deadline - now)
    assert waits[0] <= 2.0
    assert all(2.5 <= wait <= 5.0 for wait in waits[-9:])
    looks.reset()
    looks.skip()
    assert looks.deadline - now <= 2.0, "a job has ended"
