"""What people type about jobs by hand and of runs, workers and queues, with real workers."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Outcome
from workers_site import QUEUE, Site, pid_in, until

import snakemake_kochi

Kochi = Callable[..., Outcome]


@pytest.fixture
def kochi(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Kochi:
    """Type a command, in this process, in the directory of the site."""
    from snakemake_kochi.cli.main import run

    monkeypatch.setenv("KOCHI_ROOT", str(site.settings().root))
    monkeypatch.chdir(site.work)

    def type_command(*words: object) -> Outcome:
        capfd.readouterr()
        status = run(list(map(str, words)))
        return Outcome(status, *capfd.readouterr())

    return type_command


def enqueue(kochi: Kochi, script: str, *options: str) -> int:
    done = kochi("enqueue", "--quiet", "-q", QUEUE, *options, "--", "sh", "-c", script)
    assert done.status == 0, done.err
    return int(done.out)


def state_of(kochi: Kochi, job: object) -> str:
    return str(kochi("show", "job", job, "--json").data["state"])


def until_ended(kochi: Kochi, job: object) -> None:
    until(lambda: state_of(kochi, job) not in ("waiting", "running", "cancelling"))


def test_a_job_by_hand_from_its_submission_to_its_log(kochi: Kochi, site: Site) -> None:
    done = kochi("enqueue", "-q", QUEUE, "-n", "mine", "--", "sh", "-c", "echo hello; exit 3")
    assert done.out == f"Job 2 was submitted to queue '{QUEUE}' on machine 'local'.\n"
    assert "kochi work -q q" in done.err
    shown = kochi("show", "job", 2).out
    assert "State: waiting\nWaiting: no worker serves queue q; start one with: kochi" in shown
    assert kochi("show", "log", "job", 2).err == "Job 2 is waiting: it has printed nothing yet.\n"
    site.worker()
    until_ended(kochi, 2)
    for job in ("2", "2.1"):
        data = kochi("show", "job", job, "--json").data
        assert (data["job"], data["state"], data["exit_status"]) == (2, "failed", 3)
        assert (data["name"], data["queue"], data["worker"]) == ("mine", QUEUE, 1)
        assert [each["ending"] for each in data["attempts"]] == ["exit status 3"]
        assert kochi("show", "log", "job", job).out == "hello\n"
    shown = kochi("show", "job", 2).out
    assert "State: failed: exit status 3" in shown
    assert "Executed: sh -c 'echo hello; exit 3'" in shown
    (row,) = kochi("show", "jobs", "-t", "--json").data
    assert (row["job"], row["labels"]["command"]) == (2, "sh -c 'echo hello; exit 3'")
    assert kochi("show", "jobs").err.startswith("There are no waiting or running jobs.")


def test_lists_of_jobs(kochi: Kochi, site: Site) -> None:
    site.worker(cores=4)
    for script in ("echo of the run", "exit 1"):
        site.end_of(script)
    good = enqueue(kochi, "echo good", "-n", "good", "--shared")
    bad = enqueue(kochi, "exit 1", "-n", "bad", "--shared")
    for job in (good, bad):
        until_ended(kochi, job)
    waiting = enqueue(kochi, "true", "-n", "large", "--cores", "100")

    def listed(*options: object) -> list[object]:
        return [row["job"] for row in kochi("show", "jobs", *options, "--json").data]

    assert listed() == [waiting]
    assert listed("-t") == [waiting, bad, good, "1.2", "1.1"]
    assert listed("--failed") == [bad, "1.2"]
    assert listed("-t", "-l", 2) == [waiting, bad]
    assert listed("-t", "-n", "good", "-n", "job") == [good, "1.2", "1.1"]
    assert listed("-t", "-q", "other") == []
    assert "\n1.2   job" in kochi("show", "jobs", "--failed").out
    why = kochi("show", "job", waiting, "--json").data["why"]
    assert why == [
        f"no worker of queue {QUEUE} can ever run it",
        "worker 1: 100 cores needed, 4 available",
    ]
    assert kochi("show", "log", "job", "1.1").out == "of the run\n"


def test_jobs_that_nobody_has(kochi: Kochi, site: Site) -> None:
    done = kochi("show", "job", 9)
    assert done.status == 1
    assert "there is no job 9 on machine local; the newest is of number 1" in done.err
    assert "kochi show jobs -t" in done.err
    site.submit("true", "false")
    done = kochi("show", "job", 1)
    assert f"1 is a run in {site.work}, with the jobs 1.1 to 1.2" in done.err
    assert kochi("show", "job", "1.1").status == 0
    assert "'x' is not the number of a job" in kochi("show", "job", "x").err
    assert "there is no worker 7" in kochi("release", 7).err


def test_workers_queues_and_release(kochi: Kochi, site: Site) -> None:
    process = site.worker(cores=3)
    first = enqueue(kochi, "until test -e go; do sleep 0.01; done")
    until(site.running)
    second = enqueue(kochi, "true")
    (why,) = kochi("show", "job", second, "--json").data["why"]
    assert why.startswith(f"worker 1 runs job {first} (exclusive)")
    third = enqueue(kochi, "true")
    before, why = kochi("show", "job", third, "--json").data["why"]
    assert before == "1 other job waits before it"
    assert why.startswith(f"worker 1 runs job {first} (exclusive)")
    assert state_of(kochi, first) == "running"
    (worker,) = kochi("show", "workers", "--json").data
    assert (worker["state"], worker["jobs"], worker["cores"]) == ("running", [first], 3)
    queue = {"queue": QUEUE, "waiting": 2, "running": 1, "workers": [1]}
    assert kochi("show", "queues", "--json").data == [queue]
    assert f"job {first} (ANON) for" in kochi("show", "workers").out
    done = kochi("release", 1)
    assert done.out == f"Worker 1 was told to leave when it has finished job {first}.\n"
    (worker,) = kochi("show", "workers", "--json").data
    assert worker["state"] == "finishing"
    (site.work / "go").touch()
    assert process.wait(30) == 0
    assert kochi("show", "workers", "--json").data == []
    (worker,) = kochi("show", "workers", "-a", "--json").data
    assert (worker["state"], worker["reason"]) == ("left", "released by kochi release")
    assert state_of(kochi, first) == "succeeded"
    assert state_of(kochi, second) == "waiting"


def test_a_killed_worker_is_lost(kochi: Kochi, site: Site) -> None:
    process = site.worker()
    job = enqueue(kochi, "sleep 60")
    until(site.running)
    process.kill()
    process.wait()
    (worker,) = kochi("show", "workers", "-a", "--json").data
    assert (worker["state"], worker["reason"]) == ("lost", "its process is gone")
    assert "died: the next worker" in kochi("show", "job", job).out


def test_a_job_of_a_killed_worker_of_this_computer_is_cancelled(kochi: Kochi, site: Site) -> None:
    process = site.worker()
    job = enqueue(kochi, "setsid sleep 60 & echo $! > pid; wait")
    left = pid_in(site.work / "pid")
    process.kill()
    process.wait()
    assert kochi("cancel", job).out == f"Job {job} was cancelled.\n"
    assert not left.is_alive()


def test_a_machine_that_was_never_used_has_nothing(
    kochi: Kochi, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "unused"))
    for words in (("jobs", "-t"), ("workers", "-a"), ("queues",)):
        assert kochi("show", *words, "--json").data == []


def test_a_command_beside_a_job(kochi: Kochi, site: Site) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(snakemake_kochi.__file__).parents[1])}
    command = [sys.executable, "-P", "-m", "snakemake_kochi.cli", "inspect", "job"]

    def beside(job: object, script: str) -> str:
        words = [*command, str(job), "--", "sh", "-c", script]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)
        return done.stdout or done.stderr

    site.worker(cores=4)
    site.submit("export FOUND=it; sleep 60; true")
    until(lambda: beside("1.1", "echo $KOCHI_JOB_ID $FOUND") == "1.1 it\n")
    # No other way to know it is left than its log, or its environment.
    for script in ("exec env -i sleep 60", "exec > other 2>&1; sleep 60; true"):
        job = enqueue(kochi, script, "--shared")
        until(lambda job=job: beside(job, "pwd") == f"{site.work}\n")
    assert beside(job, "echo $KOCHI_JOB_ID $KOCHI_WORKER_NONCE.") == f"{job} .\n"
    assert "there is no job 1.9" in beside("1.9", "true")


def test_cancel(kochi: Kochi, site: Site) -> None:
    waiting = [enqueue(kochi, "true") for _ in range(3)]
    done = kochi("cancel", waiting[0], 99)
    assert done.out == f"Job {waiting[0]} was cancelled.\n"
    assert (done.status, "there is no job 99" in done.err) == (1, True)
    assert kochi("cancel", waiting[0]).out == f"Job {waiting[0]} had ended already.\n"
    assert kochi("cancel", *waiting[1:], "--json").data == [
        {"job": job, "outcome": "cancelled"} for job in waiting[1:]
    ]
    data = kochi("show", "job", waiting[0], "--json").data
    assert (data["state"], data["why"]) == ("cancelled", ["cancelled; no worker had it"])
    site.worker()
    running = enqueue(kochi, "echo begun; sleep 60")
    until(site.running)
    assert kochi("cancel", running).out == f"Job {running} was cancelled.\n"
    assert state_of(kochi, running) == "cancelled"
    (Path(os.environ["KOCHI_ROOT"]) / "conf.yaml").write_text("{}\n")  # a project anywhere
    own = [enqueue(kochi, "sleep 60"), enqueue(kochi, "true")]
    until(site.running)
    done = kochi("cancel", "-a", "-y")
    assert done.out == "".join(f"Job {job} was cancelled.\n" for job in reversed(own))
    site.submit("sleep 60")
    until(site.running)
    assert kochi("cancel", "1.1").out == "Job 1.1 was cancelled.\n"
    assert site.collect()[0].name.state == "cancelled"


def test_a_submission_of_which_nobody_knows(
    kochi: Kochi, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_withdrawn = True

    def moved(source: str, target: str, patience: float) -> bool:
        if is_withdrawn and "withdrawn" in target:
            return True
        raise OSError("no answer")

    monkeypatch.setattr("snakemake_kochi.tickets.hand.moved", moved)
    done = kochi("enqueue", "--quiet", "-q", QUEUE, "--", "true")
    assert (done.status, done.out) == (1, "2\n")
    assert "job 2 was not submitted: no answer" in done.err
    is_withdrawn = False
    done = kochi("enqueue", "--quiet", "-q", QUEUE, "--", "true")
    assert (done.status, done.out) == (75, "3\n")
    assert "whether job 3 was submitted is not known: no answer" in done.err
    assert "its submission was not finished" in kochi("show", "job", 3).err


def test_a_log_is_followed_to_its_end(kochi: Kochi, site: Site) -> None:
    site.worker()
    job = enqueue(kochi, "echo one; sleep 1; echo two")
    assert kochi("show", "log", "job", "-f", job).out == "one\ntwo\n"


def test_many_jobs_by_hand_leave_few_files(
    kochi: Kochi, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("snakemake_kochi.queue.by_hand"), "SHARD", 4)
    site.worker()
    jobs = [enqueue(kochi, f"echo {n}; exit {n % 2}", "--shared") for n in range(6)]
    for job in jobs:
        until_ended(kochi, job)
    seen = kochi("show", "jobs", "-t", "--json").data
    runs = Path(site.layout.runs)
    assert len(os.listdir(runs)) == 7
    for path in Path(site.layout.history).iterdir():
        os.utime(path, (1, 1))
    assert enqueue(kochi, "true", "--cores", "100") == 8
    assert kochi("cancel", 8).status == 0
    assert sorted(map(int, os.listdir(runs))) == [1, jobs[4], jobs[5], 8]
    lines = {path.name.partition(".")[0] for path in Path(site.layout.history).glob("*.jsonl")}
    assert lines == {"2-5", "6-6", "7-7"}
    assert kochi("show", "jobs", "-t", "--json").data[1:] == seen
    assert kochi("show", "jobs", "--failed", "--json").data == seen[::2]
    assert f"type: kochi show log job {jobs[0]}" in kochi("show", "job", jobs[0]).out
    for n, job in enumerate(jobs):
        assert kochi("show", "log", "job", job).out == f"{n}\n"
        assert kochi("show", "job", job, "--json").data["exit_status"] == n % 2
    assert kochi("cancel", jobs[0]).out == f"Job {jobs[0]} had ended already.\n"


def test_a_worker_in_a_terminal(kochi: Kochi, site: Site) -> None:
    done = enqueue(kochi, "printf hello", "-n", "mine")
    site.submit("exit 1")
    environment = {**os.environ, "PYTHONPATH": str(Path(snakemake_kochi.__file__).parents[1])}
    command = [sys.executable, "-P", "-m", "snakemake_kochi.cli", "work", "-q", QUEUE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        site.collect()
        site.run.end()  # for whose next jobs it would wait
        shown, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    lines = shown.splitlines()
    assert lines[:2] == ["Kochi worker 1 started on machine local.", "=" * 80]
    assert f"Kochi job mine (ID={done}) started.\n" in shown
    assert f"{'-' * 80}\nhello\n{'-' * 80}\n" in shown
    assert "Kochi job job (ID=1.1): exit status 1.\n" in shown
    job = enqueue(kochi, "touch begun; sleep 60")
    worker = subprocess.Popen([*command, "-b"], stdout=subprocess.PIPE, text=True, env=environment)
    until((site.work / "begun").exists)
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert list(site.settings().paths.settings_of_workers.iterdir()) == []
    assert state_of(kochi, job) == "waiting"
    assert "drained" in kochi("show", "job", job).out


def test_jobs_from_python(kochi: Kochi, site: Site) -> None:
    from snakemake_kochi.enqueue.job import NotEndedError, submit

    job = submit("echo hello; until test -e go; do sleep 0.01; done; exit 2")
    with pytest.raises(NotEndedError):
        job.wait(0.5)
    until(lambda: job.state == "running")
    (site.work / "go").touch()
    assert (job.wait().ok, job.exit_status, job.stdout) == (False, 2, "hello\n")
    left = submit("sleep 60")
    until(lambda: left.state == "running")
    left._worker.stop()
    assert left.state == "cancelled"
    assert os.listdir(site.layout.queues) == []
    assert list(site.settings().paths.settings_of_workers.iterdir()) == []
