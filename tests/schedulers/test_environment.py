"""The information of Slurm's environment variables in a job."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm, says

from snakemake_kochi.schedulers.environment import node_of, own_allocation, print_node

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path, monkeypatch)


def test_outside_of_a_job_there_is_no_allocation() -> None:
    assert own_allocation({}) is None
    assert own_allocation({"SLURM_CONF": "/etc/slurm.conf"}) is None


def test_missing_variables_of_slurm_are_unknown_values(fake: FakeSlurm) -> None:
    own = own_allocation(JOB)
    assert own is not None
    assert (own.id, own.began, own.memory_mb, own.hosts()) == ("7", None, None, {})
    assert own.seconds_left(None) is None
    assert own.seconds_left(60.0) == 60.0


def test_squeue_is_asked_for_the_end_only_without_the_variable(fake: FakeSlurm) -> None:
    fake.answers("squeue", says("1:30:00"))
    own = own_allocation({**JOB, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"})
    assert own is not None
    assert own.seconds_left(None) == 5400.0
    assert fake.calls("squeue") == ["--noheader --format=%L --jobs=5_3"]
    known = own_allocation({**JOB, "SLURM_JOB_END_TIME": str(time.time() + 500)})
    assert known is not None
    assert 490 < (known.seconds_left(None) or 0) <= 500
    assert len(fake.calls("squeue")) == 1


def test_each_node_has_its_cpus(fake: FakeSlurm) -> None:
    fake.answers("scontrol", says("n1\nn2\nn7"))
    own = own_allocation(
        {**JOB, "SLURM_JOB_NODELIST": "n[1-2,7]", "SLURM_JOB_CPUS_PER_NODE": "4(x2),8"}
    )
    assert own is not None
    assert own.hosts() == {"n1": 4, "n2": 4, "n7": 8}
    assert fake.calls("scontrol") == ["show hostnames n[1-2,7]"]
    one = own_allocation({**JOB, "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "2"})
    assert one is not None
    assert one.hosts() == {"n1": 2}


def test_jobs_do_not_get_the_binding_of_the_batch_step() -> None:
    own = own_allocation(JOB)
    assert own is not None
    names = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_JOB_ID", "HOME")
    assert [name for name in names if own.is_for_jobs(name)] == ["SLURM_JOB_ID", "HOME"]


@pytest.mark.parametrize(("variables", "name"), [({}, "host"), ({"SLURMD_NODENAME": "n1"}, "n1")])
def test_a_node_has_the_name_that_its_scheduler_knows(
    tmp_path: Path, variables: dict[str, str], name: str
) -> None:
    log = tmp_path / "log"
    with log.open("w") as output:
        command = ["/bin/bash", "-c", f"HOSTNAME=host; {print_node()}"]
        subprocess.run(command, env=variables, stdout=output, check=True)
    assert node_of(log) == name
