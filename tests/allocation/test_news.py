"""What a person is told of allocations that wait."""

from __future__ import annotations

import pytest

from snakemake_kochi.allocation.notices import Reasons
from snakemake_kochi.schedulers.interface import Allocation
from snakemake_kochi.schedulers.slurm.answers import advice


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def waiting(*reasons: str) -> list[Allocation]:
    return [Allocation(f"12_{i}", "pending", reason) for i, reason in enumerate(reasons, 1)]


def test_a_reason_is_told_verbatim_once_for_all_that_wait_for_it():
    reasons = Reasons()
    assert list(reasons.notices(waiting("Priority", "Priority", "Priority"))) == [
        "3 allocations wait (12_1 to 12_3): Priority"
    ]
    assert list(reasons.notices(waiting("Priority", "Priority"))) == []
    unavailable = "ReqNodeNotAvail, UnavailableNodes:node[1-2]"
    assert list(reasons.notices(waiting(unavailable))) == [f"Allocation 12_1 waits: {unavailable}"]


def test_reasons_that_change_to_and_fro_are_told_again_only_after_a_long_time():
    clock = Clock()
    reasons = Reasons(clock)
    told = []
    for reason in ("Priority", "Resources") * 10:
        told += reasons.notices(waiting(reason))
        clock.now += 60
    assert [line.rpartition(" ")[2] for line in told] == ["Priority", "Resources"]
    clock.now += 1200
    assert len(list(reasons.notices(waiting("Priority")))) == 1


def test_what_runs_and_what_has_no_reason_yet_is_not_told():
    running = Allocation("1", "running", "None")
    assert list(Reasons().notices([*waiting("None", ""), running])) == []


def test_what_to_do_is_told_with_the_reason():
    held = Allocation("12", "pending", "JobHeldUser", advice="Let it go.")
    assert list(Reasons().notices([held])) == ["Allocation 12 waits: JobHeldUser. Let it go."]


@pytest.mark.parametrize(
    ("reason", "keys"),
    [
        ("PartitionTimeLimit", "time, partition"),
        ("PartitionConfig", "partition, time, nodes, cores, memory, gpus"),
        ("BadConstraints", "constraint, partition, cores, memory, gpus"),
        ("InvalidAccount", "account"),
        ("InvalidQOS", "qos"),
        ("QOSMaxWallDurationPerJobLimit", "time, qos"),
        ("AssocMaxWallDurationPerJobLimit", "time, account"),
        ("QOSMaxCpuPerJobLimit", "cores, memory, gpus, time, qos"),
        ("AssocMaxGRESPerNode", "cores, memory, gpus"),
        ("ReqNodeNotAvail, UnavailableNodes:node1", "time, partition, reservation"),
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", "time, partition, reservation"),
        ("DependencyNeverSatisfied", "arguments"),
    ],
)
def test_what_does_not_begin_by_itself_comes_with_the_keys_to_change(reason, keys):
    assert f"machines: own: allocation: {keys} in kochi.yaml" in advice(reason, "12", "own")


@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue"),
        *("launch failed requeued held", "launch_failed_requeued_held"),
    ],
)
def test_of_one_that_is_held_it_is_told_how_to_let_it_go(reason):
    assert "scontrol release 12_3" in advice(reason, "12_3", "own")


@pytest.mark.parametrize(
    ("reason", "key", "shown"),
    [
        ("AssocMaxJobsLimit", "account", "associations"),
        ("AssocGrpCpuLimit", "account", "associations"),
        ("AssocGrpCPURunMinutesLimit", "account", "associations"),
        ("QOSMaxJobsPerUserLimit", "qos", "qos"),
        ("QOSMaxCpuPerUserLimit", "qos", "qos"),
    ],
)
def test_of_a_limit_that_may_be_too_small_for_one_job_it_is_told_how_to_see_it(reason, key, shown):
    said = advice(reason, "12", "own")
    assert said.startswith("It begins when others under this limit have ended, and never if")
    assert f"sacctmgr show {shown}" in said
    assert f"machines: own: allocation: {key}, max_workers, cores, memory, gpus in" in said


@pytest.mark.parametrize(
    ("reason", "key"),
    [("AssocGrpCPUMinutesLimit", "account"), ("QOSGrpBillingMinutes", "qos")],
)
def test_of_what_is_used_up_another_account_is_advised(reason, key):
    said = advice(reason, "12", "own")
    assert said.startswith("What may be used is used up")
    assert f"Another {key} or a shorter time may help" in said


@pytest.mark.parametrize(
    "reason",
    [
        *("Priority", "Resources", "None", "BeginTime", "Dependency", "Licenses", "Cleaning"),
        "Reservation",
    ],
)
def test_where_waiting_helps_nothing_is_advised(reason):
    assert advice(reason, "12", "own") == ""
