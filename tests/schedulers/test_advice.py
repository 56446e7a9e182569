"""Advice for a user about an allocation that waits."""

from __future__ import annotations

import pytest

from snakemake_kochi.project.machines import Machine
from snakemake_kochi.schedulers.slurm.answers import advice

OWN = Machine("own").allocation_at


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
def test_hopeless_allocations_come_with_the_keys_to_change(reason, keys):
    assert f"machines: own: allocation: {keys} in kochi.yaml" in advice(reason, "12", OWN)


@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue"),
        *("launch failed requeued held", "launch_failed_requeued_held"),
    ],
)
def test_the_advice_for_a_held_allocation_is_to_release_it(reason):
    assert "scontrol release 12_3" in advice(reason, "12_3", OWN)


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
def test_the_advice_for_a_limit_shows_how_to_see_it(reason, key, shown):
    said = advice(reason, "12", OWN)
    assert said.startswith("It begins when other jobs under this limit have ended, and never if")
    assert f"sacctmgr show {shown}" in said
    assert f"machines: own: allocation: {key}, max_workers, cores, memory, gpus in" in said


@pytest.mark.parametrize(
    ("reason", "key"),
    [("AssocGrpCPUMinutesLimit", "account"), ("QOSGrpBillingMinutes", "qos")],
)
def test_the_advice_for_an_exhausted_budget_is_another_account(reason, key):
    said = advice(reason, "12", OWN)
    assert said.startswith("The budget is exhausted")
    assert f"Another {key} or a shorter time may help" in said


@pytest.mark.parametrize(
    "reason",
    [
        *("Priority", "Resources", "None", "BeginTime", "Dependency", "Licenses", "Cleaning"),
        "Reservation",
    ],
)
def test_there_is_no_advice_where_waiting_helps(reason):
    assert advice(reason, "12", OWN) == ""
