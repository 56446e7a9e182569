"""The explanation of a job's state in words."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from support import result_of

from snakemake_kochi.errors import NameNotFoundError
from snakemake_kochi.files import make_directory, to_json, write_exclusively
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import (
    Attempt,
    Capacity,
    EndedAttempt,
    Queue,
    Resources,
    WorkerState,
    attempts,
    cancel,
    explain,
    find_job,
    reasons,
    workers,
)
from snakemake_kochi.queue.ticket import now
from snakemake_kochi.queue.wakeup import assign_queues, subscribe
from snakemake_kochi.queue.workers import RequestedWorker, note_requested

HERE = ProcessIdentity.of(os.getpid())
NODE = this_node()
SERVE_IT = "start one with: kochi work -q q -b"


def to_start(queue):
    return f"kochi work -q {queue} -b"


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch):
    """On a slow computer, seconds pass between a time and the question how long ago it was."""
    moment = datetime.now(UTC)

    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return moment

    for names in (vars(workers), globals()):
        monkeypatch.setitem(names, "datetime", Stopped)


def ago(seconds):
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


@pytest.fixture
def serve(machine):
    """Register a worker of the queue, as alive as the test is."""

    def register(number, cores=4, **fields):
        given = {
            "state": "running",
            "process": HERE,
            "node": NODE,
            "queues": ("q",),
            "capacity": Capacity(cores, 8000),
            "started": now(),
            "updated": now(),
            **fields,
        }
        state = WorkerState(number, **given)
        make_directory(machine.worker(number).directory)
        machine.worker(number).state.write_bytes(to_json(state.to_dict()))
        subscribe(machine.queue("q"), number)
        return state

    return register


def start(machine, claim, seconds=0):
    """As a worker does: the attempt's file is there before the job's first instruction."""
    paths = machine.job(claim.ticket.job)
    make_directory(paths.directory)
    attempt = Attempt(
        claim.ticket.job, claim.ticket.attempt, claim.nonce, claim.worker, NODE, HERE, ago(seconds)
    )
    assert write_exclusively(paths.attempt(claim.ticket.attempt), to_json(attempt.to_dict()))
    return attempt


def ended(machine, claim, reason, detail=""):
    begun = json.loads(machine.job(claim.ticket.job).attempt(claim.ticket.attempt).read_text())
    attempt = EndedAttempt(
        claim.ticket.job,
        claim.ticket.attempt,
        claim.nonce,
        claim.worker,
        "n1",
        reason,
        now(),
        detail,
        begun,
    )
    path = machine.job(claim.ticket.job).ended(claim.ticket.attempt)
    path.write_bytes(to_json(attempt.to_dict()))


def dead_process():
    process = subprocess.Popen(["true"])
    identity = ProcessIdentity.of(process.pid)
    process.wait()
    return identity


def test_no_worker_serves_its_queue(machine, ticket):
    Queue(machine, "q").submit([ticket()])
    assert explain(machine, 0, to_start) == f"no worker serves queue q; {SERVE_IT}"


def test_a_worker_of_its_queue_is_requested(machine, ticket):
    Queue(machine, "q").submit([ticket()])
    make_directory(machine.worker(3).directory)
    assign_queues(machine, 3, ["q"])
    note_requested(machine, RequestedWorker(3, "17", "owner"))
    assert explain(machine, 0, to_start) == (
        "no worker serves queue q yet; worker 3 waits for its allocation 17"
    )
    machine.worker(3).release.touch()
    assert explain(machine, 0, to_start) == f"no worker serves queue q; {SERVE_IT}"


def test_the_workers_of_its_queue_have_left_or_died_or_serve_other_runs(machine, ticket, serve):
    Queue(machine, "q").submit([ticket(controller="me")])
    serve(0, state="left")
    serve(1, process=dead_process())
    serve(2, controller="they")
    assert reasons(machine, find_job(machine, 0), to_start) == [
        f"no worker serves queue q; {SERVE_IT}",
        f"worker 1 on {NODE.host} died",
        "worker 2 of this queue runs only jobs of another run",
    ]
    serve(3, controller="me")
    assert explain(machine, 0, to_start).startswith("worker 3 is idle")


def test_no_worker_of_its_queue_could_ever_run_it(machine, ticket, serve):
    queue = Queue(machine, "q")
    queue.submit([ticket(resources=Resources(cores=8))])
    queue.submit([ticket(resources=Resources(runtime_seconds=3 * 3600))])
    queue.submit([ticket(resources=Resources(gpus=1))])
    serve(3, until=(datetime.now(UTC) + timedelta(hours=2, seconds=30)).isoformat())
    never = "no worker of queue q can ever run it; worker 3: "
    assert explain(machine, 0, to_start) == f"{never}8 cores needed, 4 available"
    assert explain(machine, 1, to_start) in (
        f"{never}3 hours needed, 2 hours and 30 seconds left",
        f"{never}3 hours needed, 2 hours and 29 seconds left",
    )
    assert explain(machine, 2, to_start) == f"{never}1 GPU needed, none available"
    for number in range(4, 10):
        serve(number)
    assert explain(machine, 2, to_start).endswith("; and 4 more workers")


def test_its_workers_are_busy_and_other_jobs_are_before_it(machine, ticket, serve):
    queue = Queue(machine, "q")
    whole = Resources(exclusive=True)
    queue.submit([ticket(resources=whole), *(ticket() for _ in range(600))])
    (claim,) = queue.claim(3, lambda _: "take")
    start(machine, claim)
    serve(3, running={0: ago(125)})
    busy = "worker 3 runs job 0 (exclusive) for 2 minutes and 5 seconds"
    assert explain(machine, 1, to_start) == busy
    assert explain(machine, 2, to_start) == f"1 other job waits before it; {busy}"
    assert explain(machine, 600, to_start) == f"599 other jobs wait before it; {busy}"


def test_several_jobs_of_a_worker_are_counted_and_a_small_worker_is_named(machine, ticket, serve):
    queue = Queue(machine, "q")
    queue.submit([ticket(resources=Resources(cores=2)) for _ in range(4)])
    for claim in queue.claim(0, lambda _: "take", limit=3):
        start(machine, claim)
    serve(0, running={0: ago(3), 1: ago(61), 2: ago(2)})
    serve(1, cores=1)
    assert explain(machine, 3, to_start) == (
        "worker 0 runs job 1 for 1 minute and 1 second and 2 more; "
        "worker 1: 2 cores needed, 1 available"
    )


def test_its_worker_is_being_stopped(machine, ticket, serve):
    queue = Queue(machine, "q")
    queue.submit([ticket(), ticket()])
    (claim,) = queue.claim(3, lambda _: "take")
    start(machine, claim)
    serve(3, state="draining", reason="SIGTERM")
    assert explain(machine, 0, to_start) == (
        f"worker 3 on {NODE.host} is being stopped (SIGTERM): it ends the job and requeues it"
    )
    assert explain(machine, 1, to_start) == (
        f"no worker of queue q claims further jobs; {SERVE_IT}; worker 3 is being stopped (SIGTERM)"
    )


def test_it_is_claimed_and_not_begun(machine, ticket, serve):
    queue = Queue(machine, "q")
    queue.submit([ticket(), ticket()])
    first, _second = queue.claim(3, lambda _: "take", limit=2)
    start(machine, first)
    serve(3, running={0: ago(0)})
    assert explain(machine, 1, to_start) == (
        f"worker 3 on {NODE.host} has claimed it and starts it next; worker 3 runs job 0"
    )


def test_it_runs_and_is_cancelled_and_its_worker_dies(machine, ticket, serve):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    (claim,) = queue.claim(3, lambda _: "take")
    serve(3)
    start(machine, claim, seconds=3723)
    on = f"worker 3 on {NODE.host}"
    assert explain(machine, 0, to_start) == f"{on} runs it for 1 hour and 2 minutes"
    cancel(machine, 0)
    assert explain(machine, 0, to_start) == f"{on} is ending its processes"
    serve(3, process=dead_process())
    assert explain(machine, 0, to_start).startswith(f"{on} died")


def test_it_waits_again_since_its_first_attempts_ended(machine, ticket, serve):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    for worker, reason, detail in ((1, "lost", ""), (2, "drained", "SIGTERM")):
        (claim,) = queue.claim(worker, lambda _: "take")
        start(machine, claim)
        ended(machine, claim, reason, detail)
        queue.requeue(claim)
    assert reasons(machine, find_job(machine, 0), to_start) == [
        f"no worker serves queue q; {SERVE_IT}",
        "attempt 1, worker 1 on n1: lost",
        "attempt 2, worker 2 on n1: drained (SIGTERM)",
    ]


def test_its_end_is_described_with_its_worker(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket(), ticket(), ticket()])
    (claim,) = queue.claim(3, lambda _: "take")
    detail = "ran for longer than its 90 seconds"
    queue.finish(claim, result_of(claim, "timeout", node="n1", detail=detail))
    assert explain(machine, 0, to_start) == (
        "timeout: ran for longer than its 90 seconds, attempt 1 on worker 3 on n1"
    )
    cancel(machine, 1)
    assert explain(machine, 1, to_start) == "cancelled; no worker had it"
    with pytest.raises(NameNotFoundError):
        explain(machine, 7, to_start)


def test_attempts_are_listed_with_their_ends_and_late_results(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    assert attempts(machine, find_job(machine, 0)) == []
    (first,) = queue.claim(1, lambda _: "take")
    start(machine, first, seconds=60)
    ended(machine, first, "lost")
    queue.requeue(first)
    (second,) = queue.claim(2, lambda _: "take")
    start(machine, second, seconds=30)
    before, current = attempts(machine, find_job(machine, 0))
    assert (before.worker, before.ending, before.counts) == (1, "lost", False)
    assert before.seconds > 59
    assert (current.worker, current.ending, current.counts) == (2, None, True)
    assert current.seconds >= 29
    assert not queue.finish(first, result_of(first, "failed", exit_status=7))
    assert queue.finish(second, result_of(second))
    told = [
        (a.attempt, a.worker, a.ending, a.counts) for a in attempts(machine, find_job(machine, 0))
    ]
    assert told == [
        (1, 1, "lost", False),
        (1, 1, "ignored because it came too late: exit status 7", False),
        (2, 2, "succeeded", True),
    ]


def test_a_damaged_ticket_is_reported(machine, ticket, caplog):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    queue.paths.waiting_ticket(0, 1).write_text("{")
    assert explain(machine, 0, to_start).startswith("its ticket is damaged")
