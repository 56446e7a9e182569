"""Slurm that is slow, fails, loses answers, or refuses; and a real one."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from slurm_cluster import PARTITION, SlurmCluster
from slurm_fake import AWAY, NO_DATABASE, TIMED_OUT, FakeSlurm, Sleeper, says
from support import wait_until

from snakemake_kochi.frozen import FrozenDict
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.schedulers.commands import Pace
from snakemake_kochi.schedulers.interface import (
    AllocationRequest,
    AllocationSettings,
    RefusedError,
    UnreachableError,
    Wanted,
)
from snakemake_kochi.schedulers.slurm.slurm import Slurm

OWN = Machine("own").allocation_at

NAME = "kochi-of-a-test"
# No pause between two tries, and a short wait for one answer.
HASTY = Pace(answer=5.0, submission=20.0, first_pause=0.0, most_pause=0.0)
ONE = Wanted(cores=1)
REFUSED = "sbatch: error: Batch job submission failed: "


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    directory = tmp_path / "programs"
    directory.mkdir()
    return FakeSlurm(directory, monkeypatch)


@pytest.fixture
def worker(tmp_path: Path) -> Sleeper:
    return Sleeper(tmp_path)


def slurm(pace: Pace = HASTY, partition: str | None = None, **settings: object) -> Slurm:
    constraints = FrozenDict({} if partition is None else {"partition": partition})
    own = AllocationSettings(constraints, **settings)  # type: ignore[arg-type]
    return Slurm(NAME, own, OWN, pace)


# ---- submission


@pytest.mark.parametrize(
    "error",
    [
        TIMED_OUT,
        f"{REFUSED}Unable to contact slurm controller (connect failure)",
        f"{REFUSED}Resource temporarily unavailable",
        f"{REFUSED}Zero Bytes were transmitted or received",
        f"{REFUSED}Slurm backup controller in standby mode",
        f"{REFUSED}Protocol authentication error",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_a_submission_is_tried_again_when_the_fault_passes(fake, worker, error):
    fake.answers("sbatch", says(error, 1), says(error, 1), says("12"))
    fake.answers("squeue", says(""))
    assert slurm().submit(ONE, worker, []) == ["12"]
    assert len(fake.calls("sbatch")) == 3


def test_a_submission_whose_answer_was_lost_is_not_repeated(fake, worker):
    fake.answers("sbatch", says(TIMED_OUT, 1))
    fake.answers(
        "squeue",
        says(AWAY, 1),
        says("3|RUNNING|node1|None\n7_1|RUNNING|node2|None\n7_2|PENDING||Priority"),
    )
    fake.answers("sacct", says(NO_DATABASE, 1))
    assert slurm().submit(dataclasses.replace(ONE, count=2), worker, ["3"]) == ["7_1", "7_2"]
    assert len(fake.calls("sbatch")) == 1


def test_excluded_nodes_are_added_to_those_that_the_machine_excludes(fake, worker):
    fake.answers("sbatch", says("12"))
    asking = slurm(arguments=("--exclude=a[1-2]", "-xb"))
    asking.submit(ONE, worker, [])
    asking.submit(dataclasses.replace(ONE, excluded=("c", "d")), worker, [])
    first, second = fake.calls("sbatch")
    assert first.endswith("--exclude=a[1-2] -xb")
    # Of several, sbatch heeds the last.
    assert second.endswith("--exclude=a[1-2] -xb --exclude=b,c,d")


def test_a_comment_says_what_an_allocation_is_for_unless_the_user_gives_another(fake, worker):
    fake.answers("sbatch", says("12"))
    purpose = "kochi:project=a|b c\n\x1b[1mü:rules=" + ",".join(f"rule{i}" for i in range(99))
    wanted = dataclasses.replace(ONE, purpose=purpose)
    slurm().submit(wanted, worker, [])
    slurm(arguments=("--comment=mine",)).submit(wanted, worker, [])
    own, others = (
        [each.partition(" --")[0] for each in call.split("--comment=")[1:]]
        for call in fake.calls("sbatch")
    )
    assert len(own) == 1
    assert own[0].startswith("kochi:project=a_b_c__[1m_:rules=rule0,rule1,")
    assert own[0].endswith("...")
    assert len(own[0]) == 200
    # Of several, sbatch heeds the last.
    assert others == [own[0], "mine"]


def test_a_lost_answer_is_remembered_until_the_next_submission(fake, worker):
    fake.answers("sbatch", says(TIMED_OUT, 1))
    fake.answers("squeue", says("7|PENDING||Priority"))
    impatient = slurm(dataclasses.replace(HASTY, submission=0.0))
    with pytest.raises(UnreachableError, match="Socket timed out"):
        impatient.submit(ONE, worker, [])
    assert impatient.submit(ONE, worker, []) == ["7"]
    assert len(fake.calls("sbatch")) == 1


def test_a_lost_submission_of_which_nothing_can_be_known_is_tried_again(fake, worker):
    fake.answers("sbatch", says(TIMED_OUT, 1), says("13"))
    assert slurm().submit(ONE, worker, []) == ["13"]


@pytest.mark.parametrize(
    ("said", "ids"),
    [
        ("12", ["12_1", "12_2"]),
        ("12;west", ["12_1", "12_2"]),
        ("Be nice to each other.\n12", ["12_1", "12_2"]),
        ("Submitted batch job 12 on cluster west", ["12_1", "12_2"]),
    ],
)
def test_the_job_number_is_found_in_the_answers_of_site_wrappers(fake, worker, said, ids):
    fake.answers("sbatch", says(said))
    assert slurm().submit(dataclasses.replace(ONE, count=2), worker, []) == ids


def test_an_answer_without_a_number_is_neither_a_submission_nor_a_failure(fake, worker):
    fake.answers("sbatch", says("Thank you!"))
    fake.answers("squeue", says("9|PENDING||None"))
    assert slurm().submit(ONE, worker, []) == ["9"]


def test_a_command_that_hangs_is_ended_with_its_children(fake, worker, tmp_path):
    number = tmp_path / "pid"
    fake.answers("sbatch", f"sleep 300 & echo $! > {number}; wait")
    with pytest.raises(UnreachableError, match="sbatch gave no answer in 5 s"):
        slurm(dataclasses.replace(HASTY, answer=5.0, submission=0.0)).submit(ONE, worker, [])
    pid = int(number.read_text())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_that_ends_does_not_wait_for_the_next_try(fake, worker):
    fake.answers("sbatch", says(TIMED_OUT, 1))
    fake.answers("squeue", says(""))
    patient = slurm(Pace(answer=5.0, submission=500.0, first_pause=400.0, most_pause=400.0))

    def give_up() -> None:
        wait_until(lambda: fake.calls("sbatch"), "the first try")
        patient.give_up()

    thread = threading.Thread(target=give_up)
    thread.start()
    with pytest.raises(UnreachableError):
        patient.submit(ONE, worker, [])
    thread.join()
    with pytest.raises(UnreachableError):
        patient.submit(ONE, worker, [])
    assert len(fake.calls("sbatch")) == 1


def test_a_missing_sbatch_is_reported_at_once_with_advice(fake, worker):
    with pytest.raises(RefusedError, match="there is no program sbatch here") as caught:
        slurm().submit(ONE, worker, [])
    assert "module load slurm" in str(caught.value)
    assert "--kochi-where here" in str(caught.value)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("Invalid account or account/partition combination specified", "account, partition"),
        ("Invalid qos specification", "qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "time"),
        ("Time limit specification required, but not provided", "time"),
        (
            "Requested node configuration is not available",
            "cores, memory, gpus, nodes, constraint",
        ),
        ("Invalid feature specification", "constraint"),
        ("Invalid generic resource (gres) specification", "gres, gpus"),
        ("Requested reservation is invalid", "reservation"),
        ("Invalid job array specification", "max_workers"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            "max_workers, time, qos, account, cores, memory, gpus",
        ),
        ("Something new", "..."),
    ],
)
def test_a_refusal_is_reported_once_in_the_words_of_sbatch_with_the_keys_to_change(
    fake, worker, words, keys
):
    fake.answers("sbatch", says(REFUSED + words, 1))
    with pytest.raises(RefusedError) as caught:
        slurm().submit(ONE, worker, [])
    assert f"{REFUSED}{words}" in caught.value.message
    assert f"See machines: own: allocation: {keys} in kochi.yaml." in caught.value.hint
    assert len(fake.calls("sbatch")) == 1


def test_the_nearest_partition_is_named_for_an_unknown_one(fake, worker):
    fake.answers("sbatch", says(f"{REFUSED}Invalid partition name specified", 1))
    fake.answers("sinfo", says("main*|infinite|4|1000|(null)\nlong|30-00:00:00|4|1000|(null)"))
    with pytest.raises(RefusedError) as caught:
        slurm(partition="lnog").submit(ONE, worker, [])
    assert "Partition lnog: did you mean 'long'?" in caught.value.hint
    assert "sinfo --summarize" in caught.value.hint


# ---- how it stands


def states(scheduler: Slurm) -> dict[str, str] | None:
    found = scheduler.find()
    return None if found is None else {id: each.state for id, each in found.items()}


def test_one_question_covers_all_allocations(fake):
    lines = [
        "12_1|RUNNING|node1|None",
        "12_2|PENDING||Resources",
        "13|REQUEUE_HOLD||launch failed requeued held",
        "14|COMPLETING|node2|None",
        "15|CANCELLED||None",
        "16|SUSPENDED|node1|None",
    ]
    fake.answers("squeue", says("\n".join(lines)))
    scheduler = slurm()
    assert states(scheduler) == {
        "12_1": "running",
        "12_2": "pending",
        "13": "pending",
        "14": "running",
        "16": "running",
    }
    assert len(fake.calls("squeue")) == 1
    assert f"--name={NAME}" in fake.calls("squeue")[0]
    assert "release 13" in scheduler.find()["13"].advice


def test_an_allocation_whose_nodes_slurm_took_is_reported_with_the_state_as_the_reason(fake):
    lines = ["7_1|PREEMPTED|node1|None", "7_2|NODE_FAIL|node2|NodeDown", "8|FAILED|n|None"]
    fake.answers("squeue", says("\n".join(lines)))
    found = slurm().find()
    assert {id: (each.state, each.reason, each.was_taken) for id, each in found.items()} == {
        "7_1": ("ended", "PREEMPTED", True),
        "7_2": ("ended", "NODE_FAIL", True),
    }


@pytest.mark.parametrize("comes_back", [False, True])
def test_slurm_requeues_only_what_no_run_would_request_again(fake, worker, comes_back):
    fake.answers("sbatch", says("12"))
    slurm().submit(dataclasses.replace(ONE, comes_back=comes_back), worker, [])
    (words,) = map(str.split, fake.calls("sbatch"))
    assert ("--requeue" in words, "--no-requeue" in words) == (comes_back, not comes_back)


@pytest.mark.parametrize("squeue", [None, says(AWAY, 1), says("Invalid user", 1), "sleep 300"])
def test_sacct_is_asked_if_squeue_does_not_answer(fake, squeue):
    if squeue is not None:
        fake.answers("squeue", squeue)
    lines = [
        "12_1|RUNNING|node1|None",
        "12_[2,4-5%2]|PENDING|None assigned|Priority",
        "13|CANCELLED by 1000|node1|None",
        "14|NODE_FAIL|node1|None",
    ]
    fake.answers("sacct", says("\n".join(lines)))
    assert states(slurm(dataclasses.replace(HASTY, answer=1.0))) == {
        "12_1": "running",
        "12_2": "pending",
        "12_4": "pending",
        "12_5": "pending",
    }


def test_jobs_that_the_database_does_not_know_yet_have_not_ended(fake, worker):
    fake.answers("sbatch", says("12"), says("13"))
    fake.answers("sacct", says("13|COMPLETED|node1|None"))
    scheduler = slurm()
    scheduler.submit(ONE, worker, [])
    scheduler.submit(ONE, worker, ["12"])
    assert states(scheduler) == {"12": "pending"}


def test_nothing_is_known_without_squeue_and_sacct(fake):
    assert slurm().find() is None
    fake.answers("sacct", says(NO_DATABASE, 1))
    assert slurm().find() is None


@pytest.mark.parametrize("sacct", [None, says(NO_DATABASE, 1), says("Connection refused", 1)])
@pytest.mark.parametrize("squeue", [says(AWAY, 1), says("Something new", 1), "kill -9 $$"])
def test_a_missing_answer_is_no_end(fake, squeue, sacct):
    fake.answers("squeue", squeue)
    if sacct is not None:
        fake.answers("sacct", sacct)
    with pytest.raises(UnreachableError, match="squeue"):
        slurm().find()


def test_how_allocations_ended_is_known_from_squeue_or_from_sacct_with_their_first_nodes(fake):
    fake.answers("squeue", says("1|FAILED|a[01-02,4]|NonZeroExitCode\n2|RUNNING|b|None"))
    fake.answers("sacct", says("3_1|CANCELLED by 7|None assigned|None\n4|NODE_FAIL|n1,n2|None"))
    found = slurm().ends(["1", "2", "3_1", "4", "5"])
    assert {id: (each.nodes, each.was_cancelled) for id, each in found.items()} == {
        "1": ("a01", False),
        "3_1": ("", True),
        "4": ("n1", False),
    }


def test_other_lines_of_an_answer_are_ignored(fake):
    fake.answers("squeue", says("CLUSTER: west\nBe nice.\n12|RUNNING|node1|None"))
    assert states(slurm()) == {"12": "running"}


def test_allocations_of_other_clusters_are_queried_there(fake, worker):
    fake.answers("sbatch", says("12;west"))
    for program in ("squeue", "scancel"):
        fake.answers(program, says(""))
    scheduler = slurm(arguments=("--clusters=west",))
    scheduler.submit(ONE, worker, [])
    scheduler.find()
    scheduler.cancel()
    assert "--clusters=west" in fake.calls("squeue")[0]
    assert "--clusters=west" in fake.calls("scancel")[0]
    scheduler.submit(
        dataclasses.replace(ONE, request=AllocationRequest(arguments=("-Meast",))), worker, []
    )
    scheduler.find()
    assert "--clusters=east,west" in fake.calls("squeue")[1]


def test_slurm_gets_neither_variables_of_an_outer_job_nor_the_users_filters(
    fake, worker, monkeypatch, tmp_path
):
    for program, answer in (("sbatch", "12"), ("squeue", "")):
        fake.answers(program, f"env > {tmp_path}/{program}; {says(answer)}")
    for name in ("SLURM_JOB_ID", "SBATCH_ACCOUNT", "SBATCH_OUTPUT", "SQUEUE_STATES", "SLURM_CONF"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    scheduler = slurm()
    scheduler.submit(ONE, worker, [])
    scheduler.find()
    seen = {}
    for program in ("sbatch", "squeue"):
        lines = (tmp_path / program).read_text().splitlines()
        seen[program] = dict(line.split("=", 1) for line in lines if "=" in line)
        kept = {name for name in seen[program] if name.startswith(("SLURM_", "SBATCH_", "SQUEUE_"))}
        assert kept == {"SLURM_CONF", "SBATCH_ACCOUNT"}
    # The worker's jobs have the language of their user.
    assert (seen["squeue"]["LC_ALL"], seen["sbatch"]["LC_ALL"]) == ("C", "de_DE.UTF-8")


def test_cancelling_an_ended_allocation_is_no_error(fake):
    fake.answers("scancel", says("scancel: error: Invalid job id specified", 1))
    slurm().cancel(["12"])
    fake.answers("scancel", says("scancel: error: Access denied", 1))
    with pytest.raises(RefusedError):
        slurm().cancel(["12"])


# ---- a real one


SLURM = {"partitions": (PARTITION, "PartitionName=short Nodes=node1 MaxTime=30")}


@pytest.fixture
def real(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield cluster
    cluster.cancel_jobs()


def test_a_real_slurm_reports_arrays_and_requeued_jobs(real, worker):
    scheduler = slurm()
    ids = scheduler.submit(Wanted(cores=2, count=3, comes_back=True), worker, [])
    number = ids[0].partition("_")[0]
    assert ids == [f"{number}_{index}" for index in (1, 2, 3)]
    wait_until(lambda: sorted(states(scheduler).values()) == ["pending", "running", "running"])
    waiting = next(each for each in scheduler.find().values() if each.state == "pending")
    assert waiting.reason in ("Resources", "Priority", "None")
    assert waiting.advice == ""
    real.run("scontrol", "requeue", f"{number}_1")
    wait_until(lambda: states(scheduler).get(f"{number}_1") == "pending")
    assert set(states(scheduler)) == set(ids)
    scheduler.cancel([ids[0]])
    wait_until(lambda: ids[0] not in states(scheduler))
    scheduler.cancel()
    wait_until(lambda: states(scheduler) == {})
    scheduler.cancel(ids)
    scheduler.cancel(["999999"])


def test_a_real_slurm_refuses_in_its_own_words(real, worker):
    with pytest.raises(RefusedError) as caught:
        slurm(partition="shrot").submit(ONE, worker, [])
    assert "Invalid partition name specified" in caught.value.message
    assert "did you mean 'short'?" in caught.value.hint
    with pytest.raises(RefusedError) as caught:
        slurm().submit(Wanted(cores=1, memory_mb=100_000), worker, [])
    assert "machines: own: allocation: memory in kochi.yaml" in caught.value.hint
    with pytest.raises(RefusedError) as caught:
        slurm(arguments=("--no-such-option",)).submit(ONE, worker, [])
    assert "allocation: arguments" in caught.value.hint


def test_an_allocation_that_never_begins_is_reported_with_the_key_to_change(real, worker):
    scheduler = slurm(partition="short", time=3600.0)
    (id,) = scheduler.submit(Wanted(cores=1, seconds=3600.0), worker, [])
    wait_until(lambda: scheduler.find()[id].reason == "PartitionTimeLimit")
    assert "machines: own: allocation: time, partition in kochi.yaml" in (
        scheduler.find()[id].advice
    )


def test_the_limits_of_a_real_slurm_are_those_of_the_partition(real):
    limits = slurm(partition="short").limits()
    assert (limits.node.cores, limits.node.memory_mb, limits.seconds) == (2, 4096, 1800.0)
    assert slurm().limits().seconds is None


def test_an_unreachable_controller_is_an_unknown_state_until_it_answers(real, worker):
    scheduler = slurm()
    (id,) = scheduler.submit(ONE, worker, [])
    impatient = slurm(dataclasses.replace(HASTY, answer=3.0, submission=0.0))
    real.stop_controller()
    try:
        with pytest.raises(UnreachableError):
            impatient.find()
        with pytest.raises(UnreachableError):
            impatient.submit(ONE, worker, [id])
    finally:
        real.start_controller()
    wait_until(lambda: id in states(scheduler))


def test_the_user_is_named_by_number(fake):
    fake.answers("squeue", says(""))
    slurm().find()
    assert f"--user={os.getuid()}" in fake.calls("squeue")[0]
