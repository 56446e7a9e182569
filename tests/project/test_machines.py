"""Machines with a scheduler, and what they request for their allocations."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.quantities import memory_of, seconds_of, walltime_of
from snakemake_kochi.schedulers.interface import AllocationSettings


def machine(text: str) -> Machine:
    return load_project(Path("/nowhere"), f"machines:\n  spica: {text}\n").machine("spica")


def test_a_machine_of_kochi_has_no_scheduler_and_what_every_machine_has() -> None:
    found = machine("{alloc_script: sbatch --wrap x}")
    assert (found.scheduler, found.alloc_script) == (None, "sbatch --wrap x")
    # One worker: the script may start several on one host.
    assert found.allocation == AllocationSettings(max_workers=1)
    more = (
        "alloc_script: x, allocation: {min_workers: 2}",
        "alloc_script: x, allocation: {max_workers: 9}",
    )
    assert [machine(f"{{{each}}}").allocation.max_workers for each in more] == [2, 9]


def test_a_machine_has_all_that_is_requested_from_slurm() -> None:
    found = machine(
        """
    scheduler: slurm
    allocation:
      partition: short
      account: 007
      qos: normal
      reservation: r
      constraint: rome&ib
      gres: gpu:a100:2
      arguments: [--exclude=n1, --mail-type=END]
      nodes: 2
      time: 1-12:00:00
      cores: 64
      memory: 128G
      gpus: 2
      min_workers: 1
      max_workers: 4
      idle_timeout: 30s
"""
    )
    assert found.scheduler == "slurm"
    assert found.allocation == AllocationSettings(
        FrozenDict(
            partition="short",
            account="007",
            qos="normal",
            reservation="r",
            constraint="rome&ib",
            gres="gpu:a100:2",
        ),
        arguments=("--exclude=n1", "--mail-type=END"),
        nodes=2,
        time=36 * 3600.0,
        cores=64,
        memory_mb=128 * 1024,
        gpus=2,
        min_workers=1,
        max_workers=4,
        idle_timeout=30.0,
    )


def test_an_argument_may_have_its_value_in_an_entry_of_its_own() -> None:
    text = "{scheduler: slurm, allocation: {arguments: [--clusters, west, -w, n1, --no-requeue]}}"
    found = machine(text).allocation.arguments
    assert found == ("--clusters=west", "-wn1", "--no-requeue")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2-0", 172800),
        ("1-12", 129600),
        ("1-0:30", 88200),
        ("1-00:00:01", 86401),
        ("90s", 90),
        ("2h", 7200),
        ("1.5d", 129600),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it_or_with_a_unit(text: str, seconds: float) -> None:
    assert walltime_of(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1:2:3:4", "1-", "infinite", "367-0", "0"])
def test_a_wrong_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a time like"):
        walltime_of(text)


def test_times_and_memory_of_options_have_units() -> None:
    assert (seconds_of("2h"), memory_of("16G")) == (7200, 16384)
    with pytest.raises(ValueError, match="at most a year"):
        seconds_of("2y")
    with pytest.raises(ValueError, match="an amount of memory"):
        memory_of("1K")
    assert [memory_of(text) for text in ("1.5 GiB", "2gb", "3 M", "1P", "1048576")] == [
        *(1536, 2048, 3, 2**30, 1)
    ]


@pytest.mark.parametrize("text", ["10 marbles", "2 Moose", "1 potato", "1 G B", "-1G"])
def test_a_size_with_an_unknown_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an amount of memory"):
        memory_of(text)
