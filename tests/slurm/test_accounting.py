"""A Slurm with a database: answers of sacct without squeue, and limits of accounts."""

from __future__ import annotations

import dataclasses
import getpass
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from cluster_project import ClusterProject
from slurm_accounting import AccountedCluster
from slurm_fake import AWAY, Sleeper, says
from support import wait_until

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.schedulers.commands import Pace
from snakemake_kochi.schedulers.interface import (
    Allocation,
    AllocationRequest,
    AllocationSettings,
    RefusedError,
    UnreachableError,
    Wanted,
    not_ended,
)
from snakemake_kochi.schedulers.slurm.slurm import Slurm

OWN = Machine("own").allocation_at

ONE = Wanted(cores=1)
# Seconds in which a submission whose answer was lost is not repeated.
UNACCOUNTED = 15.0
WHOLE_NODE = Wanted(cores=2)
# Lost submissions are tried again at once.
HASTY = Pace(answer=10.0, submission=60.0, first_pause=0.5, most_pause=0.5)
# State and nodes, by id.
Standing = dict[str, tuple[str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[AccountedCluster]:
    with AccountedCluster(
        nodes=2,
        cpus=2,
        accounts=("proj", "small"),
        enforced=("associations", "limits", "qos"),
        settings=("JobRequeue=1",),
    ) as cluster:
        yield cluster


@pytest.fixture
def limit(cluster: AccountedCluster) -> Iterator[Callable[[str], None]]:
    """Limits the account `small`: "MaxJobs=0"."""
    limits: list[str] = []

    def set_limit(limit: str) -> None:
        limits.append(limit)
        cluster.account("modify", "account", "small", "set", limit)

    yield set_limit
    for each in limits:
        cluster.account("modify", "account", "small", "set", each.rpartition("=")[0] + "=-1")


def test_slurm_listens_on_this_computer_only(cluster: AccountedCluster) -> None:
    started = {each.pid: each.name() for each in psutil.Process().children(recursive=True)}
    listening = {
        (started[each.pid], each.laddr.ip)
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.pid in started
    }
    assert listening == {(daemon, "127.0.0.1") for daemon in ("slurmctld", "slurmd", "slurmdbd")}


# ---- states, by squeue and by sacct


class Asking:
    """A scheduler that is asked through squeue, and through sacct alone."""

    def __init__(self, cluster: AccountedCluster, blind: Path, worker: Sleeper) -> None:
        self.cluster = cluster
        self.scheduler = self.of()
        self._blind = blind
        self._worker = worker

    def of(self, *arguments: str, **constraints: str) -> Slurm:
        self.name = f"kochi-{secrets.token_hex(4)}"
        settings = AllocationSettings(FrozenDict(constraints), arguments)
        return Slurm(self.name, settings, OWN, HASTY, unaccounted_if_lost=UNACCOUNTED)

    def submit(self, wanted: Wanted, *arguments: str, **constraints: str) -> list[str]:
        if constraints or arguments:
            self.scheduler = self.of(*arguments, **constraints)
        return self.scheduler.submit(wanted, self._worker, [])

    def find(self) -> Mapping[str, Allocation]:
        found = self.scheduler.find()
        assert found is not None
        return found

    def find_by_sacct(self) -> Mapping[str, Allocation]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(self._blind))
            return self.find()

    def wait_for(self, expected: Standing) -> None:
        """Wait until squeue, and then sacct too, report this."""
        wait_until(lambda: _standing(self.find()) == expected)
        wait_until(lambda: _standing(self.find_by_sacct()) == expected)

    def raw(self) -> str:
        """The complete answer of sacct."""
        return self.cluster.run("sacct", "--allocations", "--noheader", f"--name={self.name}")


def _standing(found: Mapping[str, Allocation]) -> Standing:
    return {id: (each.state, each.nodes) for id, each in not_ended(found).items()}


@pytest.fixture
def blind(cluster: AccountedCluster, tmp_path: Path) -> Path:
    """A directory that is all of PATH: it has all programs except squeue."""
    directory = tmp_path / "programs"
    directory.mkdir()
    places = cluster.environment["PATH"].split(os.pathsep)
    for place in reversed([str(Path(sys.executable).parent), *places]):
        for program in Path(place).glob("*"):
            link = directory / program.name
            link.unlink(missing_ok=True)
            link.symlink_to(program)
    (directory / "squeue").unlink()
    return directory


@pytest.fixture
def asking(
    cluster: AccountedCluster, blind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Asking]:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield Asking(cluster, blind, Sleeper(tmp_path))
    cluster.cancel_jobs()


def test_sacct_and_squeue_agree_on_an_array_in_all_its_states(asking: Asking) -> None:
    ids = asking.submit(Wanted(cores=2, count=4, comes_back=True))
    first, second, third, fourth = ids
    # The database does not know it yet.
    assert set(asking.find_by_sacct()) == set(ids)
    runs = {first: ("running", "node1"), second: ("running", "node2")}
    waits = {third: ("pending", ""), fourth: ("pending", "")}
    asking.wait_for(runs | waits)
    wait_until(lambda: "PENDING" in asking.raw())
    asking.wait_for(runs | waits)
    asking.scheduler.cancel([fourth])
    # It reaches the database late, or not before another one of them begins.
    asking.wait_for(runs | {third: ("pending", "")})
    asking.cluster.run("scancel", first)
    asking.wait_for({second: ("running", "node2"), third: ("running", "node1")})
    asking.cluster.run("scontrol", "suspend", second)
    wait_until(lambda: "SUSPENDED" in asking.raw())
    asking.wait_for({second: ("running", "node2"), third: ("running", "node1")})
    asking.cluster.run("scontrol", "resume", second)
    asking.cluster.run("scontrol", "requeue", second)
    wait_until(lambda: "REQUEUED" in asking.raw())
    wait_until(lambda: asking.find()[second].state == "pending")
    assert asking.find_by_sacct()[second].state == "pending"
    asking.scheduler.cancel()
    # The database has no end of the requeued one.
    assert "REQUEUED" in asking.raw()
    asking.wait_for({})


def test_squeue_and_sacct_agree_on_an_allocation_that_ended_by_itself(asking: Asking) -> None:
    number = asking.cluster.run(
        *("sbatch", "--parsable", f"--job-name={asking.name}"),
        *("--nodes=2", "--output=/dev/null", "--wrap", "while [ ! -e go ]; do sleep 0.1; done"),
    )
    asking.wait_for({number: ("running", "node[1-2]")})
    go = asking.cluster.directory / "go"
    go.touch()
    asking.wait_for({})
    go.unlink()


def test_an_allocation_that_reaches_the_database_late_has_not_ended(
    asking: Asking,
) -> None:
    (held,) = asking.submit(Wanted(cores=1, request=AllocationRequest(arguments=("--hold",))))
    (id,) = asking.submit(ONE)
    # It knows one that was submitted later.
    wait_until(lambda: "RUNNING" in asking.raw())
    assert held not in [line.split()[0] for line in asking.raw().splitlines()]
    asking.wait_for({held: ("pending", ""), id: ("running", "node1")})


def test_squeue_and_sacct_agree_on_the_reason_of_a_wait(
    asking: Asking, limit: Callable[[str], None]
) -> None:
    limit("MaxJobs=0")
    (id,) = asking.submit(ONE, account="small")
    wait_until(lambda: "PENDING" in asking.raw())
    found = asking.find()[id]
    assert (found.state, found.reason, found.nodes) == ("pending", "AssocMaxJobsLimit", "")
    assert found == asking.find_by_sacct()[id]


@pytest.fixture
def broken_node(cluster: AccountedCluster) -> Iterator[str]:
    """It loses its slurmd, and is whole again afterwards."""
    node = "node1"
    yield node
    cluster.cancel_jobs()
    mend(cluster, node)


def mend(cluster: AccountedCluster, node: str) -> None:
    cluster.start_node(node)
    cluster.wait_for_state("idle", node)


def fail(cluster: AccountedCluster, node: str) -> None:
    cluster.stop_node(node, signal.SIGKILL)
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=broken")


def test_an_allocation_that_is_not_requeued_has_ended_with_its_node(
    asking: Asking, cluster: AccountedCluster, broken_node: str
) -> None:
    (id,) = asking.submit(WHOLE_NODE, f"--nodelist={broken_node}")
    asking.wait_for({id: ("running", broken_node)})
    wait_until(lambda: "RUNNING" in asking.raw())
    fail(cluster, broken_node)
    wait_until(lambda: "NODE_FAIL" in asking.raw())
    asking.wait_for({})


def test_a_requeued_allocation_has_ended_for_the_database_until_it_begins_again(
    asking: Asking, cluster: AccountedCluster, broken_node: str
) -> None:
    (id,) = asking.submit(dataclasses.replace(WHOLE_NODE, comes_back=True))
    wait_until(lambda: "RUNNING" in asking.raw())
    node = asking.find()[id].nodes
    assert node == broken_node
    fail(cluster, node)
    wait_until(lambda: _standing(asking.find()) == {id: ("pending", "")})
    wait_until(lambda: "NODE_FAIL" in asking.raw())
    # It cannot tell this from one that is not.
    assert asking.find_by_sacct() == {}
    cluster.run("scontrol", "update", f"JobId={id}", "StartTime=now")
    asking.wait_for({id: ("running", "node2")})


def test_an_unreachable_database_is_no_end(asking: Asking, cluster: AccountedCluster) -> None:
    (id,) = asking.submit(ONE)
    wait_until(lambda: "RUNNING" in asking.raw())
    cluster.stop_accounting()
    try:
        with pytest.raises(UnreachableError, match="squeue"):
            asking.find_by_sacct()
        assert asking.find()[id].state == "running"
    finally:
        cluster.start_accounting()
    asking.wait_for({id: ("running", "node1")})


def test_a_submission_whose_answer_is_lost_is_not_repeated_before_the_database_knows_it(
    asking: Asking, cluster: AccountedCluster, blind: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(blind))
    sbatch = blind / "sbatch"
    sbatch.unlink()
    sbatch.write_text(
        f'#!/bin/sh\n{cluster.directory}/bin/sbatch "$@" >/dev/null\n'
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv "
        "operation' >&2\nexit 1\n"
    )
    sbatch.chmod(0o755)
    ids = asking.submit(ONE)
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    assert set(asking.find()) == set(ids)
    assert len(ids) == 1


# ---- runs


def test_a_run_succeeds_with_sacct_alone(project: ClusterProject, blind: Path) -> None:
    (blind / "squeue").write_text(f"#!/bin/sh\n{says(AWAY, 1)}\n")
    (blind / "squeue").chmod(0o755)
    before = [len(project.cluster.calls(each)) for each in ("squeue", "sacct")]
    project.configure(max_workers=2, idle_timeout="30s")
    project.write_jobs(6)
    project.start(path=blind)
    project.wait_for_beginnings(2)
    project.go()
    project.end_well()
    assert set(project.lines("done")) == set(map(str, range(6)))
    after = [len(project.cluster.calls(each)) for each in ("squeue", "sacct")]
    assert after[0] == before[0]
    assert after[1] > before[1]
    assert "The scheduler does not answer" not in project.said
    # For squeue they are still completing when sacct says that they have ended.
    wait_until(lambda: project.cluster.jobs() == {})


def test_jobs_of_a_dead_node_are_done_once_with_sacct_alone(
    project: ClusterProject, blind: Path, broken_node: str
) -> None:
    project.start(path=blind)
    project.wait_for_beginnings(2)
    [worker] = project.worker_processes()
    supervisor = worker.parent()
    fail(project.cluster, broken_node)
    for process in (supervisor, worker):
        assert process is not None
        process.kill()
    # sacct knows that the first allocation has ended.
    project.wait_for_beginnings(4)
    project.go()
    project.end_well()
    assert set(project.lines("done")) == {"0", "1"}
    assert len({*project.lines("began")["0"]}) == 2
    wait_until(lambda: project.cluster.jobs() == {})


def test_jobs_over_a_limit_of_the_account_wait_and_the_message_shows_how_to_see_it(
    project: ClusterProject, limit: Callable[[str], None]
) -> None:
    limit("MaxJobs=1")
    project.configure(max_workers=2, cores=1, account="small", idle_timeout="30s")
    project.start()
    project.wait_for_beginnings(1)
    wait_until(lambda: "AssocMaxJobsLimit" in project.said)
    assert re.search(
        r"Allocation \d+_2 waits: AssocMaxJobsLimit\. It begins when other jobs under this limit "
        r"have ended, and never if .* machines: own: allocation: account, max_workers, ",
        project.said,
    )
    project.go()
    project.end_well()
    assert project.said.count("AssocMaxJobsLimit") == 1
    assert project.cluster.jobs() == {}


@pytest.mark.parametrize(
    ("limited", "reason", "told"),
    [
        ("GrpTRESMins=cpu=0", "AssocGrpCPUMinutesLimit", "The budget is exhausted"),
        ("GrpTRES=cpu=1", "AssocGrpCpuLimit", "never if it requests more than the limit"),
        ("MaxTRES=cpu=1", "AssocMaxCpuPerJobLimit", "It does not begin by itself"),
        ("MaxWall=10", "AssocMaxWallDurationPerJobLimit", "It does not begin by itself"),
    ],
)
def test_jobs_that_the_account_never_allows_are_reported_in_slurms_words_with_advice(
    asking: Asking, limit: Callable[[str], None], limited: str, reason: str, told: str
) -> None:
    limit(limited)
    (id,) = asking.submit(Wanted(cores=2, seconds=1200.0), account="small")
    wait_until(lambda: asking.find()[id].reason == reason)
    assert told in asking.find()[id].advice


@pytest.mark.parametrize(
    ("allocation", "limited", "words", "keys"),
    [
        (
            {"account": "nosuch"},
            None,
            "Invalid account or account/partition combination specified",
            "account, partition",
        ),
        ({"qos": "nosuch"}, None, "Invalid qos specification", "qos"),
        (
            {"account": "small"},
            "MaxSubmitJobs=1",
            "AssocMaxSubmitJobLimit",
            "max_workers, account, qos",
        ),
    ],
)
def test_a_refusal_because_of_the_account_names_the_keys_to_change(
    asking: Asking,
    limit: Callable[[str], None],
    allocation: dict[str, str],
    limited: str | None,
    words: str,
    keys: str,
) -> None:
    if limited is not None:
        limit(limited)
    with pytest.raises(RefusedError) as caught:
        asking.submit(Wanted(cores=1, count=2), **allocation)
    said = " ".join(str(caught.value).split())
    assert words in said
    assert f"See machines: own: allocation: {keys} in kochi.yaml" in said
    assert asking.cluster.jobs() == {}
    command = re.search(r"To see what you may use, type: (sacctmgr \S+ \S+(?: \S+=\S+)*)", said)
    assert command is not None
    environment = {**os.environ, "USER": getpass.getuser(), **asking.cluster.environment}
    shown = subprocess.run(
        ["bash", "-c", command[1]], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert ("small" if "account" in allocation else "normal") in shown
