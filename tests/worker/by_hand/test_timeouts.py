"""Time limits of jobs and of workers."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime

import pytest

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.by_hand import cancel
from snakemake_kochi.queue.views import find_worker
from snakemake_kochi.worker.walltime import find_walltime


def in_allocation(elapsed, left):
    """The environment of a Slurm job that began and ends at these seconds before and after now."""
    now = int(time.time())
    times = {"SLURM_JOB_START_TIME": str(now - elapsed), "SLURM_JOB_END_TIME": str(now + left)}
    return {**os.environ, "SLURM_JOB_ID": "7", **times}


def is_running(pid):
    process = ProcessIdentity.of(int(pid))
    return process is not None and process.is_alive()


def test_a_job_that_takes_too_long_is_ended_with_all_its_processes_and_nothing_else(site):
    site.submit("while [ ! -e go ]; do sleep 0.1; done; echo finished")
    stubborn = "setsid bash -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 0.1; done' & "
    stubborn += "sleep 1000 & echo $$ $! >> pids; trap 'echo asked' TERM; while :; do wait; done"
    site.submit(stubborn, runtime_seconds=5)
    site.start(cores=2, grace=3)
    result = site.ended(1).result
    assert (result.reason, result.ok) == ("timeout", False)
    assert result.describe() == "timeout: ran for longer than its 5 seconds"
    pids = (site.directory / "pids").read_text().split()
    assert len(pids) == 3
    assert not any(map(is_running, pids))
    assert "asked" in site.log(1), "it had the grace to end in good order"
    assert site.job(0).state == "running"
    (site.directory / "go").touch()
    assert site.ended(0).result.ok


def test_a_job_that_ends_in_time_is_not_touched(site):
    site.submit("exit 3", "true", runtime_seconds=1000)
    # A worker that waited for the jobs' time limits would outlive the time limit of this test.
    assert site.start().wait() == 0
    assert site.job(0).result.describe() == "exit status 3"
    assert site.job(1).result.ok


def test_a_job_that_ends_well_when_its_time_is_over_has_still_taken_too_long(site):
    site.submit("trap 'exit 0' TERM; while :; do sleep 0.1; done", runtime_seconds=4)
    assert site.start(grace=60).wait() == 0
    assert site.job(0).result.reason == "timeout"
    assert site.job(0).result.exit_status == 0


def test_a_cancelled_job_is_cancelled_also_when_its_time_is_over_then(site):
    script = "trap '' TERM; echo > ready; while :; do sleep 0.1; done"
    site.submit(script, runtime_seconds=6)
    site.start(grace=6.5)
    site.wait_for("ready")
    cancel(site.machine, site.jobs[0])
    assert site.ended(0).result.reason == "cancelled"


def test_a_worker_skips_jobs_for_which_it_has_no_time_and_says_so(site):
    site.submit("true", runtime_seconds=3600)
    site.submit("true", runtime_seconds=60)
    site.submit("true")
    worker = site.start(walltime=1000, echo=True)
    shown, _ = worker.communicate()
    assert worker.returncode == 0
    assert [site.job(job).state for job in range(3)] == ["waiting", "ended", "ended"]
    assert "(ID=1) is left to other workers: 1 hour needed, 16 minutes and " in shown
    state = find_worker(site.machine, 1)
    until = datetime.fromisoformat(state.until)
    assert until.tzinfo is not None
    assert 0 < (until - datetime.now(UTC)).total_seconds() < 1000
    assert state.reason == "nothing is left that it can run"
    assert site.start().wait() == 0
    assert site.job(0).result.ok
    assert find_worker(site.machine, 2).until is None


def test_slurm_tells_how_long_a_worker_may_live(site):
    site.submit("true", runtime_seconds=500)
    end = time.time() + 300
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(int(end))}
    assert site.start(env=environment).wait() == 0
    assert site.job(0).state == "waiting"
    until = datetime.fromisoformat(find_worker(site.machine, 1).until).timestamp()
    assert abs(until - end) <= 2


def test_a_fresh_worker_claims_a_job_as_long_as_its_allocation(site):
    site.submit("true", runtime_seconds=330)
    site.submit("true", runtime_seconds=300)
    environment = in_allocation(20, 280)
    worker = site.start(allocation="7", env=environment)
    assert worker.wait() == 0
    assert [site.job(job).state for job in range(2)] == ["waiting", "ended"]
    assert site.job(1).result.ok


def test_a_job_that_had_the_longest_possible_allocation_is_not_requeued(site):
    site.submit("sleep 1000", runtime_seconds=24)
    environment = in_allocation(8, 16)
    worker = site.start(allocation="7", grace=1, env=environment)
    assert worker.wait() == 0
    result = site.ended(0).result
    assert (result.reason, result.attempt) == ("timeout", 1)
    assert result.detail == "its worker had less time than the job's limit of 24 seconds"


def test_a_job_that_ends_because_a_person_wants_the_node_is_requeued(site):
    site.submit("echo x > began; sleep 1000", runtime_seconds=100)
    environment = in_allocation(8, 100)
    start = time.monotonic()
    worker = site.start(allocation="7", grace=1, env=environment)
    site.wait_for("began")
    time.sleep(time.monotonic() - start + 0.5)  # the job has most of the worker's time
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert site.job(0).state == "waiting"


def test_a_job_ends_when_three_workers_were_out_of_time(site):
    site.submit("echo > began.$KOCHI_ATTEMPT; exec sleep 1000")
    for attempt in (1, 2, 3):
        assert (site.job(0).state, site.job(0).attempt) == ("waiting", attempt)
        start = time.monotonic()
        worker = site.start(walltime=100, grace=1)
        site.wait_for(f"began.{attempt}")
        time.sleep(time.monotonic() - start + 0.5)  # the job has most of the worker's time
        worker.terminate()
        assert worker.wait() == 0
    result = site.ended(0).result
    assert (result.reason, result.attempt) == ("timeout", 3)
    assert result.detail.startswith("begun 3 times; the time of its last worker ended before")


def test_slurm_is_not_asked_for_the_end_of_an_allocation_with_a_requested_time(site):
    program = site.directory / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho > {site.directory}/was-asked\necho 10:00\n")
    program.chmod(0o755)
    began = str(int(time.time()) - 20)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_START_TIME": began}
    environment = {**os.environ, **slurm, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    assert site.start(allocation="7", allocation_seconds=900, env=environment).wait() == 0
    assert not (site.directory / "was-asked").exists()
    until = datetime.fromisoformat(find_worker(site.machine, 1).until).timestamp()
    assert abs(until - float(began) - 900) <= 2
    # Without a requested time Slurm is asked.
    assert site.start(allocation="7", env=environment).wait() == 0
    assert (site.directory / "was-asked").exists()


def test_the_earlier_of_two_ends_counts():
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(time.time() + 500)}
    assert 480 < find_walltime(None, slurm, 5.0).seconds_left() <= 490
    assert 80 < find_walltime(100, slurm, 5.0).seconds_left() <= 90
    assert 480 < find_walltime(1000, slurm, 5.0).seconds_left() <= 490
    assert find_walltime(None, slurm | {"SLURM_JOB_END_TIME": "soon"}, 5.0).seconds_left() is None
    assert find_walltime(None, slurm | {"SLURM_JOB_END_TIME": "1"}, 5.0).is_over
    with pytest.raises(WorkerError, match="a walltime of 9 seconds leaves no time for jobs"):
        find_walltime(9, {}, 5.0)


@pytest.mark.parametrize(("walltime", "obeys"), [(50, False), (1000, True)])
def test_a_worker_that_knows_the_end_of_its_time_uses_it_although_the_scheduler_warns_early(
    site, walltime, obeys
):
    site.submit("echo $$ > pid; while [ ! -e go ]; do sleep 0.1; done")
    worker = site.start(stay=True, walltime=walltime)
    site.wait_for("pid")
    worker.send_signal(signal.SIGUSR1)
    site.submit("touch go")  # a worker that obeys does not begin it
    if obeys:
        assert worker.wait() == 0
        assert find_worker(site.machine, 1).reason == "told by SIGUSR1"
    else:
        assert site.ended(0).result.ok
        worker.terminate()
        assert worker.wait() == 0


def test_a_worker_that_drains_shows_why_while_its_jobs_end(site):
    site.submit("trap '' TERM; echo $$ > pid; while [ ! -e go ]; do sleep 0.1; done")
    worker = site.start(grace=1000)
    site.wait_for("pid")
    assert find_worker(site.machine, 1).state == "running"
    worker.terminate()
    site.wait_until(lambda: find_worker(site.machine, 1).state == "draining")
    assert find_worker(site.machine, 1).reason == "told by SIGTERM"
    (site.directory / "go").touch()
    assert worker.wait() == 0


def test_a_job_that_a_signal_of_its_own_ended_has_that_result(site):
    site.submit("kill -TERM $$", "exit 143")
    assert site.start().wait() == 0
    assert site.job(0).result.describe() == "killed by SIGTERM"
    assert site.job(1).result.describe() == "exit status 143"
