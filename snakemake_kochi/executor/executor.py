"""`--executor kochi`: the class that Snakemake instantiates.

It wires the parts of a run, and delegates each call to one of them.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.executors.base import AbstractExecutor, SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.allocation.workers import HERE, check_where, location_of_run, make_workers
from snakemake_kochi.detached.control import Ends
from snakemake_kochi.errors import KochiError, for_snakemake, nearest
from snakemake_kochi.executor.admission import Admission, unknown_rules
from snakemake_kochi.executor.internals import SchedulerWakes, locks_of_run
from snakemake_kochi.executor.plugin import Executor, ExecutorSettings
from snakemake_kochi.executor.queue_watch import QueueWatch
from snakemake_kochi.executor.results import Results
from snakemake_kochi.executor.run import Adoption, Run, await_others
from snakemake_kochi.executor.run_summary import RunSummary
from snakemake_kochi.executor.shutdown import Shutdown
from snakemake_kochi.executor.submission import Submission
from snakemake_kochi.executor.tickets import (
    RUNNERS,
    Tickets,
    label_of_run,
    outputs_of_run,
    with_readable_targets,
)
from snakemake_kochi.hints import typed
from snakemake_kochi.location import Location
from snakemake_kochi.locks.probe import probe_locks
from snakemake_kochi.packing import pack_at_exit
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Inbox, OtherControllers, RunFile, private_queue
from snakemake_kochi.schedulers.environment import own_allocation


class KochiExecutor(Executor):
    """Submits Snakemake's jobs to a queue and reports each result at once."""

    @for_snakemake
    def __post_init__(self) -> None:
        # A thread of our own handles results, so RemoteExecutor's polling thread has nothing to do.
        # If it ran, it might still ask for a lock while Python exits, and print an error.
        self.wait = False
        settings = self.workflow.executor_settings
        self.logger.addFilter(_name_machine)
        # A named queue has workers that were started separately.
        is_served = settings.queue is not None
        location = location_of_run(settings.where, self.logger, is_served)
        location.require_here()
        self._root = location.root
        with self._root.explaining():
            self._set_up(location)

    def _set_up(self, location: Location) -> None:
        settings, directory = self.workflow.executor_settings, self.workflow.workdir_init
        machine = location.machine_paths
        # All checks that may refuse the run come first, before any file that would be left behind.
        count = _check_settings(settings, machine)
        where = check_where(settings.where, location)
        probe_locks(location.prepare_machine())
        allocation = own_allocation(os.environ)
        inbox = Inbox.create(
            machine,
            directory,
            outputs_of_run(self.workflow, directory),
            None if allocation is None else allocation.id,
            locks_of_run(self.workflow, directory),
            label_of_run(self.workflow, directory),
        )
        try:
            inbox.give_signs_of_life()
            self._begin(location, where, count, inbox)
        except BaseException:
            inbox.close()
            raise

    def _begin(self, location: Location, where: str, count: int, inbox: Inbox) -> None:
        workflow, logger, machine = self.workflow, self.logger, location.machine_paths
        settings, directory = workflow.executor_settings, workflow.workdir_init
        queue_watch = QueueWatch(machine, inbox.identity, logger, location.to_start_worker)
        others = OtherControllers(machine, directory, inbox.identity, Ends(machine).is_over)
        dead = await_others(others, queue_watch.recover, logger)
        cores = settings.cores or workflow.resource_settings.cores
        cores = cores if isinstance(cores, int) else None
        workers = make_workers(location, where, inbox.identity, count, cores, logger)
        for warning in unknown_rules(workflow):
            logger.warning(warning)
        is_forced = settings.queue is not None
        private = private_queue(inbox.identity)
        admission = Admission(
            workflow, machine, workers, logger, private, settings.queue, count > 0
        )
        inheriting = private if where == HERE else None
        tickets = Tickets(self, settings.runner, inbox.identity, logger, inheriting)
        adoption = Adoption(machine, workflow, inbox, logger, dead)
        run = Run(
            machine=machine,
            workflow=workflow,
            logger=logger,
            inbox=inbox,
            workers=workers,
            adoption=adoption,
            queue_watch=queue_watch,
            summary=RunSummary(machine, inbox.identity),
            record=RunFile(machine, inbox.identity, directory),
        )
        self._wakes = SchedulerWakes(workflow)
        self._submission = Submission(run, self, admission, tickets)
        results = Results(run, self, self._submission, self._wakes, count > 0)
        self._shutdown = Shutdown(
            run, self._submission, results, has_own_queues=not is_forced or count > 0
        )
        workers.adopt(adoption.controllers)
        adoption.begin(queue_watch.recover)
        # Before the next one, so that it is called after it: then nothing awaits the jobs any more.
        pack_at_exit(machine)
        atexit.register(self._shutdown.end_unused)
        if location.machine.clean is not None:
            # Imported here: few runs clean up.
            from snakemake_kochi.cleaning.automatic import clean_at_exit

            clean_at_exit(machine, Path.cwd(), lambda: True)
        results.start()

    @for_snakemake
    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit all jobs that are ready."""
        try:
            with self._root.explaining():
                # A queue keeps the order; Snakemake gives them in any order, not by their priority.
                self._submission.submit(sorted(jobs, key=lambda job: -job.priority))
        except KochiError:
            # Older versions of Snakemake end without a call of `cancel` or `shutdown`.
            self.cancel()
            raise

    def run_job(self, job: JobExecutorInterface) -> None:
        self.run_jobs([job])

    def get_job_args(self, job: JobExecutorInterface, **kwargs: Any) -> str:
        return with_readable_targets(super().get_job_args(job, **kwargs), job)

    def additional_general_args(self) -> str:
        # The inner scheduler's rate limiter keeps its process alive for a second after the job's
        # end, unless the period is zero. The inner Snakemake's own messages would bury the job's
        # output in the log. (A text: the interface declares a list, and joins texts.)
        return "--max-jobs-per-timespan 100000/0s --quiet host progress rules reason"

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **kwargs: Any
    ) -> None:
        # RemoteExecutor's method would refer users to "the cluster/cloud log".
        if job_info.job.is_group():
            # The report of a group has no field for a message.
            self.logger.error(msg)
        kwargs["external_jobid"] = job_info.external_jobid
        AbstractExecutor.print_job_error(self, job_info, msg=msg, **kwargs)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Nothing to poll: results come to their own thread."""
        for active_job in active_jobs:
            yield active_job

    async def sleep(self) -> None:
        # Shutdown waits for this interval: Snakemake's default is ten seconds. This method is
        # overridden because the sleeping thread starts before __post_init__ could set an interval.
        await asyncio.sleep(0.05)

    def cancel(self) -> None:
        """Cancel the run after an interrupt or an error.

        It is called again when it was interrupted itself.
        """
        with self._shutdown.further_interrupts:
            super().cancel()

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel all jobs: `active_jobs` are those that RemoteExecutor polls, so there are none."""
        self._shutdown.cancel_jobs()

    def shutdown(self) -> None:
        """End the run; called again when it was interrupted itself."""
        self._shutdown.end()
        atexit.unregister(self._shutdown.end_unused)
        self._wakes.end_timers()
        super().shutdown()


def _check_settings(settings: ExecutorSettings, machine: MachinePaths) -> int:
    """Check the settings and return the number of workers to start.

    Raises KochiError, naming the option, for an invalid setting.
    """
    if settings.cores is not None and settings.cores < 1:
        raise KochiError(f"--kochi-cores {settings.cores}: a number from 1 was expected")
    if settings.workers is not None and settings.workers < 0:
        raise KochiError(f"--kochi-workers {settings.workers}: a number from 0 was expected")
    if settings.runner is not None and settings.runner not in RUNNERS:
        raise KochiError(
            f"--kochi-runner {settings.runner}: one of {', '.join(RUNNERS)} was expected",
            nearest(settings.runner, RUNNERS),
        )
    if settings.queue is not None:
        try:
            machine.queue(settings.queue)
        except KochiError as error:
            raise KochiError(f"--kochi-queue: {error.message}", error.hint) from error
    if settings.workers is not None:
        return settings.workers
    return 1 if settings.queue is None else 0


def _name_machine(record: logging.LogRecord) -> bool:
    """Have the commands in a message name the machine."""
    if isinstance(record.msg, str):
        record.msg = typed(record.msg)
    return True
