"""The jobs whose results a run awaits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from snakemake_kochi.executor.run import PendingJob, PendingJobs
from snakemake_kochi.queue import Ticket


class Interrupted(list[PendingJob]):
    """Ctrl-C comes when it is read for the second time."""

    reads = 0

    def __iter__(self) -> Iterator[PendingJob]:
        self.reads += 1
        if self.reads == 2:
            raise KeyboardInterrupt
        return super().__iter__()


@pytest.fixture
def job(tmp_path: Path) -> Callable[[int], PendingJob]:
    def make(number: int) -> PendingJob:
        ticket = Ticket(name="a", command=("true",), directory=str(tmp_path), job=number)
        return PendingJob(SubmittedJobInfo(None), ticket)

    return make


def test_jobs_can_be_cancelled_after_an_interrupt_while_they_are_noted(
    job: Callable[[int], PendingJob],
) -> None:
    pending = PendingJobs()
    pending.note([job(1)])
    with pytest.raises(KeyboardInterrupt):
        pending.note(Interrupted([job(2), job(3)]))
    assert [ticket.job for ticket in pending.uncertain()] == [1]
    assert pending.numbers() == [1]
