"""`--executor kochi`: jobs become tickets, results become reports."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from snakemake_interface_executor_plugins.executors.base import AbstractExecutor, SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.errors import KochiError, for_snakemake
from snakemake_kochi.executor.interrupts import FurtherInterrupts
from snakemake_kochi.executor.local_workers import LocalWorkers
from snakemake_kochi.executor.settings import check_settings
from snakemake_kochi.executor.translate import (
    failure_message,
    make_ticket,
    private_queue,
    queue_of,
)
from snakemake_kochi.place import find_place
from snakemake_kochi.queue import (
    Inbox,
    Queue,
    Result,
    Ticket,
    cancel,
    dead_controllers,
    forget_controller,
    jobs_of,
    recover,
    shared_workers,
)

# How long the watcher sleeps when nobody rings: the limit for noticing that a worker died, and for
# results from other nodes, whose bells do not reach us.
_WATCH_SECONDS = 0.5
_CANCEL_SECONDS = 15.0


class Executor(RemoteExecutor):
    """Hands Snakemake's jobs to a queue and reports each result the moment it is there."""

    @for_snakemake
    def __post_init__(self) -> None:
        # Nothing is polled, so the thread for it has nothing to do. Left alone it may still ask for
        # a lock when Python is on its way out, and says so.
        self.wait = False
        place = find_place()
        place.require_here()
        self._machine = place.machine_paths
        settings = self.workflow.executor_settings
        # Everything that may be refused comes first: nothing was made yet that would be left.
        count = check_settings(settings, self._machine)
        self._queue_is_forced = settings.queue is not None
        self._has_workers = count > 0
        self._inbox = Inbox.create(self._machine)
        self._default_queue = settings.queue or private_queue(self._inbox.identity)
        cores = settings.cores or self.workflow.resource_settings.cores
        self._workers = LocalWorkers(
            place.root,
            self._machine,
            self._inbox.identity,
            count,
            cores if isinstance(cores, int) else None,
            self.logger,
        )
        self._pending: dict[int, tuple[SubmittedJobInfo, Ticket]] = {}
        self._pending_lock = threading.Lock()
        self._used_queues: set[str] = set()
        self._told_unserved: set[str] = set()
        self._stopping = threading.Event()
        self._further_interrupts = FurtherInterrupts()
        self._watcher_failed = False
        self._end_abandoned_jobs()
        self._watcher = threading.Thread(target=self._watch, name="kochi-watcher", daemon=True)
        self._watcher.start()

    def _end_abandoned_jobs(self) -> None:
        """End what a controller that was killed in this directory left in the queues: a worker
        that outlives runs would write the same outputs as the jobs of this one."""
        dead = dead_controllers(self._machine)
        abandoned = jobs_of(self._machine, dead)
        here = [
            view.job
            for view in abandoned
            if view.ticket is not None and view.ticket.directory == self.workflow.workdir_init
        ]
        if here:
            self.logger.info(
                f"Ending {len(here)} kochi jobs of a run in this directory that was killed."
            )
            self._cancel(here)
            if left := self._not_ended(here):
                self._report_left(left)
        left_by = {
            view.ticket.controller for view in abandoned if view.ticket and view.job not in here
        }
        for identity in set(dead) - left_by:
            forget_controller(self._machine, identity)
            Queue(self._machine, private_queue(identity)).remove()

    # ---- submission: Snakemake's scheduler thread

    @for_snakemake
    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Hand over all jobs that are ready, in one go for each queue."""
        try:
            self._hand_over(jobs)
        except KochiError:
            # Older versions of Snakemake end without a call to cancel or shut down.
            self.cancel()
            raise

    def _hand_over(self, jobs: Sequence[JobExecutorInterface]) -> None:
        by_queue: dict[str, list[tuple[JobExecutorInterface, Ticket]]] = defaultdict(list)
        for job in jobs:
            # Before the first is handed over: what is refused for one job holds back all.
            queue = self._queue_for(job)
            self.run_job_pre(job)
            by_queue[queue].append((job, self._make_ticket(job)))
        for queue, batch in by_queue.items():
            self._submit(queue, batch)

    def run_job(self, job: JobExecutorInterface) -> None:
        self.run_jobs([job])

    def _queue_for(self, job: JobExecutorInterface) -> str:
        if self._queue_is_forced:
            return self._default_queue
        queue = queue_of(job, self._machine)
        if queue is None and not self._has_workers:
            raise KochiError(
                f"rule {job.name} names no queue, and with --kochi-workers 0 the run's own queue "
                "has no worker: the job would wait for ever",
                "Give the rule a queue (resources: kochi_queue=...), name one for all jobs with "
                "--kochi-queue, or leave out --kochi-workers 0.",
            )
        return queue or self._default_queue

    def _make_ticket(self, job: JobExecutorInterface) -> Ticket:
        command = self.format_job_exec(job)
        return make_ticket(job, command, self.workflow.workdir_init, self._inbox.identity)

    def _submit(self, name: str, batch: Sequence[tuple[JobExecutorInterface, Ticket]]) -> None:
        self._used_queues.add(name)
        self._workers.serve([name])
        # Held until all are registered: a result may be there before `submit` returns.
        with self._pending_lock:
            submitted = Queue(self._machine, name).submit([ticket for _, ticket in batch])
            for (job, _), ticket in zip(batch, submitted, strict=True):
                info = SubmittedJobInfo(job, external_jobid=str(ticket.job))
                log = self._machine.job(ticket.job).log
                self.logger.info(f"kochi job {ticket.job} in queue {name}, log: {log}")
                # RealExecutor's, not RemoteExecutor's: that one would put the job on the list
                # that is polled.
                RealExecutor.report_job_submission(self, info)
                self._pending[ticket.job] = info, ticket

    def additional_general_args(self) -> str:
        # The inner scheduler's rate limiter keeps its process alive for a second after the job
        # is done, unless the period is zero. What the inner Snakemake says of itself would bury
        # the job's own output in the log. (A text: the interface says list, and joins texts.)
        return "--max-jobs-per-timespan 100000/0s --quiet host progress rules reason"

    # ---- results: our own thread

    def _watch(self) -> None:
        try:
            while not self._stopping.is_set():
                self._report(self._inbox.wait(_WATCH_SECONDS))
                self._look_after_workers()
        except Exception as error:
            self._watcher_failed = True
            # Whatever it is, Snakemake must hear of it: it would wait for ever.
            self.workflow.scheduler.executor_error_callback(error)

    def _report(self, results: Sequence[Result]) -> None:
        for result in results:
            with self._pending_lock:
                known = self._pending.pop(result.job, None)
            if known is None:
                continue
            info, ticket = known
            if result.worker is not None and result.reason != "cancelled":
                self._workers.job_ended(result.worker)
            if result.ok:
                self.report_job_success(info)
            else:
                self.report_job_error(
                    info, msg=failure_message(ticket, result), aux_logs=[result.log]
                )

    def _look_after_workers(self) -> None:
        if self._stopping.is_set():
            return
        with self._pending_lock:
            queues = {ticket.queue for _, ticket in self._pending.values()}
        self._workers.look_after(queues)
        for queue in queues:
            recover(self._machine, queue)
            if not self._has_workers:
                self._tell_unserved(queue)

    def _tell_unserved(self, queue: str) -> None:
        """Say once that jobs wait for a worker that somebody else is to start."""
        if queue not in self._told_unserved and not shared_workers(self._machine, queue):
            self._told_unserved.add(queue)
            self.logger.warning(
                f"No worker serves queue {queue} yet; start one with: kochi work -q {queue} -b"
            )

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: Any
    ) -> None:
        # RemoteExecutor's would send people to "the cluster/cloud log".
        if job_info.job.is_group():
            # A group's own report has no place for a message.
            self.logger.error(msg)
        kwargs["external_jobid"] = job_info.external_jobid
        AbstractExecutor.print_job_error(self, job_info, msg=msg, **kwargs)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Nothing to poll: results come to the watcher."""
        for active_job in active_jobs:
            yield active_job

    async def sleep(self) -> None:
        # Shutdown waits for this: Snakemake's default is ten seconds. Overridden, because the
        # thread that sleeps starts before __post_init__ could set an interval.
        await asyncio.sleep(0.05)

    # ---- the end

    def cancel(self) -> None:
        """Called after an interrupt or an error, and again when it was interrupted itself."""
        with self._further_interrupts:
            super().cancel()

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Take back what waits, end what runs, and name what is left."""
        # A report of its own for each cancelled job would bury what a person has to know.
        self._stop_watching()
        with self._pending_lock:
            pending = set(self._pending)
        # An interrupt may have come between handing tickets over and taking note of them.
        unnoted = jobs_of(self._machine, [self._inbox.identity], self._used_queues)
        jobs = sorted(pending.union(view.job for view in unnoted))
        cancelled = self._cancel(jobs)
        self._workers.stop(lambda: self._further_interrupts.is_noted)
        # What a worker left that had to be killed.
        for queue in self._used_queues:
            recover(self._machine, queue)
        if left := self._not_ended(jobs):
            self._report_left(left)
        elif jobs:
            self.logger.info(f"Cancelled {cancelled} kochi jobs; nothing of this run is left.")

    def _cancel(self, jobs: Sequence[int]) -> int:
        """Returns how many had not ended yet, as soon as all have: at the latest after a while, or
        at a further interrupt."""
        cancelled = 0
        for job in jobs:
            try:
                cancelled += cancel(self._machine, job) != "ended"
            except (KochiError, OSError) as error:
                # A full disk, say: the others are to be cancelled all the same.
                self.logger.error(f"kochi job {job} could not be cancelled: {error}")
        deadline = time.monotonic() + _CANCEL_SECONDS
        left = self._not_ended(jobs)
        while left and time.monotonic() < deadline and not self._further_interrupts.is_noted:
            time.sleep(0.05)
            left = self._not_ended(left)
        return cancelled

    def _not_ended(self, jobs: Sequence[int]) -> list[int]:
        return [job for job in jobs if not self._machine.job(job).result.exists()]

    def _report_left(self, jobs: Sequence[int]) -> None:
        numbers = " ".join(map(str, jobs))
        self.logger.error(
            f"Told to end, but not ended yet: kochi jobs {numbers}. See: kochi show jobs; if they "
            f"stay, repeat with: kochi cancel {numbers}"
        )

    def _stop_watching(self) -> None:
        self._stopping.set()
        self._inbox.wake()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()

    def shutdown(self) -> None:
        """Called at the end, and again when it was interrupted."""
        self._stop_watching()
        if self._watcher_failed:
            # Snakemake shuts down without waiting for jobs, or cancelling them.
            self._watcher_failed = False
            self.cancel_jobs([])
        self._workers.stop(lambda: self._further_interrupts.is_noted)
        if not self._queue_is_forced:
            Queue(self._machine, self._default_queue).remove()
        self._inbox.close()
        super().shutdown()
