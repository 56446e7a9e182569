"""Tickets, claims, results and wake-up FIFOs. The protocol is in docs/queue.md."""

from snakemake_kochi.allocation.notes import AllocationNote, list_allocations, note_allocations
from snakemake_kochi.quantities import seconds_since
from snakemake_kochi.queue.adoption import Ended, Orphans, Running
from snakemake_kochi.queue.cancelling import cancel, cancel_all, withdraw
from snakemake_kochi.queue.claiming import Answer, Claim
from snakemake_kochi.queue.controllers import OtherControllers
from snakemake_kochi.queue.entries import QueueRemovedError, allocate_ids, ids_lock, queue_lock
from snakemake_kochi.queue.explain import (
    AttemptView,
    attempts,
    explain,
    reasons,
    state_name,
    state_of,
)
from snakemake_kochi.queue.inbox import Inbox
from snakemake_kochi.queue.jobs import (
    JobView,
    find_job,
    has_ended,
    jobs_of,
    list_jobs,
    packed_log,
    packed_result,
    summary_of,
    view_ended,
)
from snakemake_kochi.queue.observer import Observer
from snakemake_kochi.queue.queue import (
    Queue,
    QueueView,
    list_queues,
    private_queue,
    remove_private_queues,
)
from snakemake_kochi.queue.recovery import recover
from snakemake_kochi.queue.result import Attempt, EndedAttempt, Result
from snakemake_kochi.queue.runs import RunFile, RunRecord, find_run, list_runs
from snakemake_kochi.queue.ticket import Benchmark, Kind, Resources, ShellJob, Ticket
from snakemake_kochi.queue.wakeup import (
    Release,
    WakeUp,
    assign_queues,
    notify,
    order_release,
    read_queues,
    shared_workers,
)
from snakemake_kochi.queue.workers import (
    RequestedWorker,
    WorkerState,
    find_worker,
    list_workers,
    note_requested,
    requested_workers,
    seconds_for_jobs,
    seconds_in_all,
    seconds_left,
)
from snakemake_kochi.tickets.capacity import Capacity

__all__ = [
    "AllocationNote",
    "Answer",
    "RequestedWorker",
    "Attempt",
    "AttemptView",
    "Ended",
    "EndedAttempt",
    "Orphans",
    "WakeUp",
    "Benchmark",
    "Capacity",
    "Claim",
    "Inbox",
    "JobView",
    "Observer",
    "OtherControllers",
    "Queue",
    "Release",
    "QueueRemovedError",
    "QueueView",
    "Resources",
    "Kind",
    "Result",
    "RunFile",
    "RunRecord",
    "Running",
    "ShellJob",
    "Ticket",
    "WorkerState",
    "allocate_ids",
    "requested_workers",
    "assign_queues",
    "attempts",
    "cancel",
    "cancel_all",
    "explain",
    "find_job",
    "has_ended",
    "find_run",
    "ids_lock",
    "find_worker",
    "jobs_of",
    "list_allocations",
    "list_jobs",
    "list_queues",
    "list_runs",
    "list_workers",
    "note_allocations",
    "note_requested",
    "order_release",
    "read_queues",
    "private_queue",
    "remove_private_queues",
    "queue_lock",
    "reasons",
    "recover",
    "notify",
    "seconds_for_jobs",
    "seconds_in_all",
    "seconds_left",
    "seconds_since",
    "shared_workers",
    "state_name",
    "state_of",
    "packed_log",
    "packed_result",
    "summary_of",
    "view_ended",
    "withdraw",
]
