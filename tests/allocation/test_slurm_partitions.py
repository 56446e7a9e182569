"""What partitions give, and what is asked for where their nodes are of several kinds."""

from __future__ import annotations

import pytest
from slurm_fake import FakeSlurm, says

from snakemake_kochi.allocation.scheduler import RefusedError
from snakemake_kochi.allocation.sizing import Limits, Supply, obstacle, workers_to_ask_for
from snakemake_kochi.allocation.slurm.partitions import limits_of, read_partitions
from snakemake_kochi.allocation.slurm.slurm import Pace, Slurm
from snakemake_kochi.allocation.wishes import Wish
from snakemake_kochi.project.machines import AllocationSettings
from snakemake_kochi.queue import Capacity, Resources

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
    return limits_of(read_partitions(SAID), partition, own, "own")


def test_by_default_the_default_partition_counts_and_its_longest_time():
    found = limits()
    assert (found.node, found.nodes, found.seconds) == (CPUS, (CPUS,), 86400.0)


def test_of_several_partitions_the_most_counts():
    assert limits("main,gpus").seconds == 86400.0
    assert limits("main,month").seconds is None
    assert limits("gpus").node == Capacity(32, 512_000, 4)
    assert set(limits("main,gpus").nodes) == {CPUS, GPUS, MEMORY}


def test_what_the_settings_say_counts():
    found = limits(cores=2, memory_mb=100, gpus=0, time=60.0, max_workers=3)
    assert (found.workers, found.node, found.seconds) == (3, Capacity(2, 100), 60.0)


def test_an_unknown_partition_is_refused_with_the_nearest_one():
    with pytest.raises(RefusedError) as caught:
        limits("gpu")
    assert "Slurm knows no partition 'gpu' with nodes: did you mean 'gpus'?" in str(caught.value)
    assert "machines: own: allocation: partition in kochi.yaml" in str(caught.value)


def test_what_no_node_has_together_is_told_before_anything_is_asked_for():
    both = limits("main,gpus")
    assert obstacle(Resources(cores=32, gpus=4), both) is None
    assert obstacle(Resources(cores=65), both) == "65 cores needed, 64 there"
    assert obstacle(Resources(cores=64, gpus=1), both) == (
        "64 cores, 0 MiB of memory and 1 GPU needed on one node, and none has all of that"
    )


def test_jobs_for_different_nodes_get_workers_of_their_own():
    both = limits("main,gpus")
    waiting = {Resources(cores=64): 1, Resources(cores=2, gpus=1): 1}
    first, count = workers_to_ask_for(waiting, [], both)
    assert (first.capacity, count) == (Capacity(2, 0, 1), 1)
    second, count = workers_to_ask_for(waiting, [Supply(first.capacity)], both)
    assert (second.capacity, count) == (Capacity(64, 0, 0), 1)


def test_nobody_asks_for_all_of_a_partitions_longest_time():
    waiting = {Resources(): 1}
    assert workers_to_ask_for(waiting, [], limits())[0].seconds is None
    assert workers_to_ask_for(waiting, [], limits(time=60.0))[0].seconds == 60.0
    assert obstacle(Resources(runtime_seconds=90_000), limits()) == (
        "1 day and 1 hour needed, 23 hours and 59 minutes left"
    )


def test_a_job_that_says_how_long_it_takes_is_not_asked_for_as_one_that_does_not():
    waiting = {Resources(): 1, Resources(cores=4, runtime_seconds=7200): 1}
    shape, _ = workers_to_ask_for(waiting, [Supply(Capacity(1, 0), 3600.0)], limits())
    assert shape.seconds >= 7200


def test_slurm_is_asked_once_for_all_partitions(tmp_path, monkeypatch):
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.answers("sinfo", "exit 1", says(SAID))
    hasty = Pace(answer=5.0, submission=5.0, first_pause=0.0, most_pause=0.0)
    with pytest.raises(RefusedError, match="sinfo refused"):
        Slurm("name", AllocationSettings(), "own", hasty).limits()
    slurm = Slurm("name", AllocationSettings(), "own", hasty)
    assert slurm.limits().node == CPUS
    assert slurm.limits(Wish(partition="month")).node == Capacity(8, 8000)
    assert len(fake.calls("sinfo")) == 2


def test_the_users_own_default_partition_counts(tmp_path, monkeypatch):
    FakeSlurm(tmp_path, monkeypatch).answers("sinfo", says(SAID))
    monkeypatch.setenv("SBATCH_PARTITION", "gpus")
    assert Slurm("name", AllocationSettings(), "own").limits().node.gpus == 4


def test_where_the_settings_say_all_slurm_need_not_answer(tmp_path, monkeypatch):
    FakeSlurm(tmp_path, monkeypatch)
    settings = AllocationSettings(cores=4, memory_mb=1000, gpus=0)
    assert Slurm("name", settings, "own").limits().node == Capacity(4, 1000)
    with pytest.raises(RefusedError, match="there is no program sinfo here"):
        Slurm("name", AllocationSettings(), "own").limits()
