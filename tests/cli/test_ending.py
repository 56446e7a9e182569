"""`kochi cancel` and `kochi release`: ends of jobs and workers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from seen import FIRST
from slurm_cluster import SlurmCluster
from support import git, wait_until, worker_command

from snakemake_kochi.cli.ending import release_before_it_starts
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue.views import RequestedWorker, WorkerView, list_workers
from snakemake_kochi.tickets.run import Run

from .conftest import Outcome, make_repository

Kochi = Callable[..., Outcome]
Worker = Callable[..., "subprocess.Popen[str]"]


def submit(kochi: Kochi, *words: str) -> None:
    assert kochi("enqueue", "-q", "test", "--", *words).status == 0


def state(kochi: Kochi, job: int) -> tuple[str, str | None]:
    data = kochi("show", "job", FIRST + job, "--json").data
    return data["state"], data["reason"]


def wait_for(kochi: Kochi, job: int, wanted: str) -> None:
    wait_until(lambda: state(kochi, job)[0] == wanted)


def test_waiting_and_running_jobs_are_cancelled_and_ended_ones_are_left(
    kochi: Kochi, worker: Worker
) -> None:
    submit(kochi, "true")
    worker()
    wait_for(kochi, 0, "succeeded")
    submit(kochi, "sleep", "300")
    submit(kochi, "true")
    wait_for(kochi, 1, "running")
    outcome = kochi("cancel", FIRST, FIRST + 2, FIRST + 1)
    assert outcome.status == 0
    assert outcome.out.splitlines() == [
        f"Job {FIRST} had ended already.",
        f"Job {FIRST + 2} was cancelled.",
        f"Job {FIRST + 1} was cancelled.",
    ]
    wait_for(kochi, 1, "cancelled")
    assert [state(kochi, job)[1] for job in range(3)] == ["success", "cancelled", "cancelled"]


def test_an_unknown_job_is_an_error_after_the_others_were_cancelled(kochi: Kochi) -> None:
    submit(kochi, "true")
    outcome = kochi("cancel", 7, FIRST)
    assert outcome.status == 1
    assert "there is no job 7" in outcome.err
    assert outcome.out == f"Job {FIRST} was cancelled.\n"
    assert kochi("cancel", "x").status == 2
    assert kochi("cancel").status == 2
    assert kochi("cancel", "-a", FIRST).status == 2


def test_all_jobs_of_the_project_are_cancelled_and_no_others(
    project: Path, tmp_path: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other", {"kochi.yaml": ""})
    monkeypatch.chdir(other)
    submit(kochi, "true")
    monkeypatch.chdir(project)
    submit(kochi, "true")
    submit(kochi, "true")
    outcome = kochi("cancel", "-a", "-y", "--json")
    assert outcome.status == 0
    assert outcome.data == [
        {"job": FIRST + 2, "outcome": "cancelled"},
        {"job": FIRST + 1, "outcome": "cancelled"},
    ]
    assert state(kochi, 0)[0] == "waiting"
    assert kochi("cancel", "-a").out == "This project has no waiting or running jobs.\n"


def test_all_jobs_are_cancelled_only_after_asking(
    project: Path, shell: Kochi, kochi: Kochi
) -> None:
    submit(kochi, "true")
    for answer in ("n\n", ""):
        outcome = shell("cancel", "-a", stdin=answer)
        assert outcome.status == 1
        assert f"Cancel 1 job: {FIRST}?" in outcome.err
        assert state(kochi, 0)[0] == "waiting"
    # Without an answer, as without a terminal.
    assert "no answer was given; nothing was changed\nTo agree in advance, add: -y" in outcome.err
    assert shell("cancel", "-a", stdin="y\n").status == 0
    assert state(kochi, 0) == ("cancelled", "cancelled")


def test_all_jobs_of_no_project_is_an_error(kochi: Kochi) -> None:
    submit(kochi, "true")
    outcome = kochi("cancel", "-a", "-y")
    assert outcome.status == 1
    assert "git init" in outcome.err
    assert state(kochi, 0)[0] == "waiting"


def test_quietly_nothing_is_said(kochi: Kochi) -> None:
    submit(kochi, "true")
    outcome = kochi("cancel", FIRST, "--quiet")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")


def waiting(kochi: Kochi) -> list[int]:
    jobs = kochi("show", "jobs", "--json").data
    return [job["job"] - FIRST for job in jobs if job["state"] == "waiting"]


def test_workers_started_by_hand_are_released_by_number_and_by_queue(
    own_surroundings: Path, kochi: Kochi, worker: Worker
) -> None:
    first, second, third = worker("a"), worker("a"), worker("b")
    wait = "touch there; while [ ! -e go-on ]; do sleep 0.1; done"
    assert kochi("enqueue", "-q", "b", "--", "sh", "-c", wait).status == 0
    wait_until((own_surroundings / "there").exists)
    wait_until(lambda: kochi("show", "workers", "--json").data[2]["jobs"] == [FIRST])

    done = kochi("release", FIRST + 2)
    assert done.status == 0
    assert done.out == f"Worker {FIRST + 2} was told to leave when it has finished job {FIRST}.\n"
    wait_until(lambda: kochi("show", "workers", "--json").data[2]["state"] == "finishing")
    assert f"Running: worker {FIRST + 2} on " in kochi("show", "job", FIRST).out
    # It takes no more: who comes now is told so.
    said = kochi("enqueue", "-q", "b", "--", "true").err
    assert "No worker serves that queue yet" in said
    assert kochi("cancel", FIRST + 1).status == 0
    # It changed its mind: the job goes back.
    done = kochi("release", FIRST + 2, "--now")
    assert done.out == f"Worker {FIRST + 2} was told to leave: job {FIRST} is requeued.\n"
    assert third.wait() == 0
    assert waiting(kochi) == [0]

    done = kochi("release", "-q", "a", "--json")
    assert done.data == [{"worker": n, "outcome": "leaving"} for n in (FIRST, FIRST + 1)]
    assert (first.wait(), second.wait()) == (0, 0)
    assert kochi("show", "workers", "--json").data == []
    assert kochi("release", FIRST).out == f"Worker {FIRST} had left already.\n"


def test_a_worker_that_starts_at_this_moment_finishes_its_jobs(
    own_surroundings: Path, kochi: Kochi, worker: Worker
) -> None:
    process = worker("q")
    wait = "touch there; while [ ! -e go-on ]; do sleep 0.1; done"
    assert kochi("enqueue", "-q", "q", "--", "sh", "-c", wait).status == 0
    wait_until((own_surroundings / "there").exists)
    wait_until(lambda: kochi("show", "workers", "--json").data[0]["jobs"] == [FIRST])
    # As it was before the worker came.
    asked = RequestedWorker(FIRST, ("q",), "1", "kochi-alloc")
    _, said = release_before_it_starts(find_location(None), asked, "finish")
    assert said == f"Worker {FIRST} was told to leave when it has finished job {FIRST}."
    (own_surroundings / "go-on").touch()
    assert process.wait() == 0
    assert waiting(kochi) == []


def test_what_cannot_be_released_is_told_and_the_others_are(kochi: Kochi, worker: Worker) -> None:
    assert kochi("release").status == 2
    assert kochi("release", FIRST, "-q", "q").status == 2
    assert kochi("release", "x").status == 2
    done = kochi("release", "-q", "nobodys")
    assert done.status == 1
    assert "no worker that you started serves queue nobodys" in done.err
    assert "queue name '../x' cannot be used" in kochi("release", "-q", "../x").err
    process = worker("q")
    done = kochi("release", "7", FIRST)
    assert done.status == 1
    assert done.err.startswith(f"kochi: there is no worker 7 on machine local; known: {FIRST}.")
    assert done.out == f"Worker {FIRST} was told to leave: it leaves at once.\n"
    assert process.wait() == 0


def test_a_worker_of_a_run_is_the_run_s(own_surroundings: Path, kochi: Kochi) -> None:
    machine = Root.find().machine("local")
    machine.directory.mkdir(parents=True, mode=0o700)
    run = Run.begin(machine.layout, str(own_surroundings), {})
    root = Root.find().directory
    settings = {"queues": ("q",), "stay": True, "controller": str(run.number)}
    process = subprocess.Popen(worker_command(root, root.parent, **settings))
    try:
        wait_until(lambda: list_workers(machine))
        done = kochi("release", "1")
        assert done.status == 1
        assert f"worker 1 belongs to run {run.number}, and ends with it" in done.err
        assert kochi("release", "-q", "q").status == 1
        assert "release" not in os.listdir(machine.layout.worker(1).directory)
    finally:
        process.terminate()
        process.wait()


def busy_workers(machine: MachinePaths) -> list[WorkerView]:
    return [worker for worker in list_workers(machine) if worker.running]


def in_queue(cluster: SlurmCluster) -> list[str]:
    """All allocations that squeue knows, those of an array one by one."""
    return sorted(cluster.run("squeue", "--noheader", "--array", "--format=%F_%K").split())


def test_allocations_of_released_workers_end_in_slurm(
    kochi: Kochi, cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "proj"
    directory.mkdir()
    git(directory, "init", "--quiet")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "own")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    Path("kochi.yaml").write_text("machines: {own: {scheduler: slurm}}\n")

    # Each of these fills a node, so the third waits.
    done = kochi("alloc", "-q", "q", "-d", "3", "-b")
    assert done.status == 0, done.err
    assert "or until you type: kochi release -m own 1 2 3\n" in done.err
    said = [line.partition(", log, once")[0] for line in done.out.splitlines()]
    ids = in_queue(cluster)
    assert said == [
        f"Requested worker {number} for queue q: allocation {each}"
        for number, each in enumerate(ids, FIRST)
    ]
    machine = Root.find().machine("own")
    wait_until(lambda: [worker.worker for worker in list_workers(machine)] == [1, 2])
    # The one that has the number has the allocation.
    assert [worker.allocation for worker in list_workers(machine)] == ids[:2]
    assert "worker 3 on machine own has not started yet" in kochi("show", "log", "worker", "3").err
    kochi("enqueue", "-q", "q", "--", "sh", "-c", "touch there; sleep 1000")
    wait_until(lambda: Path("there").exists())
    (busy,) = (worker.worker for worker in wait_until(lambda: busy_workers(machine)))

    # One that was cancelled by hand is told of once, and not for ever.
    told = kochi("alloc", "-q", "r").out
    assert told.startswith("Requested worker 4 for queue r: allocation ")
    fourth = told.partition(": allocation ")[2].partition(",")[0]
    cluster.run("scancel", fourth)
    wait_until(lambda: in_queue(cluster) == ids)
    done = kochi("release", "-q", "r")
    assert done.out == f"Worker 4 will not start: its allocation {fourth} no longer exists.\n"
    assert "no worker that you started serves queue r" in kochi("release", "-q", "r").err

    idle = 3 - busy
    done = kochi("release", "3", str(idle))
    assert done.out.splitlines() == [
        f"Worker 3 has not started yet: its allocation {ids[2]} was cancelled.",
        f"Worker {idle} was told to leave: it leaves at once, "
        f"which ends allocation {ids[idle - 1]}.",
    ]
    wait_until(lambda: in_queue(cluster) == [ids[busy - 1]])
    done = kochi("release", "-q", "q", "--now")
    assert done.out == (
        f"Worker {busy} was told to leave, which ends allocation {ids[busy - 1]}: "
        f"job {FIRST} is requeued.\n"
    )
    wait_until(lambda: not in_queue(cluster))
    assert waiting(kochi) == [0]
