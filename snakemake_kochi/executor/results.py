"""The results of a run, and the regular look at its workers.

Results are reported to Snakemake as they arrive.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from humanfriendly.text import pluralize
from snakemake_interface_executor_plugins.executors.real import RealExecutor

from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError, UserError
from snakemake_kochi.executor.internals import (
    SchedulerWakes,
    is_told_to_end,
    note_result,
    without_jobs,
)
from snakemake_kochi.executor.run import PendingJob, Run
from snakemake_kochi.executor.submission import Submission
from snakemake_kochi.files import last_lines, show_new_files
from snakemake_kochi.hints import typed
from snakemake_kochi.notices import Notices
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue import Result, Ticket, withdraw

_log = logging.getLogger(__name__)

# Seconds between two looks at the run's own workers: how soon it notices that one has ended.
_WORKERS_SECONDS = 0.5
# Seconds for which the inbox is not listed without a notification: none arrives from other nodes.
# The second number is for a run in which nothing happens, the third for one whose workers are all
# on this node: their notifications arrive.
_INBOX_SECONDS = (0.5, 1.0, 2.0)
# Seconds between two looks at queues: how soon the run notices a presumed dead worker.
_LOOK_SECONDS = (0.5, 2.0)
# The factor by which the pause between two looks is longer than a look: a look costs time for each
# pending job.
_LOOK_SHARE = 30
# The longest pause after a look: a look during which the filesystem hung must not stop further
# looks for long.
_LONGEST_PAUSE = 60.0
# The number of jobs per look for which a lost delivery is searched, and the seconds after which the
# search begins anew: each job costs a call, and a delivery is hardly ever lost.
_SEARCHED = 64
_SEARCH_SECONDS = 10.0
_LAST_LINES = 20
_INNER_WORDS = (
    "Building DAG of jobs...",
    "Using shell: ",
    "Select jobs to execute...",
    "Execute 1 jobs...",
)
# The wording of subprocess.CalledProcessError.
_COMMAND_STATUS = re.compile(r"non-zero exit status \d+|died with <Signals\.\w+: \d+>")


class Results:
    """Reports results in a thread of its own.

    The thread sleeps until a notification for the inbox arrives, reports the results in it, and
    looks after the run's queues and workers from time to time. It reports an error that ends the
    run to Snakemake, which would otherwise wait for ever, and sets `has_broken_off`.
    """

    def __init__(
        self,
        run: Run,
        executor: RealExecutor,
        submission: Submission,
        wakes: SchedulerWakes,
        has_workers: bool,
    ) -> None:
        """Prepare the thread; `has_workers`: whether the run has workers of its own."""
        self._run = run
        self._executor = executor
        self._submission = submission
        self._wakes = wakes
        self._has_workers = has_workers
        self._notices = Notices(_log)
        self._next_look = self._next_workers = self._next_inbox = 0.0
        self._search = Search()
        self._pauses = Pauses()
        self.has_broken_off = False
        self._thread = threading.Thread(target=self._watch, name="kochi-results", daemon=True)

    def start(self) -> None:
        self._next_look = self._next_workers = time.monotonic() + self._pauses.look
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread.

        Afterwards nothing is reported, except by the thread itself if it is the caller.
        """
        self._run.stopping.set()
        self._run.inbox.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        run = self._run
        try:
            while not run.stopping.is_set():
                moment = time.monotonic()
                due = min(self._next_inbox, self._next_look, self._next_workers)
                is_look = due >= self._next_inbox
                results = run.inbox.wait(max(0.0, due - moment), is_look)
                if is_look or results:
                    self._next_inbox = time.monotonic() + self._pauses.inbox
                if results:
                    self._pauses.reset()
                    self._search.put_off()
                self._report([*results, *run.pending.take_delivered()])
                try:
                    self._look_after_run()
                except OSError as error:
                    # A later look reads again what is not known now; the jobs in the workers go on.
                    self._notices.fault("the state of the run cannot be read now", error)
        except Exception as error:
            self.has_broken_off = True
            if isinstance(error, KochiError):
                error = UserError(error.message, error.hint)
            run.workflow.scheduler.executor_error_callback(error)

    # ---- reports

    def _report(self, results: Sequence[Result]) -> None:
        found = [(self._run.pending.end(result.job), result) for result in results]
        ended = [(pending, result) for pending, result in found if pending is not None]
        if ended:
            # They were written, so a full disk may have space again; the run may end before a look.
            self._run.queue_watch.check_free_space()
        show_outputs([(pending.ticket, result) for pending, result in ended if result.ok])
        for pending, result in ended:
            self._report_one(pending, result)

    def _report_one(self, pending: PendingJob, result: Result) -> None:
        self._wakes.drop()
        self._run.summary.add(pending.ticket, result)
        if result.worker is not None and result.reason != "cancelled":
            self._run.workers.job_ended(result.worker)
        if result.ok:
            note_result(pending.info.job, pending.ticket.queue, result)
            self._executor.report_job_success(pending.info)
            return
        self._run.failed.set()
        self._executor.report_job_error(
            pending.info,
            msg=failure_message(pending.ticket, result),
            aux_logs=[result.log],
            see=typed(f"kochi show log job {result.job}"),
        )

    # ---- workers and queues

    def _look_after_run(self) -> None:
        run = self._run
        if run.stopping.is_set():
            return
        if is_told_to_end(run.workflow):
            self._withdraw()
        if time.monotonic() >= self._next_workers:
            self._next_workers = time.monotonic() + _WORKERS_SECONDS
            run.workers.look_after(run.pending.by_queue())
        if time.monotonic() >= self._next_look:
            began = time.monotonic()
            are_near = run.queue_watch.has_only_near_workers(run.pending.by_queue())
            self._pauses.note(run.pending.numbers(), run.adoption.is_empty, are_near)
            try:
                self._look()
            finally:  # else a failing look would be repeated without a pause
                took = time.monotonic() - began
                pause = min(_LOOK_SHARE * took, took + _LONGEST_PAUSE)
                self._next_look = began + max(self._pauses.look, pause)
            if self._has_workers and not run.adoption.is_empty:
                self._submission.hand_over_strays_anew()
        if not run.adoption.is_empty:
            self._submission.hand_over_held()

    def _withdraw(self) -> None:
        """Withdraw the jobs that have not begun, of which Snakemake would await the ends."""
        run = self._run
        jobs = self._submission.take_held()
        try:
            for queue, tickets in run.pending.by_queue().items():
                for number in withdraw(run.machine, queue, [ticket.job for ticket in tickets]):
                    if (pending := run.pending.end(number)) is not None:
                        jobs.append(pending.info.job)
        finally:  # a queue that cannot be read now is tried again; of these jobs nobody else knows
            if jobs:
                run.failed.set()
                without_jobs(run.workflow, jobs)
                some = pluralize(len(jobs), "job that had", "jobs that had")
                run.logger.info(f"Withdrew {some} not begun, because of SIGTERM.")

    def _look(self) -> None:
        run, queues = self._run, self._run.pending.by_queue()
        run.queue_watch.check_free_space()
        run.queue_watch.check_paused(run.workflow.workdir_init)
        for queue, tickets in queues.items():
            run.queue_watch.look(queue, tickets, self._has_workers)
        for queue in run.adoption.queues_of_ending() - queues.keys():
            run.queue_watch.recover(queue)
        for result in run.inbox.find_undelivered(self._search.next(run.pending.numbers())):
            run.pending.deliver(result)


class Pauses:
    """Seconds for which a run waits for a notification: `inbox`, before it lists its inbox, and
    `look`, before it looks at workers and queues. Both grow while nothing happens."""

    def __init__(self) -> None:
        self._awaited: Sequence[int] = ()
        self._inbox = GrowingPause(*_INBOX_SECONDS[:2])
        self._look = GrowingPause(*_LOOK_SECONDS)

    @property
    def inbox(self) -> float:
        return self._inbox.seconds

    @property
    def look(self) -> float:
        return self._look.seconds

    def reset(self) -> None:
        """Something has happened."""
        self._inbox.reset()
        self._look.reset()

    def note(self, awaited: Sequence[int], may_grow: bool, are_near: bool = False) -> None:
        """Note a look; `awaited`: the jobs that have not ended; `are_near`: whether all workers
        are on this node."""
        if awaited != self._awaited or not may_grow:
            self._awaited = awaited
            self.reset()
        else:
            self._inbox.grow(_INBOX_SECONDS[2 if are_near else 1])
            self._look.grow()


class Search:
    """Which jobs' results to look for, because their deliveries may be lost.

    A delivery is not missed as long as others arrive. Then each job has its turn, but none is
    looked for twice within _SEARCH_SECONDS, nor before they have passed: at first no job has ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = -1  # the job
        self._next_round = clock() + _SEARCH_SECONDS
        self._is_put_off = False

    def put_off(self) -> None:
        """Deliveries arrive: the next look searches nothing."""
        self._is_put_off = True

    def next(self, awaited: Sequence[int]) -> Sequence[int]:
        """The jobs of this look, of those that have not ended, in ascending order."""
        if self._is_put_off:
            self._is_put_off = False
            return ()
        if self._last < 0:
            if self._clock() < self._next_round:
                return ()
            self._next_round = self._clock() + _SEARCH_SECONDS
        start = bisect.bisect_right(awaited, self._last)
        some = awaited[start : start + _SEARCHED]
        self._last = some[-1] if start + _SEARCHED < len(awaited) else -1
        return some


def failure_message(ticket: Ticket, result: Result) -> str:
    """How and where a job failed, and the end of its log."""
    ending = last_lines(Path(result.log), 2 * _LAST_LINES)
    how = typed(result.describe())
    lines = [f"kochi job {result.job} on node {result.node or '(none)'}: {how}"]
    # The ended process is the inner Snakemake, which always ends with 1. The exit status of the
    # rule's own command is in its log.
    if own := _COMMAND_STATUS.search("\n".join(ending)):
        lines.append(f"the rule's command: {own[0]}")
    if wildcards := ticket.labels.get("wildcards"):
        lines.append(f"wildcards: {wildcards}")
    shown = _without_report(ending)[-_LAST_LINES:]
    lines += [f"    {line}" for line in shown]
    return "\n        ".join(lines)


def _without_report(lines: Sequence[str]) -> list[str]:
    """The last lines of a log without the messages of the inner Snakemake.

    The controller's own report repeats these messages, and the job's output would be lost among
    them.
    """
    end = next((i for i, line in enumerate(lines) if line == "RuleException:"), len(lines))
    kept = [line for line in lines[:end] if not line.startswith(_INNER_WORDS)]
    return kept or list(lines)


def show_outputs(ended: Sequence[tuple[Ticket, Result]]) -> None:
    """Make the outputs of jobs on other nodes visible here before Snakemake looks for them.

    It lists a directory only if an output is not visible, and once for all outputs in it.
    """
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
    """The state of a file as in Result.outputs; None if the file is not visible."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    return None
