"""`--executor kochi`: jobs become tickets, results become reports."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from snakemake_interface_executor_plugins.executors.base import AbstractExecutor, SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.local_workers import LocalWorkers
from snakemake_kochi.executor.translate import failure_message, make_ticket, queue_of
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
)

# How long the watcher sleeps when nobody rings: the limit for noticing that a worker died, and for
# results from other nodes, whose bells do not reach us.
_WATCH_SECONDS = 0.5
_CANCEL_SECONDS = 15.0


class Executor(RemoteExecutor):
    """Hands Snakemake's jobs to a queue and reports each result the moment it is there."""

    def __post_init__(self) -> None:
        settings = self.workflow.executor_settings
        place = find_place()
        place.require_here()
        self._machine = place.machine_paths
        self._inbox = Inbox.create(self._machine)
        self._default_queue = settings.queue or f"run-{self._inbox.identity}"
        self._queue_is_forced = settings.queue is not None
        # Refused here, by name, before anything was submitted.
        self._machine.queue(self._default_queue)
        workers = settings.workers
        if workers is None:
            workers = 0 if self._queue_is_forced else 1
        cores = settings.cores or self.workflow.resource_settings.cores
        self._workers = LocalWorkers(
            place.root, self._machine, workers, cores if isinstance(cores, int) else None
        )
        self._pending: dict[int, tuple[SubmittedJobInfo, Ticket]] = {}
        self._pending_lock = threading.Lock()
        self._stopping = threading.Event()
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
        left = {
            view.ticket.controller for view in abandoned if view.ticket and view.job not in here
        }
        for identity in set(dead) - left:
            forget_controller(self._machine, identity)

    # ---- submission: Snakemake's scheduler thread

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Hand over all jobs that are ready, in one go for each queue."""
        by_queue: dict[str, list[tuple[JobExecutorInterface, Ticket]]] = defaultdict(list)
        for job in jobs:
            self.run_job_pre(job)
            queue = self._default_queue
            if not self._queue_is_forced:
                queue = queue_of(job, self._default_queue)
            by_queue[queue].append((job, self._make_ticket(job)))
        for queue, batch in by_queue.items():
            self._submit(queue, batch)

    def run_job(self, job: JobExecutorInterface) -> None:
        self.run_jobs([job])

    def _make_ticket(self, job: JobExecutorInterface) -> Ticket:
        command = self.format_job_exec(job)
        return make_ticket(job, command, self.workflow.workdir_init, self._inbox.identity)

    def _submit(self, name: str, batch: Sequence[tuple[JobExecutorInterface, Ticket]]) -> None:
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
            # Whatever it is, Snakemake must hear of it: it would wait for ever.
            self.workflow.scheduler.executor_error_callback(error)

    def _report(self, results: Sequence[Result]) -> None:
        for result in results:
            with self._pending_lock:
                known = self._pending.pop(result.job, None)
            if known is None:
                continue
            info, ticket = known
            if result.ok:
                self.report_job_success(info)
            else:
                self.report_job_error(
                    info, msg=failure_message(ticket, result), aux_logs=[result.log]
                )

    def _look_after_workers(self) -> None:
        if self._stopping.is_set():
            return
        for number in self._workers.revive():
            self.logger.warning(
                f"Worker {number} died; its jobs go back to the queue and to a new worker. "
                f"Its log: {self._machine.worker(number).log}"
            )
        with self._pending_lock:
            queues = {ticket.queue for _, ticket in self._pending.values()}
        for queue in queues:
            recover(self._machine, queue)

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

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Take back what waits, end what runs, and name what is left."""
        with self._pending_lock:
            jobs = list(self._pending)
        self._cancel(jobs)

    def _cancel(self, jobs: Sequence[int]) -> None:
        for job in jobs:
            try:
                cancel(self._machine, job)
            except KochiError as error:
                self.logger.error(f"kochi job {job} could not be cancelled: {error.message}")
        self._wait_for_end(jobs)

    def _wait_for_end(self, jobs: Sequence[int]) -> None:
        left = list(jobs)
        waited = 0.0
        while left and waited < _CANCEL_SECONDS:
            left = [job for job in left if not self._machine.job(job).result.exists()]
            if left:
                self._stopping.wait(0.05)
                waited += 0.05
        if left:
            numbers = " ".join(map(str, left))
            self.logger.error(
                f"Still running after {_CANCEL_SECONDS:.0f} s: kochi jobs {numbers}. "
                f"See: kochi show jobs; end them with: kochi cancel {numbers}"
            )

    def shutdown(self) -> None:
        self._stopping.set()
        self._inbox.wake()
        if threading.current_thread() is not self._watcher:
            self._watcher.join()
        self._workers.stop()
        if not self._queue_is_forced and self._machine.queue(self._default_queue).lock.exists():
            Queue(self._machine, self._default_queue).remove()
        self._inbox.close()
        super().shutdown()
