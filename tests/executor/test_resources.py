"""Which queue a job goes to by its resources, and resources that grow with each retry."""

from __future__ import annotations

from typing import Any

import pytest

from snakemake_kochi.executor.job_queues import Assignment, JobQueues
from snakemake_kochi.files import is_name
from snakemake_kochi.schedulers.interface import NO_REQUEST
from snakemake_kochi.tickets.ticket import Resources


class Job:
    """The parts of a job that its request is read from."""

    name = "one"

    def __init__(self, **resources: Any) -> None:
        self.resources = resources


class Log:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def debug(self, text: str) -> None:
        pass


# ---- where jobs go


def test_jobs_with_the_same_request_share_a_queue_and_others_do_not() -> None:
    own = f"run-{'h' * 64}-4194304-01234567"
    requests = JobQueues(own, True, Log())  # type: ignore[arg-type]

    def queue(**values: Any) -> str:
        assigned = requests.assign(Job(**values), own, Resources(), True)  # type: ignore[arg-type]
        assert requests.of(assigned.queue) == assigned.request
        return assigned.queue

    assert queue() == queue(tasks=1, mem_mb=3) == own
    long = queue(slurm_partition="long")
    assert long == queue(slurm_partition="long", cpus_per_task=1)
    others = [queue(slurm_partition="longer" * 40), queue(qos="long"), queue(slurm_partition="x/y")]
    assert len({own, long, *others}) == 5
    assert all(is_name(each) and each.startswith(f"{own}-") for each in (long, *others))
    assert "partition_long" in long


def test_exclusive_jobs_have_workers_of_their_own_if_workers_have_whole_nodes() -> None:
    def assigned(queue: str, are_granted: bool = True, **values: Any) -> tuple[str, bool]:
        log = Log()
        requests = JobQueues("run-me", are_granted, log)  # type: ignore[arg-type]
        job: Any = Job(**values)
        found = requests.assign(job, queue, Resources(exclusive=True), True)
        assert log.warnings == []
        return found.queue, found.request.whole_nodes

    alone = assigned("run-me")
    assert alone[0].startswith("run-me-exclusive_node-")
    assert alone[1]
    assert assigned("run-me", slurm_partition="long")[0] not in ("run-me", alone[0])
    assert assigned("run-me", are_granted=False) == ("run-me", False)
    assert assigned("another") == ("another", False)
    named = assigned("another", slurm_partition="long")
    assert named[0].startswith("run-me-another-partition_long_exclusive") and named[1]


@pytest.mark.parametrize("are_granted", [True, False])
def test_a_users_workers_take_jobs_as_they_are_and_a_notice_says_so_once(are_granted: bool) -> None:
    log = Log()
    requests = JobQueues("run-me", are_granted, log)  # type: ignore[arg-type]
    for _ in range(3):
        job: Any = Job(slurm_partition="long", nodes=2)
        found = requests.assign(job, "q", Resources(), is_ours=False)
        assert found.queue == "q" and found.request == NO_REQUEST
        # Where there are allocations, too small ones do not run it.
        assert found.resources.nodes == (2 if are_granted else 1)
    assert len(log.warnings) == 1
    assert "slurm_partition" in log.warnings[0]


def test_a_job_with_a_request_in_a_named_queue_gets_allocations_that_have_it() -> None:
    log = Log()
    private = f"run-{'h' * 64}-4194304-01234567"
    requests = JobQueues(private, True, log)  # type: ignore[arg-type]

    def assigned(queue: str, **values: Any) -> Assignment:
        return requests.assign(Job(**values), queue, Resources(), True)  # type: ignore[arg-type]

    assert assigned("big").queue == "big"
    one = assigned("big", nodes=2, slurm_partition="fat")
    assert one == assigned("big", nodes=2, slurm_partition="fat")
    assert requests.of(one.queue) == one.request
    assert (one.request.nodes, one.request.constraints["partition"]) == (2, "fat")
    assert one.queue.startswith(f"{private}-") and "-big-" in one.queue
    assert one.queue != assigned("bigger", nodes=2, slurm_partition="fat").queue
    longest = assigned("q" * 128, nodes=2).queue
    assert is_name(longest) and longest.startswith(private)
    assert log.warnings == []


@pytest.mark.parametrize(("usual", "expected"), [(1, None), (3, 1)])
def test_one_node_is_a_request_where_a_worker_usually_leads_several(
    usual: int, expected: int | None
) -> None:
    requests = JobQueues("run-me", True, Log(), usual)  # type: ignore[arg-type]
    job: Any = Job(nodes=1)
    assert requests.assign(job, "run-me", Resources(), True).request.nodes == expected


def test_without_allocations_requests_are_ignored_silently_also_invalid_ones() -> None:
    log = Log()
    requests = JobQueues("run-me", False, log)  # type: ignore[arg-type]
    job = Job(slurm_partition="long", nodes="many", cpus_per_task=99)
    assigned = requests.assign(job, "run-me", Resources(), True)  # type: ignore[arg-type]
    assert (assigned.queue, assigned.resources) == ("run-me", Resources())
    assert log.warnings == []


def test_an_unknown_resource_is_reported_once_with_the_nearest_name() -> None:
    log = Log()
    requests = JobQueues("run-me", True, log)  # type: ignore[arg-type]
    for _ in range(2):
        for wrong in ("slurm_partion", "slurm_qos"):
            job: Any = Job(**{wrong: "x"})
            requests.assign(job, "run-me", Resources(), True)
    assert log.warnings == [
        "Rule one, resource slurm_partion is not known; did you mean 'slurm_partition'?",
        "Rule one, resource slurm_qos is not known; did you mean 'qos'?",
    ]
