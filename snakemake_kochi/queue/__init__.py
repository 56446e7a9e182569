"""Tickets, claims, results and bells. The protocol is in docs/queue.md."""

from snakemake_kochi.queue.bell import Bell, ring
from snakemake_kochi.queue.cancellation import cancel
from snakemake_kochi.queue.capacity import Capacity, format_duration
from snakemake_kochi.queue.controllers import dead_controllers, forget_controller, jobs_of
from snakemake_kochi.queue.ids import allocate_ids
from snakemake_kochi.queue.inbox import Inbox
from snakemake_kochi.queue.jobs import JobView, find_job, list_jobs
from snakemake_kochi.queue.lock import queue_lock
from snakemake_kochi.queue.queue import Answer, Claim, Queue, QueueView, list_queues
from snakemake_kochi.queue.recovery import recover
from snakemake_kochi.queue.result import Attempt, EndedAttempt, Result
from snakemake_kochi.queue.ticket import Resources, Ticket
from snakemake_kochi.queue.workers import (
    WorkerState,
    assign_queues,
    find_worker,
    list_workers,
    shared_workers,
)

__all__ = [
    "Answer",
    "Attempt",
    "EndedAttempt",
    "Bell",
    "Capacity",
    "Claim",
    "Inbox",
    "JobView",
    "Queue",
    "QueueView",
    "Resources",
    "Result",
    "Ticket",
    "WorkerState",
    "allocate_ids",
    "assign_queues",
    "cancel",
    "dead_controllers",
    "find_job",
    "find_worker",
    "forget_controller",
    "format_duration",
    "jobs_of",
    "list_jobs",
    "list_queues",
    "list_workers",
    "queue_lock",
    "recover",
    "ring",
    "shared_workers",
]
