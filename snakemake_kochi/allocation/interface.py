"""What the executor asks of those who see to workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from snakemake_kochi.queue import Resources, Ticket
from snakemake_kochi.schedulers.request import NO_REQUEST, AllocationRequest


class Workers(Protocol):
    """Workers for the queues of one controller: started when jobs wait, and ended with it. The
    scheduler's thread and the watcher's may both call. Where it `takes_requests`, all
    jobs of a queue have the same one."""

    @property
    def takes_requests(self) -> bool:
        """Whether what a job requests of its allocation means something to them."""

    @property
    def have_one_size(self) -> bool:
        """Whether they are in allocations whose size is not made for the jobs that wait: then jobs
        of all kinds may be in one queue, and each further queue costs an allocation."""

    def serve(self, queues: Sequence[str], request: AllocationRequest = NO_REQUEST) -> None:
        """See to it that the queues are served, too, by workers in allocations with the request."""

    def adopt(self, controllers: Sequence[str]) -> None:
        """Adopt the allocations of these dead controllers; do not wait for them any longer."""

    def will_serve(self, queue: str) -> bool:
        """Whether a queue would be served by these workers now, and not left to others."""

    def fit(
        self, rule: str, wanted: Resources, request: AllocationRequest = NO_REQUEST
    ) -> Resources:
        """What a job of a rule is to ask for, so that one of these workers can run it.

        Raises KochiError, naming the rule and the limit, when none ever can.
        """

    def look_after(self, pending: Mapping[str, Sequence[Ticket]]) -> None:
        """Replace workers that ended, and get more where jobs wait: `pending` are those that have
        not ended, by queue. Cheap; to be called again and again. Raises KochiError when that will
        not do any more."""

    def job_ended(self, worker: int) -> None:
        """A job of that worker has a result."""

    @property
    def go_on_alone(self) -> bool:
        """Whether these workers go on when their controller is no more."""

    def leave(self, is_needed: bool) -> None:
        """Instead of `stop`, where they go on alone: leave the workers to their jobs, and to the
        next controller. Those that have not come yet are given back unless one `is_needed`."""

    def stop(self, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Drain the workers, then end those that do not leave; at once when it becomes urgent."""
