"""The queue beside a model of it: any order of steps, any death in the middle of one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from faults.injection import run_scene
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from support import begin, result_of

from snakemake_kochi.files import make_directory, to_json, write_exclusively
from snakemake_kochi.paths import Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import (
    Capacity,
    Inbox,
    Queue,
    Resources,
    Ticket,
    WorkerState,
    allocate_ids,
    cancel,
    find_job,
    recover,
)
from snakemake_kochi.queue.attempt_file import AttemptFile
from snakemake_kochi.queue.result import find_attempt, read_ended_attempt, read_result
from snakemake_kochi.queue.ticket import now

TAKEN, PASSED, STOPPED = 1, 2, 3  # by the number of its cores a ticket is taken, passed, stops
STEPS = st.integers(1, 40)


def accept(ticket):
    return {TAKEN: "take", PASSED: "skip", STOPPED: "stop"}[ticket.resources.cores]


def take_all(_):
    return "take"


@dataclass
class Worker:
    """A process that does nothing but live, in whose name the test claims."""

    number: int
    process: subprocess.Popen[bytes]
    queue: Queue
    is_alive: bool = True
    passed: set[int] = field(default_factory=set)

    def die(self):
        self.process.kill()
        self.process.wait()
        self.is_alive = False


@dataclass
class Job:
    """What the model knows: where the ticket has to be."""

    job: int
    cores: int
    controller: str | None
    attempt: int = 1
    state: str = "waiting"
    worker: int | None = None
    cancelling: bool = False


class QueueMachine(RuleBasedStateMachine):
    claims = Bundle("claims")

    @initialize()
    def begin(self):
        self.directory = Path(tempfile.mkdtemp(prefix="kochi-model-"))
        self.machine = Root(self.directory / "root").machine("local")
        self.queue = Queue(self.machine, "q")
        self.queue.paths.make()
        self.inboxes = [Inbox.create(self.machine) for _ in range(2)]
        self.reported = Counter()
        self.workers: list[Worker] = []
        self.jobs: dict[int, Job] = {}
        self.files: dict[str, AttemptFile] = {}  # of attempts that began, by nonce
        self.nonces: dict[int, str] = {}  # of results that were seen: they never change
        gone = subprocess.Popen(["true"], start_new_session=True)
        self.nobody = ProcessIdentity.of(gone.pid)
        gone.wait()
        self.start_worker()

    def teardown(self):
        if not hasattr(self, "directory"):
            return
        try:
            self.end()
        finally:
            for worker in self.workers:
                worker.die()
            for inbox in self.inboxes:
                inbox.close()
            for file in self.files.values():
                file.close()
            shutil.rmtree(self.directory)

    # What may happen

    @precondition(lambda self: sum(worker.is_alive for worker in self.workers) < 3)
    @rule()
    def start_worker(self):
        (number,) = allocate_ids(self.machine, "worker", 1)
        process = subprocess.Popen(["sleep", "1000"])
        state = WorkerState(
            worker=number,
            state="running",
            process=ProcessIdentity.of(process.pid),
            node=this_node(),
            queues=("q",),
            capacity=Capacity(4, 1000),
            started=now(),
            updated=now(),
        )
        make_directory(self.machine.worker(number).directory)
        write_exclusively(self.machine.worker(number).state, to_json(state.to_dict()))
        self.workers.append(Worker(number, process, Queue(self.machine, "q")))

    def tickets(self, sizes, controller):
        identity = None if controller is None else self.inboxes[controller].identity
        return [
            Ticket(
                name=f"job{size}",
                command=("true",),
                directory=str(self.directory),
                resources=Resources(cores=size),
                controller=identity,
            )
            for size in sizes
        ]

    sizes = st.lists(
        st.sampled_from([TAKEN, TAKEN, TAKEN, PASSED, STOPPED]), min_size=1, max_size=6
    )
    controllers = st.sampled_from([None, 0, 1])

    @rule(sizes=sizes, controller=controllers)
    def submit(self, sizes, controller):
        for ticket in self.queue.submit(self.tickets(sizes, controller)):
            assert ticket.job not in self.jobs and ticket.job > max(self.jobs, default=-1)
            self.jobs[ticket.job] = Job(ticket.job, ticket.resources.cores, ticket.controller)

    @rule(sizes=sizes, controller=controllers, at=STEPS)
    def die_while_submitting(self, sizes, controller, at):
        before = max(self.jobs, default=-1)
        tickets = self.tickets(sizes, controller)
        ending = run_scene(lambda: self.queue.submit(tickets), at)
        assert ending.error == ""
        there = [view.ticket for view in self.queue.waiting() if view.job not in self.jobs]
        # The first ones or none; all if it could end.
        assert [ticket.resources.cores for ticket in there] == sizes[: len(there)]
        assert len(there) == len(sizes) or ending.was_killed
        assert all(ticket.job > before for ticket in there)
        for ticket in there:
            self.jobs[ticket.job] = Job(ticket.job, ticket.resources.cores, ticket.controller)

    def expected(self, worker, limit):
        """The jobs that a claim has to give, in this order."""
        given = []
        for job in sorted(self.jobs.values(), key=lambda job: job.job):
            if job.state != "waiting" or job.cancelling or job.job in worker.passed:
                continue
            if len(given) == limit or job.cores == STOPPED:
                break
            if job.cores == PASSED:
                worker.passed.add(job.job)
            else:
                given.append(job.job)
        return given

    def living(self, data):
        return data.draw(st.sampled_from([worker for worker in self.workers if worker.is_alive]))

    @precondition(lambda self: any(worker.is_alive for worker in self.workers))
    @rule(target=claims, data=st.data(), limit=st.integers(1, 4))
    def claim(self, data, limit):
        worker = self.living(data)
        expected = self.expected(worker, limit)
        claims = worker.queue.claim(worker.number, accept, limit)
        assert [claim.ticket.job for claim in claims] == expected
        for claim in claims:
            job = self.jobs[claim.ticket.job]
            assert claim.ticket.attempt == job.attempt
            job.state, job.worker = "running", worker.number
        self.see_what_was_cancelled()
        return multiple(*claims)

    @precondition(lambda self: any(worker.is_alive for worker in self.workers))
    @rule(data=st.data(), limit=st.integers(1, 4), at=STEPS)
    def die_while_claiming(self, data, limit, at):
        worker = self.living(data)
        run_scene(lambda: worker.queue.claim(worker.number, accept, limit), at)
        self.kill(worker)

    @rule(claim=claims)
    def start(self, claim):
        """As a worker does before the first instruction."""
        if not self.holds(claim):
            return
        with contextlib.suppress(FileExistsError):
            self.files[claim.nonce] = begin(self.machine, claim, self.nobody)

    def holds(self, claim):
        job = self.jobs[claim.ticket.job]
        return (job.state, job.attempt, job.worker) == (
            "running",
            claim.ticket.attempt,
            claim.worker,
        )

    def published_nonce(self, claim):
        path = self.machine.job(claim.ticket.job).result
        return json.loads(path.read_text())["nonce"] if path.exists() else None

    def has_begun(self, claim):
        return self.machine.job(claim.ticket.job).attempt(claim.ticket.attempt).exists()

    @rule(claim=claims)
    def finish(self, claim):
        """Also by a worker that was presumed dead: then it is too late. Also a second time, as a
        worker does that missed the answer: then the result counts as before."""
        if claim.nonce not in self.files:
            self.start(claim)
        if claim.nonce not in self.files:
            return
        is_published = self.published_nonce(claim) == claim.nonce
        counts = self.queue.finish(claim, result_of(claim), self.files[claim.nonce])
        assert counts == (self.holds(claim) or is_published)
        if counts:
            self.jobs[claim.ticket.job].state = "ended"

    @rule(claim=claims, at=STEPS)
    def die_while_finishing(self, claim, at):
        self.start(claim)
        if not self.holds(claim) or (file := self.files.get(claim.nonce)) is None:
            return
        run_scene(lambda: self.queue.finish(claim, result_of(claim), file), at)
        self.kill(self.workers_by_number()[claim.worker])

    @rule(claim=claims)
    def requeue(self, claim):
        held, begun = self.holds(claim), self.has_begun(claim)
        self.queue.requeue(claim)
        if held:
            job = self.jobs[claim.ticket.job]
            job.state = "ended" if job.cancelling else "waiting"
            job.attempt += begun and not job.cancelling
            job.worker = None

    @rule(claim=claims, at=STEPS)
    def die_while_putting_back(self, claim, at):
        if self.holds(claim):
            run_scene(lambda: self.queue.requeue(claim), at)
            self.kill(self.workers_by_number()[claim.worker])

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data):
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        outcome = cancel(self.machine, job.job)
        assert (
            outcome
            == {"waiting": "cancelled", "running": "cancelling", "ended": "ended"}[job.state]
        )
        job.cancelling = True
        if job.state == "waiting":
            job.state = "ended"

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), at=STEPS)
    def die_while_cancelling(self, data, at):
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        ending = run_scene(lambda: cancel(self.machine, job.job), at)
        if job.state == "running":
            job.cancelling = self.machine.job(job.job).cancel.exists()
            assert job.cancelling or ending.was_killed
        elif job.state == "waiting" and find_job(self.machine, job.job).state == "ended":
            job.state = "ended"
        else:
            assert ending.was_killed or job.state == "ended"

    @precondition(lambda self: any(worker.is_alive for worker in self.workers))
    @rule(data=st.data())
    def a_worker_dies(self, data):
        self.kill(self.living(data))

    @precondition(lambda self: any(worker.is_alive for worker in self.workers))
    @rule(data=st.data(), at=STEPS)
    def a_worker_dies_and_then_who_recovers(self, data, at):
        worker = self.living(data)
        worker.die()
        run_scene(lambda: recover(self.machine, "q"), at)
        self.kill(worker)

    @rule(index=st.integers(0, 1))
    def read_inbox(self, index):
        for result in self.inboxes[index].wait(0):
            assert self.jobs[result.job].controller == self.inboxes[index].identity
            self.reported[result.job] += 1
            self.nonces.setdefault(result.job, result.nonce)
            assert self.nonces[result.job] == result.nonce

    # What the model learns by looking

    def workers_by_number(self):
        return {worker.number: worker for worker in self.workers}

    def kill(self, worker):
        """Its tickets come back as an attempt more or the same, or have ended."""
        worker.die()
        recover(self.machine, "q")
        assert recover(self.machine, "q") == [], "it was not done at once"
        for job in self.jobs.values():
            if job.state == "ended":
                continue
            # A death while claiming leaves nobody who could tell what was claimed.
            view = find_job(self.machine, job.job)
            if view.state == "running":
                assert view.worker != worker.number
            elif view.state == "waiting":
                assert view.attempt - job.attempt in (0, 1)
                assert not job.cancelling
                job.state, job.attempt, job.worker = "waiting", view.attempt, None
            else:
                self.check_why_it_ended(job, view.result)
                job.state = "ended"

    def check_why_it_ended(self, job, result):
        if result.reason == "cancelled":
            assert job.cancelling
        elif result.reason == "lost":
            ends = [
                read_ended_attempt(self.machine.job(job.job).ended(attempt)).reason
                for attempt in range(1, result.attempt + 1)
            ]
            assert ends.count("lost") == 3
        else:
            own = find_attempt(self.machine.job(job.job), result.attempt)
            assert (own.nonce, own.worker) == (result.nonce, result.worker)

    def see_what_was_cancelled(self):
        """A death while cancelling may leave a mark that only a claim acts upon."""
        for job in self.jobs.values():
            if job.state == "waiting" and self.machine.job(job.job).result.exists():
                job.state = "ended"

    # What always holds

    @invariant()
    def every_ticket_is_in_one_place(self):
        waiting = {view.job: view for view in self.queue.waiting()}
        running = {view.job: view for view in self.queue.running()}
        assert not waiting.keys() & running.keys()
        for job in self.jobs.values():
            has_ended = self.machine.job(job.job).result.exists()
            if job.state == "ended":
                assert has_ended
            else:
                place = waiting if job.state == "waiting" else running
                assert not has_ended and place[job.job].attempt == job.attempt
            if job.state == "running":
                assert running[job.job].worker == job.worker
        assert (waiting.keys() | running.keys()) <= self.jobs.keys()

    @invariant()
    def a_result_never_changes_and_names_an_attempt_that_was_made(self):
        for job in self.jobs.values():
            if job.state != "ended":
                continue
            paths = self.machine.job(job.job)
            result = read_result(paths.result)
            assert self.nonces.setdefault(job.job, result.nonce) == result.nonce
            if result.ok:
                attempt = find_attempt(paths, result.attempt)
                assert (attempt.nonce, attempt.worker) == (result.nonce, result.worker)

    @invariant()
    def nobody_is_told_twice(self):
        assert all(count == 1 for count in self.reported.values())

    def end(self):
        """Work on to the end: then all are told, and nothing is left in the queue."""
        for worker in self.workers:
            if worker.is_alive:
                self.kill(worker)
        self.start_worker()
        last = self.workers[-1]
        # The claim that follows one with a ticket removes what killed workers have emptied.
        self.submit([TAKEN], None)
        while claims := last.queue.claim(last.number, take_all, limit=10):
            for claim in claims:
                self.jobs[claim.ticket.job].state = "running"
                self.jobs[claim.ticket.job].worker = last.number
                self.finish(claim)
        self.see_what_was_cancelled()
        assert all(job.state == "ended" for job in self.jobs.values())
        for index in range(len(self.inboxes)):
            self.read_inbox(index)
        told = {job.job for job in self.jobs.values() if job.controller is not None}
        assert self.reported == Counter(told), "each was reported to its controller, once"
        self.nothing_is_left()

    def nothing_is_left(self):
        paths = self.queue.paths
        for directory in (paths.waiting, paths.running):
            files = [name for _, _, names in os.walk(directory) for name in names]
            assert all(name.startswith(".") for name in files), files
        assert list(paths.waiting.iterdir()) == []
        assert not paths.damaged.exists()


QueueMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class TestQueue(QueueMachine.TestCase):
    pass
