"""`--executor kochi`: jobs become tickets, results become reports."""

from __future__ import annotations

import asyncio
import atexit
import bisect
import contextlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from snakemake_interface_executor_plugins.executors.base import AbstractExecutor, SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.real import RealExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from snakemake_kochi.allocation.found import location_of_run
from snakemake_kochi.allocation.workers import HERE, check_where, make_workers
from snakemake_kochi.errors import DamagedFileError, KochiError, UserError, for_snakemake
from snakemake_kochi.executor.admission import Admission, unknown_rules
from snakemake_kochi.executor.adoption import (
    Adoption,
    Held,
    Left,
    await_others,
    has_time_up,
    keep_empty_directories,
    leave_to_adopter,
)
from snakemake_kochi.executor.cancelling import Cancelling
from snakemake_kochi.executor.choice import Choices
from snakemake_kochi.executor.identity import Identities, locks_of_run, outputs_of_run
from snakemake_kochi.executor.inner import InnerCommands
from snakemake_kochi.executor.interrupts import FurtherInterrupts
from snakemake_kochi.executor.job_queues import JobQueues
from snakemake_kochi.executor.passes import SchedulerPasses
from snakemake_kochi.executor.plugin import Executor
from snakemake_kochi.executor.queue_watch import QueueWatch
from snakemake_kochi.executor.run_summary import RunSummary
from snakemake_kochi.executor.settings import check_settings
from snakemake_kochi.executor.translate import (
    failure_message,
    make_ticket,
    queue_of,
)
from snakemake_kochi.files import is_there, lacks_room, may_pass, show_new_files
from snakemake_kochi.location import Location
from snakemake_kochi.locks.probe import probe_locks
from snakemake_kochi.queue import (
    Inbox,
    Queue,
    Resources,
    Result,
    RunFile,
    Running,
    Ticket,
    cancel_all,
    find_job,
    private_queue,
    remove_private_queues,
    shared_workers,
)
from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.queue.processes import this_node
from snakemake_kochi.schedulers.native import own_allocation

# How long the watcher sleeps without a notification: the limit for noticing that a worker died,
# and for results from other nodes, from which no notification arrives.
_WATCH_SECONDS = 0.5
_LOOK_SECONDS = 0.2
_PAUSE = 0.5  # seconds until what could not be handed over is tried again
# How much longer than a look the time between two is: it costs something for each pending job.
_LOOK_SHARE = 30
# How many jobs are looked for at each look, whose delivery may be lost: a call for each.
_LOOKED_FOR = 64
# How many jobs are handed over at once. Fewer would make more locking and syncing than tickets;
# before there are so many, no worker has anything to do.
_AT_ONCE = 100


@dataclass(frozen=True)
class _Pending:
    """A job whose result is waited for; `anew`: how to hand it over instead, for one that was
    adopted."""

    info: SubmittedJobInfo
    ticket: Ticket
    anew: Held | None = None


@dataclass
class _HandOver:
    """Jobs that are to be handed over. `numbered`: their tickets, once they have job numbers; by
    these it is known after an error which of them are there."""

    queue: str
    batch: Sequence[tuple[JobExecutorInterface, Ticket]]
    numbered: Sequence[Ticket] | None = None


class KochiExecutor(Executor):
    """Hands Snakemake's jobs to a queue and reports each result the moment it is there."""

    @for_snakemake
    def __post_init__(self) -> None:
        # Nothing is polled, so the thread for it has nothing to do. Left alone it may still ask for
        # a lock when Python is on its way out, and says so.
        self.wait = False
        settings = self.workflow.executor_settings
        # A queue that is named has workers, wherever somebody has started them.
        is_served = settings.queue is not None
        location = location_of_run(settings.where or (HERE if is_served else None), self.logger)
        location.require_here()
        self._root = location.root
        with self._root.explaining():
            self._set_up(location)

    def _set_up(self, location: Location) -> None:
        self._machine = location.machine_paths
        settings = self.workflow.executor_settings
        # Everything that may be refused comes first: nothing was made yet that would be left.
        count = check_settings(settings, self._machine)
        where = check_where(settings.where, location)
        probe_locks(location.prepare_machine())
        self._queue_is_forced = settings.queue is not None
        self._has_workers = count > 0
        directory = self.workflow.workdir_init
        own = own_allocation(os.environ)
        self._inbox = Inbox.create(
            self._machine,
            directory,
            outputs_of_run(self.workflow, directory),
            None if own is None else own.id,
            locks_of_run(self.workflow, directory),
        )
        try:
            self._inbox.give_signs_of_life()
            self._begin(location, where, count)
        except BaseException:
            self._inbox.close()
            raise

    def _begin(self, location: Location, where: str, count: int) -> None:
        settings, directory = self.workflow.executor_settings, self.workflow.workdir_init
        self._queue_watch = QueueWatch(self._machine, self._inbox.identity, self.logger)
        dead = await_others(
            self._machine, directory, self._inbox, self._queue_watch.recover, self.logger
        )
        self._default_queue = settings.queue or private_queue(self._inbox.identity)
        cores = settings.cores or self.workflow.resource_settings.cores
        self._workers = make_workers(
            location,
            where,
            self._inbox.identity,
            count,
            cores if isinstance(cores, int) else None,
            self.logger,
        )
        own_queue = None if self._queue_is_forced else self._default_queue
        self._requests = JobQueues(own_queue, self._workers.takes_requests, self.logger)
        self._begin_with_nothing()
        for said in unknown_rules(self.workflow):
            self.logger.warning(said)
        self._admission = Admission(
            self.workflow, self._requests, self._workers, self._queue_for, own_queue
        )
        self._identities = Identities(self.workflow, directory)
        self._choices = Choices(self.workflow, settings.runner, self.logger)
        self._commands = InnerCommands(self)
        self._run_summary = RunSummary(self._machine, self._inbox.identity)
        self._run_file = RunFile(self._machine, self._inbox.identity, directory)
        self._passes = SchedulerPasses(self.workflow)
        self._adoption = Adoption(self._machine, self.workflow, self._inbox, self.logger, dead)
        self._workers.adopt(self._adoption.controllers)
        self._adoption.begin(self._queue_watch.recover)
        atexit.register(self._close_unused)
        self._watcher = threading.Thread(target=self._watch, name="kochi-watcher", daemon=True)
        self._watcher.start()

    def _begin_with_nothing(self) -> None:
        self._pending: dict[int, _Pending] = {}
        self._pending_lock = threading.Lock()
        self._used_queues: set[str] = set()
        self._unsure: set[int] = set()  # pending jobs that may not have been handed over
        self._ending: set[int] = set()
        self._known_results: deque[Result] = deque()
        self._held: list[Held] = []
        self._late: deque[_HandOver] = deque()  # what was held, and can be handed over
        self._next_hand_over = 0.0
        self._all_went_well = True
        self._has_begun = False  # to hand over
        self._has_submitted = False
        self._has_told = False  # how the run ended
        self._has_told_of_cancelling = False
        self._has_left = False  # its jobs, which go on
        self._complaints = Complaints()
        self._next_look = 0.0
        self._last_looked_for = -1  # the job
        self._stopping = threading.Event()
        self._further_interrupts = FurtherInterrupts()
        self._watcher_failed = False

    # ---- submission: Snakemake's scheduler thread

    @for_snakemake
    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Hand over all jobs that are ready, in one go for each queue."""
        try:
            with self._root.explaining():
                self._hand_over(jobs)
        except KochiError:
            # Older versions of Snakemake end without a call to cancel or shut down.
            self.cancel()
            raise

    def _hand_over(self, jobs: Sequence[JobExecutorInterface]) -> None:
        admitted = self._admission.admit(jobs)
        if not self._has_begun:
            self._admission.refuse_what_never_runs(jobs, admitted.refused)
            self._has_begun = True
        for job, why in admitted.refused:
            # Others run already, or have run: that is not given up for this one.
            self._all_went_well = False
            self.run_job_pre(job)
            self.report_job_error(SubmittedJobInfo(job), msg=why.sentences)
        for queue, its_jobs in admitted.by_queue.items():
            # In parts: the first run while the tickets of the others are made.
            for start in range(0, len(its_jobs), _AT_ONCE):
                self._hand_over_to(queue, its_jobs[start : start + _AT_ONCE])

    def _hand_over_to(
        self, queue: str, jobs: Sequence[tuple[JobExecutorInterface, Resources]]
    ) -> None:
        batch = []
        for job, resources in jobs:
            self.run_job_pre(job)
            ticket = self._make_ticket(job, resources)
            if not self._adopt(queue, job, ticket):
                batch.append((job, ticket))
        if batch:
            hand_over = _HandOver(queue, batch)
            while not self._try_to_submit(hand_over):
                time.sleep(_PAUSE)

    def _try_to_submit(self, hand_over: _HandOver) -> bool:
        """Returns False where it is to be tried again, after a while: the filesystem is full or in
        trouble, and jobs of the run are on their way already. Raises OSError and KochiError."""
        trouble = f"jobs for queue {hand_over.queue} are handed over later"
        try:
            self._submit(hand_over)
        except (OSError, KochiError) as error:
            if not self._has_submitted or self._stopping.is_set() or not may_pass(error):
                raise
            if lacks_room(error):
                self._queue_watch.no_room()
            else:
                self._complaints.about(trouble, error)
            return False
        self._complaints.over(trouble)
        self._queue_watch.found_room()
        return True

    def _adopt(self, queue: str, job: JobExecutorInterface, ticket: Ticket) -> bool:
        """Wait for a job of an earlier run instead of handing one over, or before that."""
        if self._adoption.is_empty:
            return False
        if (found := self._adoption.find(job, ticket)) is not None:
            number = found.ticket.job
            self._run_file.adopt(number)
            self._used_queues.add(found.ticket.queue)
            with self._pending_lock:
                how = "runs still" if isinstance(found, Running) else "has finished"
                self.logger.info(
                    f"kochi job {number} of a run that was killed {how}: not started again, log: "
                    f"{self._machine.job(number).log}"
                )
                self._register(job, found.ticket, Held(queue, job, ticket))
            # The delivery of its result may have come, and been skipped, before this.
            if (ended := find_job(self._machine, number).result) is not None:
                self._known_results.append(ended)
                self._inbox.wake()
            return True
        if behind := self._adoption.clear_the_way(ticket):
            with self._pending_lock:
                self._held.append(Held(queue, job, ticket, behind))
        return bool(behind)

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

    def _make_ticket(self, job: JobExecutorInterface, resources: Resources) -> Ticket:
        command = self._commands.of(job)
        choice = self._choices.of(job, command)
        return make_ticket(
            job,
            command,
            choice,
            self.workflow.workdir_init,
            self._inbox.identity,
            self.envvars(),
            resources,
            self._identities.of(job, choice.shell_command),
        )

    def _submit(self, hand_over: _HandOver) -> None:
        name = hand_over.queue
        self._used_queues.add(name)
        self._run_file.begin()
        self._workers.serve([name], self._requests.of(name))
        with self._pending_lock:
            self._inbox.note_queue(name)
            queue, again = Queue(self._machine, name), hand_over.numbered is not None
            if hand_over.numbered is None:
                numbered = queue.number([ticket for _, ticket in hand_over.batch])
                # Before they are there: a result may come at once, an interrupt or an error at any
                # moment.
                self._unsure.update(ticket.job for ticket in numbered)
                for (job, _), ticket in zip(hand_over.batch, numbered, strict=True):
                    self._register(job, ticket)
                hand_over.numbered = numbered
            queue.hand_over(hand_over.numbered, again)
            self._say_where(hand_over.numbered)
            self._unsure.difference_update(ticket.job for ticket in hand_over.numbered)
            self._has_submitted = True

    def _say_where(self, tickets: Sequence[Ticket]) -> None:
        """One message, however many they are: one each took Snakemake longer than the hand-over."""
        first, last, queue = tickets[0].job, tickets[-1].job, tickets[0].queue
        if first == last:
            log = self._machine.job(first).log
            text = f"kochi job {first} in queue {queue}, log: {log}"
        else:
            logs = self._machine.job_logs
            text = f"kochi jobs {first} to {last} in queue {queue}, logs: {logs}"
        self.logger.info(text, extra={"kochi_once": queue})

    def _register(
        self, job: JobExecutorInterface, ticket: Ticket, anew: Held | None = None
    ) -> None:
        """Call with the lock on what is pending held."""
        info = SubmittedJobInfo(job, external_jobid=str(ticket.job))
        # RealExecutor's, not RemoteExecutor's: that one would put the job on the list that is
        # polled.
        RealExecutor.report_job_submission(self, info)
        self._pending[ticket.job] = _Pending(info, ticket, anew)

    def _hand_over_held(self) -> None:
        """Hand over what waited for other jobs to end."""
        with self._pending_lock:
            held = self._held
            ready = [self._adoption.has_ended(each.behind) for each in held]
            self._late += [
                _HandOver(each.queue, [(each.job, each.ticket)])
                for each, is_ready in zip(held, ready, strict=True)
                if is_ready
            ]
            self._held = [each for each, is_ready in zip(held, ready, strict=True) if not is_ready]
        while self._late and time.monotonic() >= self._next_hand_over:
            if not self._try_to_submit(self._late[0]):
                self._next_hand_over = time.monotonic() + _PAUSE
                break
            self._late.popleft()

    def _requeue_adopted(self) -> None:
        """Hand over anew adopted jobs that ran and were then requeued in a queue where
        only this run's own workers look: they run no tickets of others."""
        with self._pending_lock:
            strays = {
                pending.ticket.job: pending.anew
                for pending in self._pending.values()
                if pending.anew is not None and self._is_stray(pending.ticket)
            }
        for job, outcome in cancel_all(self._machine, strays).items():
            if isinstance(outcome, Exception):
                continue  # it is told with the next look
            with self._pending_lock:
                del self._pending[job]
                self._held.append(replace(strays[job], behind=(job,)))

    def _is_stray(self, ticket: Ticket) -> bool:
        if shared_workers(self._machine, ticket.queue):
            return False
        try:
            return find_job(self._machine, ticket.job).state == "waiting"
        except DamagedFileError:
            return False  # its result, of which the inbox tells

    def additional_general_args(self) -> str:
        # The inner scheduler's rate limiter keeps its process alive for a second after the job
        # is done, unless the period is zero. What the inner Snakemake says of itself would bury
        # the job's own output in the log. (A text: the interface says list, and joins texts.)
        return "--max-jobs-per-timespan 100000/0s --quiet host progress rules reason"

    # ---- results: our own thread

    def _watch(self) -> None:
        try:
            while not self._stopping.is_set():
                results = self._inbox.wait(_WATCH_SECONDS)
                while self._known_results:
                    results.append(self._known_results.popleft())
                self._report(results)
                try:
                    self._look_after_workers()
                except OSError as error:
                    # What is not known now is looked at again; the jobs in the workers go on.
                    self._complaints.about("the run cannot be looked after now", error)
        except Exception as error:
            self._watcher_failed = True
            # Whatever it is, Snakemake must hear of it: it would wait for ever.
            if isinstance(error, KochiError):
                error = UserError(error.message, error.hint)
            self.workflow.scheduler.executor_error_callback(error)

    def _report(self, results: Sequence[Result]) -> None:
        with self._pending_lock:
            found = [(self._pending.pop(result.job, None), result) for result in results]
        _show_outputs([(known.ticket, result) for known, result in found if known and result.ok])
        for known, result in found:
            if known is None:
                continue
            self._passes.drop_wakes()
            self._run_summary.add(known.ticket, result)
            if result.worker is not None and result.reason != "cancelled":
                self._workers.job_ended(result.worker)
            if result.ok:
                self.report_job_success(known.info)
            else:
                self._all_went_well = False
                self.report_job_error(
                    known.info,
                    msg=failure_message(known.ticket, result),
                    aux_logs=[result.log],
                    see=f"kochi show log job {result.job}",
                )

    def _look_after_workers(self) -> None:
        if self._stopping.is_set():
            return
        if time.monotonic() >= self._next_look:
            began = time.monotonic()
            self._look_at_queues()
            took = time.monotonic() - began
            self._next_look = began + max(_LOOK_SECONDS, _LOOK_SHARE * took)
            if self._has_workers and not self._adoption.is_empty:
                self._requeue_adopted()
        if not self._adoption.is_empty:
            self._hand_over_held()

    def _look_at_queues(self) -> None:
        queues: dict[str, list[Ticket]] = defaultdict(list)
        with self._pending_lock:
            for pending in self._pending.values():
                queues[pending.ticket.queue].append(pending.ticket)
        self._queue_watch.look_for_room()
        self._workers.look_after(queues)
        for queue, tickets in queues.items():
            self._queue_watch.look(queue, tickets, self._has_workers)
        for queue in self._adoption.queues_of_ending() - queues.keys():
            self._queue_watch.recover(queue)
        self._known_results.extend(self._inbox.find_undelivered(self._next_to_look_for()))

    def _next_to_look_for(self) -> list[int]:
        """Some of the pending jobs, each in its turn."""
        with self._pending_lock:
            jobs = sorted(self._pending)
        start = bisect.bisect_right(jobs, self._last_looked_for)
        some = jobs[start : start + _LOOKED_FOR]
        self._last_looked_for = some[-1] if some else -1
        return some

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
        self._all_went_well = False
        if self._inbox.adopter is not None:
            return
        if self._workers.go_on_alone and has_time_up(self._machine):
            self._leave_jobs()
            return
        try:
            cancelling = self._cancel_all()
            cancelling.wait(lambda: self._further_interrupts.is_noted)
        finally:
            # Whatever cannot be read or written: none stays behind.
            self._workers.stop(lambda: self._further_interrupts.is_noted)
        for queue in self._used_queues:
            self._queue_watch.recover(queue)
        # Snakemake may cancel once more, after an error of ours.
        if not self._has_told_of_cancelling:
            cancelling.report()
            self._has_told_of_cancelling = True

    def _leave_jobs(self) -> None:
        """The time of the controller is over, and not that of its workers: all goes on as after its
        death, and the next run adopts it."""
        if self._has_left:
            return
        self._has_left = True
        self._forget_what_is_not_handed_over()
        left = Left.of(self._machine, self._pending)
        self._workers.leave(is_needed=left.waiting > 0)
        keep_empty_directories(self.workflow)
        self.logger.warning(left.describe())

    def _forget_what_is_not_handed_over(self) -> None:
        with self._pending_lock:
            for job in self._never_handed_over():
                del self._pending[job]
            self._held.clear()
            self._late.clear()

    def _cancel_all(self) -> Cancelling:
        self._forget_what_is_not_handed_over()
        with self._pending_lock:
            self._ending |= set(self._pending)
        return Cancelling(self._machine, sorted(self._ending), self.logger)

    def _never_handed_over(self) -> list[int]:
        """The jobs whose hand-over was interrupted, or failed, and did not come about."""
        found: list[int] = []
        unsure = [self._pending[job].ticket for job in self._unsure & self._pending.keys()]
        for ticket in unsure:
            # What is not known now is told to end.
            with contextlib.suppress(OSError, KochiError):
                missing = Queue(self._machine, ticket.queue).find_missing([ticket])
                found += [each.job for each in missing]
        return found

    @property
    def _has_unended(self) -> bool:
        """Whether jobs of this run may go on after it, as far as is known: no other may then start
        beside them."""
        jobs = self._ending.union(self._pending)
        try:
            return any(not is_there(self._machine.job(job).result) for job in jobs)
        except OSError:
            return True

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
        if self._inbox.adopter is None and not self._has_left:
            self._workers.stop(lambda: self._further_interrupts.is_noted)
        self._close()
        self._passes.end_timers()
        super().shutdown()

    def _close_unused(self) -> None:
        """Where there was nothing to be done Snakemake does not shut down."""
        if not self._used_queues:
            self._stop_watching()
            self._workers.stop()
            self._close()

    def _close(self) -> None:
        atexit.unregister(self._close_unused)
        if self._inbox.adopter is not None:
            # Jobs, queues and allocations are that one's; local workers end with this process.
            leave_to_adopter(self.workflow)
            self._inbox.leave()
            return
        self._tidily(lambda: self._adoption.end(self._all_went_well))
        self._tidily(self._give_run_summary)
        if not self._queue_is_forced and not self._has_left:
            self._tidily(lambda: remove_private_queues(self._machine, self._inbox.identity))
        if self._has_left or self._has_unended:
            self._inbox.leave()
        else:
            self._inbox.close()

    def _tidily(self, step: Callable[[], object]) -> None:
        """A step of tidying up, without which the run has ended all the same."""
        try:
            step()
        except (OSError, KochiError) as error:
            self.logger.warning(f"Not everything could be tidied up after the run: {error}")

    def _give_run_summary(self) -> None:
        """Say how the jobs were executed, and what they took."""
        self._run_file.end()
        if self._has_told:
            return  # Snakemake shuts down once more, after an error of ours
        self._has_told = True
        unreported = [pending.ticket for pending in self._pending.values()]
        if lines := self._run_summary.lines(self._run_file.first_worker, unreported):
            self.logger.info("\n".join(lines))


def _show_outputs(ended: Sequence[tuple[Ticket, Result]]) -> None:
    """Have the outputs of jobs on other nodes seen here before Snakemake looks for them. A
    directory is listed only where what the job has left is not seen, and once for all of them."""
    here = this_node().host
    outputs = {
        os.path.join(ticket.directory, name): seen
        for ticket, result in ended
        if result.node != here
        for name, seen in result.outputs.items()
    }
    for directory in {os.path.dirname(path) for path in outputs if _state(path) != outputs[path]}:
        show_new_files(directory)


def _state(path: str) -> tuple[int, int] | None:
    """As in Result.outputs; None for what cannot be seen."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    return None
