"""The limits of partitions, and requests if their nodes are of several kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from slurm_fake import FakeSlurm, says

from snakemake_kochi.allocation.packing import Supply, obstacle
from snakemake_kochi.allocation.sizing import workers_to_request
from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.schedulers.commands import Pace
from snakemake_kochi.schedulers.interface import (
    AllocationRequest,
    AllocationSettings,
    Limits,
    RefusedError,
)
from snakemake_kochi.schedulers.slurm.partitions import limits_of, read_partitions, without_withheld
from snakemake_kochi.schedulers.slurm.slurm import Slurm
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.ticket import Resources

OWN = Machine("own").allocation_at

SAID = """\
Welcome | to | west | and | enjoy
main*|1-00:00:00|4|4000|(null)
main*|1-00:00:00|64|256000|(null)
gpus|30:00|32|128000|gpu:a100:4(S:0-1),craynetwork:4
gpus|30:00|16|512000|gpu:2,gpu:v100:1
month|infinite|8|8000|(null)
"""
CPUS, GPUS, MEMORY = Capacity(64, 256_000), Capacity(32, 128_000, 4), Capacity(16, 512_000, 3)


def limits(partition: str | None = None, **settings: object) -> Limits:
    own = AllocationSettings(**settings)  # type: ignore[arg-type]
    return limits_of(read_partitions(SAID), partition, own, OWN)


def test_by_default_the_limits_are_those_of_the_default_partition():
    found = limits()
    assert (found.node, found.nodes, found.seconds) == (CPUS, (CPUS,), 86400.0)


def test_the_largest_of_several_partitions_counts():
    assert limits("main,gpus").seconds == 86400.0
    assert limits("main,month").seconds is None
    assert limits("gpus").node == Capacity(32, 512_000, 4)
    assert set(limits("main,gpus").nodes) == {CPUS, GPUS, MEMORY}


def test_settings_override_the_partition():
    found = limits(cores=2, memory_mb=100, gpus=0, time=60.0, max_workers=3)
    assert (found.workers, found.node, found.seconds) == (3, Capacity(2, 100), 60.0)


def test_a_longer_time_than_the_partition_has_is_refused_but_for_a_qos():
    with pytest.raises(RefusedError) as caught:
        limits("gpus", time=7200.0)
    assert (
        "an allocation of 2:00:00 would wait for ever: the longest time of partition gpus is "
        "0:30:00" in str(caught.value)
    )
    assert "Request 0:30:00 at most, by machines: own: allocation: time in" in str(caught.value)
    assert limits("gpus", time=1800.0).seconds == 1800.0
    assert limits("gpus,month", time=7200.0).seconds == 7200.0
    assert limits("gpus", time=7200.0, constraints=FrozenDict(qos="long")).seconds == 7200.0
    assert limits("gpus", time=7200.0, arguments=("--qos=long",)).seconds == 7200.0


def test_more_cores_than_any_node_has_are_not_requested():
    assert limits(cores=128).node == CPUS
    assert set(limits("main,gpus", cores=48).nodes) == {
        Capacity(48, 256_000),
        Capacity(32, 128_000, 4),
        MEMORY,
    }


def test_more_nodes_than_a_partition_has_are_refused_at_once():
    said = "main*|1:00|4|4000|(null)|big|2\nmain*|1:00|4|4000|(null)|new|3\nlong|1:00|4|4000|||9\n"
    known = read_partitions(said)
    found = limits_of(known, None, AllocationSettings(nodes=5), OWN)
    assert found.node == Capacity(4, 4000, nodes=5)
    assert limits_of(known, "main,long", AllocationSettings(nodes=9), OWN)
    with pytest.raises(RefusedError) as caught:
        limits_of(known, None, AllocationSettings(nodes=6), OWN)
    assert "one allocation requests 6 nodes, but partition main has 5" in str(caught.value)
    assert "machines: own: allocation: nodes, partition in kochi.yaml" in str(caught.value)


def test_a_partition_with_a_limit_of_years_is_one_of_them():
    (known,) = read_partitions("long*|1000-00:00:00|4|4000|(null)|big|2\n")
    assert (known.name, known.seconds) == ("long", 1000 * 86400)


def test_more_tasks_than_a_partition_has_cores_for_are_refused_at_once():
    known = read_partitions("main*|1:00|4|4000|(null)|big|2\nmain*|1:00|8|4000|(null)|new|3\n")
    assert limits_of(known, None, AllocationSettings(), OWN, cores_in_all=32)
    with pytest.raises(RefusedError) as caught:
        limits_of(known, None, AllocationSettings(), OWN, cores_in_all=33)
    said = "the tasks of one allocation need 33 cores, but partition main has 32"
    assert said in str(caught.value)


def test_what_a_job_requests_is_not_looked_for_in_the_machine(tmp_path, monkeypatch):
    FakeSlurm(tmp_path, monkeypatch).answers("sinfo", says("main*|1:00|4|4000|(null)|big|2"))
    slurm = Slurm("name", AllocationSettings(), OWN, Pace(first_pause=0.0))
    at = "the rule's resources or machines: own: allocation: partition in kochi.yaml."
    for request in (AllocationRequest(nodes=3), AllocationRequest(tasks=9)):
        with pytest.raises(RefusedError) as caught:
            slurm.limits(request)
        assert caught.value.hint == f"See {at}"
    partition = FrozenDict(partition="main")
    with pytest.raises(RefusedError) as caught:
        slurm.limits(AllocationRequest(partition, nodes=3))
    assert caught.value.hint == "See the rule's resources."


def test_an_unknown_partition_is_refused_with_the_nearest_one():
    with pytest.raises(RefusedError) as caught:
        limits("gpu")
    assert "Slurm knows no partition 'gpu' with nodes: did you mean 'gpus'?" in str(caught.value)
    assert "machines: own: allocation: partition in kochi.yaml" in str(caught.value)


def test_amounts_that_no_node_has_together_are_refused_before_any_request():
    both = limits("main,gpus")
    assert obstacle(Resources(cores=32, gpus=4), both) is None
    assert obstacle(Resources(cores=65), both) == "65 cores needed, 64 available"
    assert obstacle(Resources(cores=64, gpus=1), both) == (
        "64 cores, 0 MiB of memory and 1 GPU needed on one node, and none has all of that"
    )


def test_jobs_for_different_nodes_get_workers_of_their_own():
    both = limits("main,gpus")
    waiting = {Resources(cores=64): 1, Resources(cores=2, gpus=1): 1}
    asked = workers_to_request(waiting, [], both)
    assert {shape.capacity for shape, _ in asked} == {Capacity(2, 0, 1), Capacity(64, 0, 0)}
    assert [count for _, count in asked] == [1, 1]
    # If only one is allowed at a time, those that fit a node of that kind come first.
    one = replace(both, workers=1)
    [(first, count)] = workers_to_request(waiting, [], one)
    assert (first.capacity, count) == (Capacity(2, 0, 1), 1)
    two = replace(both, workers=2)
    [(second, count)] = workers_to_request(waiting, [Supply(first.capacity)], two)
    assert (second.capacity, count) == (Capacity(64, 0, 0), 1)


def test_the_longest_time_of_a_partition_is_not_requested_by_default():
    waiting = {Resources(): 1}
    assert workers_to_request(waiting, [], limits())[0][0].seconds is None
    assert workers_to_request(waiting, [], limits(time=60.0))[0][0].seconds == 60.0
    assert obstacle(Resources(runtime_seconds=90_000), limits()) == (
        "1 day and 1 hour needed, 1 day available"
    )


def test_a_job_with_a_runtime_is_not_requested_as_one_without():
    waiting = {Resources(): 1, Resources(cores=4, runtime_seconds=7200): 1}
    [(shape, _)] = workers_to_request(waiting, [Supply(Capacity(1, 0), 3600.0)], limits())
    assert shape.seconds >= 7200


def test_slurm_is_asked_once_for_all_partitions(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.answers("sinfo", "exit 1", says(SAID))
    hasty = Pace(answer=5.0, submission=5.0, first_pause=0.0, most_pause=0.0)
    with pytest.raises(RefusedError, match="sinfo refused"):
        Slurm("name", AllocationSettings(), OWN, hasty).limits()
    slurm = Slurm("name", AllocationSettings(), OWN, hasty)
    assert slurm.limits().node == CPUS
    assert slurm.limits(AllocationRequest(FrozenDict(partition="month"))).node == Capacity(8, 8000)
    assert len(fake.calls("sinfo")) == 2


def test_the_users_own_default_partition_counts(tmp_path, monkeypatch):
    FakeSlurm(tmp_path, monkeypatch).answers("sinfo", says(SAID))
    monkeypatch.setenv("SBATCH_PARTITION", "gpus")
    assert Slurm("name", AllocationSettings(), OWN).limits().node.gpus == 4


def test_slurm_need_not_answer_if_the_settings_are_complete(tmp_path, monkeypatch):
    FakeSlurm(tmp_path, monkeypatch)
    settings = AllocationSettings(cores=4, memory_mb=1000, gpus=0)
    assert Slurm("name", settings, OWN).limits().node == Capacity(4, 1000)
    with pytest.raises(RefusedError, match="there is no program sinfo here"):
        Slurm("name", AllocationSettings(), OWN).limits()


NODES = """\
NodeName=a CPUEfctv=62 CPUTot=64 RealMemory=256000 CoreSpecCount=1 MemSpecLimit=6000 \
ThreadsPerCore=2 Partitions=main,small Comment=CPUTot=1
NodeName=b CPUTot=32 RealMemory=128000 CoreSpecCount=1 ThreadsPerCore=2 Partitions=gpus
NodeName=c CPUTot=64 RealMemory=256000 CPUEfctv=64 Partitions=other
"""
SHOWN = """\
PartitionName=main MaxCPUsPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
PartitionName=gpus MaxCPUsPerNode=8 MaxMemPerNode=100000
"""


def test_the_part_of_a_node_that_slurm_keeps_is_not_requested():
    found = without_withheld(read_partitions(SAID), NODES, SHOWN)
    assert [(each.name, each.node) for each in found] == [
        ("main", Capacity(4, 4000)),
        ("main", Capacity(62, 250_000)),
        ("gpus", Capacity(8, 100_000, 4)),
        ("gpus", Capacity(8, 100_000, 3)),
        ("month", Capacity(8, 8000)),
    ]
    assert without_withheld(read_partitions(SAID), NODES, "")[2].node == Capacity(30, 128_000, 4)


def test_without_scontrol_the_answer_of_sinfo_counts():
    partitions = read_partitions(SAID)
    assert without_withheld(partitions, "", "slurm_load_partitions error") == partitions


def test_another_partition_has_its_own_longest_time(tmp_path, monkeypatch):
    FakeSlurm(tmp_path, monkeypatch).answers("sinfo", says(SAID))
    hours = AllocationSettings(FrozenDict(partition="main"), time=7200.0)
    slurm = Slurm("name", hours, OWN, Pace(first_pause=0.0))
    short, month = (
        slurm.limits(AllocationRequest(FrozenDict(partition=name))) for name in ("gpus", "month")
    )
    # A request for two hours would wait for ever if half an hour is the limit.
    assert workers_to_request({Resources(): 1}, [], short)[0][0].seconds == 1800.0
    assert workers_to_request({Resources(): 1}, [], month)[0][0].seconds == 7200.0
    long = Resources(runtime_seconds=10 * 3600)
    assert obstacle(long, month) is None
    assert workers_to_request({long: 1}, [], month)[0][0].seconds > 10 * 3600
    assert slurm.limits(AllocationRequest(FrozenDict(partition="main"))).seconds == 7200.0
    assert obstacle(long, slurm.limits()) is not None


FEATURED = """\
main*|infinite|64|8000|gpu:v100:8|new,big
main*|infinite|32|4000|gpu:a100:4,gpu:v100:1|old,big
main*|infinite|8|2000|(null)|(null)
"""


@pytest.mark.parametrize(
    ("constraint", "cores"),
    [(None, 64), ("old", 32), ("old&big", 32), ("old|new", 64), ("[old*2&new*2]", 64), ("no", 64)],
)
def test_only_nodes_with_the_requested_features_count(constraint, cores):
    settings = AllocationSettings(FrozenDict(constraint=constraint))
    assert limits_of(read_partitions(FEATURED), None, settings, OWN).node.cores == cores


def test_only_gpus_of_the_requested_model_count(tmp_path, monkeypatch):
    FakeSlurm(tmp_path, monkeypatch).answers("sinfo", says(FEATURED))
    slurm = Slurm("name", AllocationSettings(), OWN)
    assert slurm.limits(AllocationRequest(gpu_model="a100")).node == Capacity(32, 4000, 4)
    assert slurm.limits(AllocationRequest(gpu_model="v100")).nodes == (Capacity(64, 8000, 8),)
    assert slurm.limits(
        AllocationRequest(FrozenDict(constraint="old"), gpu_model="v100")
    ).node == Capacity(32, 4000, 1)
    assert slurm.limits().node.gpus == 8
