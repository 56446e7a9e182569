"""Submission of the jobs of a run: ready jobs become tickets in queues."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.executor.admission import Admission, described, note_refused
from snakemake_kochi.executor.internals import marks_are_files
from snakemake_kochi.executor.run import HandOver, PendingJob, Run
from snakemake_kochi.executor.tickets import Tickets
from snakemake_kochi.files import lacks_room, may_pass
from snakemake_kochi.files.together import Together
from snakemake_kochi.notices import Notices
from snakemake_kochi.queue import (
    Queue,
    Resources,
    Running,
    Ticket,
    cancel_all,
    find_job,
    shared_workers,
)

_log = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds before a failed submission is tried again
# The number of jobs that are submitted at once. Smaller batches spend more on locking and syncing
# than on tickets. Larger batches leave the workers idle meanwhile. So the first of many jobs are a
# small batch, and each of the next ones is twice as large, up to the largest.
_FIRST_BATCH = 8
_LARGEST_BATCH = 100

_Admitted = tuple[JobExecutorInterface, Resources]


class Submission:
    """Submits the jobs of a run.

    Snakemake's scheduler thread calls `submit`. The results thread calls the other methods, which
    submit the jobs that waited for jobs of an earlier run. Neither thread waits for the other: only
    `submit` writes the run's own files, also for the jobs that it holds back.
    """

    def __init__(
        self, run: Run, executor: RealExecutor, admission: Admission, tickets: Tickets
    ) -> None:
        self._run = run
        self._executor = executor
        self._admission = admission
        self._tickets = tickets
        self._notices = Notices(_log)
        self._has_checked = False  # the rules that can never run
        self._has_submitted = False
        self._used_queues: set[str] = set()
        self._queues: dict[str, Queue] = {}
        # `append` and `popleft` are atomic: one thread calls the first, the other thread the
        # second.
        self._held: deque[HandOver] = deque()
        self._late: deque[HandOver] = deque()  # held jobs that can be submitted now
        self._next_late = 0.0
        self._together = Together()

    @property
    def used_queues(self) -> frozenset[str]:
        return frozenset(self._used_queues)

    def _report(self, refused: Sequence[tuple[JobExecutorInterface, KochiError]]) -> None:
        """Report refused jobs: those of one rule by one message, for a batch may have thousands."""
        by_rule: dict[str, list[tuple[JobExecutorInterface, KochiError]]] = defaultdict(list)
        for job, why in refused:
            by_rule[job.name].append((job, why))
        for own in by_rule.values():
            # Other jobs run already, or have run: the run does not end because of these.
            self._run.failed.set()
            (job, why), *others = own
            self._executor.run_job_pre(job)
            text = described(own) if others else why.sentences
            self._executor.report_job_error(SubmittedJobInfo(job), msg=text)
            for other, _ in others:
                self._run.workflow.scheduler.error_callback(other)
            note_refused(own)

    def submit(self, jobs: Sequence[JobExecutorInterface]) -> None:
        """Submit all these jobs, in batches for each queue. Raises OSError and KochiError."""
        admitted = self._admission.admit(jobs)
        if not self._has_checked:
            if said := self._admission.what_never_runs(frozenset(jobs)):
                self._run.logger.warning(said)
                admitted = self._admission.admit(jobs)  # without those that only they need
            self._has_checked = True
        self._report(admitted.refused)
        for queue, its_jobs in admitted.by_queue.items():
            for batch in _batches(its_jobs):
                self._submit_batch(queue, batch)

    def _submit_batch(self, queue: str, jobs: Sequence[_Admitted]) -> None:
        batch = []
        for job, resources in jobs:
            self._executor.run_job_pre(job)
            ticket = self._tickets.of(job, resources, queue)
            if not self._adopt_or_hold(queue, job, ticket):
                batch.append((job, ticket))
        if batch:
            hand_over = HandOver(queue, batch)
            self._insist(queue, partial(self._hand_over, hand_over))

    def _adopt_or_hold(self, queue: str, job: JobExecutorInterface, ticket: Ticket) -> bool:
        """Await a job of an earlier run, instead of submitting this one or before submitting it."""
        run = self._run
        if run.adoption.is_empty:
            return False
        found = run.adoption.find(job, ticket)
        behind = run.adoption.clear_the_way(ticket) if found is None else ()
        if found is None and not behind:
            return False
        self._insist(queue, partial(self._prepare, queue))
        hand_over = HandOver(queue, [(job, ticket)], behind)
        if found is None:
            self._held.append(hand_over)
            return True
        number = found.ticket.job
        run.record.adopt(number)
        self._used_queues.add(found.ticket.queue)
        how = "still runs" if isinstance(found, Running) else "has finished"
        run.logger.info(
            f"kochi job {number} of a killed run {how} and is not started again, log: "
            f"kochi show log job {number}"
        )
        (info,) = self._report_submissions([job], [found.ticket])
        run.pending.adopt(PendingJob(info, found.ticket, hand_over))
        # The delivery of its result may have come before this point, and was then ignored.
        if (ended := find_job(run.machine, number).result) is not None:
            run.pending.deliver(ended)
            run.inbox.wake()
        return True

    def _insist(self, queue: str, step: Callable[[], None]) -> None:
        while not self._try(queue, step):
            time.sleep(_PAUSE)

    def _try(self, queue: str, step: Callable[[], None]) -> bool:
        """Run a step; return False if it must be tried again later.

        This is the case after a full disk or a transient fault of the filesystem once jobs of the
        run were submitted. Raises OSError and KochiError.
        """
        problem = f"jobs for queue {queue} cannot be submitted now, and are tried again"
        try:
            step()
        except (OSError, KochiError) as error:
            if not self._has_submitted or self._run.stopping.is_set() or not may_pass(error):
                raise
            if lacks_room(error):
                self._run.queue_watch.note_full_disk()
            else:
                self._notices.fault(problem, error)
            return False
        self._notices.over(problem)
        self._run.queue_watch.note_free_space()
        return True

    def _prepare(self, queue: str) -> None:
        """Record on disk, once, that jobs are about to enter the queue.

        Their adopter looks there.
        """
        self._used_queues.add(queue)
        self._run.record.begin()
        self._run.inbox.note_queue(queue)

    def _hand_over(self, hand_over: HandOver) -> None:
        run, name = self._run, hand_over.queue
        self._prepare(name)
        run.workers.serve([name], self._admission.request_of(name))
        if (queue := self._queues.get(name)) is None:
            queue = self._queues[name] = Queue(run.machine, name)
        again = hand_over.numbered is not None
        if hand_over.numbered is None:
            numbered = queue.number([ticket for _, ticket in hand_over.jobs])
            # Before the tickets are in the queue: a result may come at once, and an interrupt or an
            # error at any moment.
            infos = self._report_submissions([job for job, _ in hand_over.jobs], numbered)
            run.pending.note(list(map(PendingJob, infos, numbered)))
            hand_over.numbered = numbered
        queue.hand_over(hand_over.numbered, again)
        self._log_numbers(hand_over.numbered)
        run.pending.certain(hand_over.numbered)
        self._has_submitted = True

    def _report_submissions(
        self, jobs: Sequence[JobExecutorInterface], tickets: Sequence[Ticket]
    ) -> list[SubmittedJobInfo]:
        """Report submitted jobs to Snakemake, which marks their outputs as incomplete.

        On a slow filesystem the marks of many jobs are made at the same time: there they would take
        longer than all the rest of a submission.
        """
        infos = [
            SubmittedJobInfo(job, external_jobid=str(ticket.job))
            for job, ticket in zip(jobs, tickets, strict=True)
        ]
        for info in infos:
            # RealExecutor's method, not RemoteExecutor's: the latter adds the job to those that it
            # polls.
            RealExecutor.report_job_submission(self._executor, info, register_job=False)
        marks = [partial(info.job.register, external_jobid=info.external_jobid) for info in infos]
        try:
            if marks_are_files(self._run.workflow):
                self._together.all(marks)
            else:
                for mark in marks:
                    mark()
        except OSError as error:
            self._run.logger.info(
                f"Failed to mark the outputs of started jobs as incomplete ({error}). Snakemake "
                "goes on, but after a kill it may take such an output for a complete one."
            )
        return infos

    def _log_numbers(self, tickets: Sequence[Ticket]) -> None:
        """Log one message for all job numbers.

        One message each took Snakemake longer than the submission.
        """
        first, last, queue = tickets[0].job, tickets[-1].job, tickets[0].queue
        # The command, and not the path: some time after its end, a pack has the log of a job.
        if first == last:
            text = f"kochi job {first} in queue {queue}, log: kochi show log job {first}"
        else:
            text = f"kochi jobs {first} to {last} in queue {queue}, logs: kochi show log job JOB"
        self._run.logger.info(text, extra={"kochi_once": queue})

    # ---- after an earlier run

    def hand_over_held(self) -> None:
        """Submit the jobs that waited for others, if those have ended. Raises as `submit`."""
        for _ in range(len(self._held)):
            held = self._held.popleft()
            is_ready = self._run.adoption.has_ended(held.behind)
            (self._late if is_ready else self._held).append(held)
        while self._late and time.monotonic() >= self._next_late:
            late = self._late[0]
            if not self._try(late.queue, partial(self._hand_over, late)):
                self._next_late = time.monotonic() + _PAUSE
                break
            self._late.popleft()

    def hand_over_strays_anew(self) -> None:
        """Submit anew the adopted jobs in queues that only this run's workers serve.

        These jobs were adopted while they ran, and were requeued since. This run's workers run no
        tickets of another controller.
        """
        strays = {
            ticket.job: anew
            for ticket, anew in self._run.pending.adopted()
            if self._is_stray(ticket)
        }
        for job, outcome in cancel_all(self._run.machine, strays).items():
            if isinstance(outcome, Exception) or outcome == "ended":
                continue  # the next look reports it, or the inbox has its result
            self._run.pending.end(job)
            self._held.append(replace(strays[job], behind=(job,)))

    def _is_stray(self, ticket: Ticket) -> bool:
        machine = self._run.machine
        if shared_workers(machine, ticket.queue):
            return False
        try:
            return find_job(machine, ticket.job).state == "waiting"
        except DamagedFileError:
            return False  # the inbox reports its result

    # ---- at the end of the run

    def take_held(self) -> list[JobExecutorInterface]:
        """The held jobs, which are then forgotten."""
        jobs = []
        for held in (self._held, self._late):
            while held:
                jobs += [job for job, _ in held.popleft().jobs]
        return jobs

    def forget_held(self) -> None:
        """Forget the held jobs: neither of the two threads submits anything more."""
        self._held.clear()
        self._late.clear()

    def never_handed_over(self) -> list[int]:
        """The pending jobs whose submission failed or was interrupted, in no queue."""
        found: list[int] = []
        for ticket in self._run.pending.uncertain():
            try:
                missing = Queue(self._run.machine, ticket.queue).find_missing([ticket])
            except (OSError, KochiError):
                continue  # not known now: the job is cancelled as if it were in the queue
            found += [each.job for each in missing]
        return found


def _batches(jobs: Sequence[_Admitted]) -> Iterator[Sequence[_Admitted]]:
    """The jobs in batches: the first of them run while the tickets of the others are made."""
    start, size = 0, _FIRST_BATCH
    while start < len(jobs):
        yield jobs[start : start + size]
        start, size = start + size, min(2 * size, _LARGEST_BATCH)
