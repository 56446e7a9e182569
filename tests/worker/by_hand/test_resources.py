"""The capacity of a worker, the tickets that it skips, and its records of jobs."""

from __future__ import annotations

import os
import time

import psutil

from snakemake_kochi.queue.by_hand import cancel
from snakemake_kochi.queue.views import find_worker
from snakemake_kochi.tickets.history import find
from snakemake_kochi.worker.node.capacity import OWN_MB, capacity_of_this_node


def test_a_worker_publishes_its_capacity(site):
    assert site.start(cores=3, memory_mb=123, gpus="2").wait() == 0
    capacity = find_worker(site.machine, 1).capacity
    assert (capacity.cores, capacity.memory_mb, capacity.gpus) == (3, 123, 2)


def test_the_default_capacity_is_what_the_process_may_use(site):
    cpu = min(os.sched_getaffinity(0))
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "7",
        "SLURM_MEM_PER_NODE": "2000",
        "CUDA_VISIBLE_DEVICES": "5",
    }
    worker = site.start(env=environment, preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    assert worker.wait() == 0
    capacity = find_worker(site.machine, 1).capacity
    # A scheduler ends a whole allocation whose memory is exhausted, so the worker keeps a share.
    assert (capacity.cores, capacity.memory_mb, capacity.gpus) == (1, 2000 - OWN_MB, 1)
    everything = capacity_of_this_node(environment={"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "0"})
    assert 2000 < everything.memory_mb <= psutil.virtual_memory().total // 2**20


def test_tickets_that_never_fit_are_skipped_named_and_left_to_others(site):
    site.submit("true", cores=3)
    site.submit("true", memory_mb=200)
    site.submit("true", gpus=1)
    site.submit("true", cores=2, memory_mb=100)
    site.submit("echo > done")
    worker = site.start(cores=2, memory_mb=100, echo=True)
    shown, _ = worker.communicate()
    assert worker.returncode == 0
    assert [site.job(job).state for job in range(5)] == ["waiting"] * 3 + ["ended"] * 2
    assert "Kochi job job0 (ID=1) is left to other workers: 3 cores needed, 2 available." in shown
    assert "(ID=2) is left to other workers: 200 MiB of memory needed, 100 available." in shown
    assert "(ID=3) is left to other workers: 1 GPU needed, none available." in shown
    assert find_worker(site.machine, 1).reason == "nothing is left that it can run"
    assert site.start(cores=3, memory_mb=200, gpus="1").wait() == 0
    assert [site.job(job).result.ok for job in range(5)] == [True] * 5
    assert find_worker(site.machine, 2).reason == "nothing to do"


def test_memory_and_gpus_limit_the_jobs_that_run_beside_each_other(site):
    alone = "mkdir busy{0} || exit 1; sleep 0.2; rmdir busy{0}"
    site.submit(*[alone.format("m")] * 3, memory_mb=60)
    site.submit(*[alone.format("g")] * 3, gpus=1)
    assert site.start(cores=8, memory_mb=100, gpus="1").wait() == 0
    assert all(site.job(job).result.ok for job in range(6))


def outputs_of(site, number):
    view = find(site.machine.layout, site.jobs[number], 1)
    return view.line["details"].get("outputs")


def test_the_outputs_of_a_success_are_recorded_by_time_and_size(site):
    site.submit(
        "echo hello > 'a b'; mkdir d; ln -s nowhere l", outputs=("a b", "d", "l", "missing")
    )
    site.submit("echo hello > f; exit 1", outputs=("f",))
    assert site.start(cores=1).wait() == 0
    outputs = outputs_of(site, 0)
    assert set(outputs) == {"a b", "d"}
    for name in outputs:
        found = (site.directory / name).stat()
        assert tuple(outputs[name]) == (found.st_mtime_ns, found.st_size)
    assert outputs_of(site, 1) is None


def test_neighbours_of_a_job_that_is_cancelled_go_on(site):
    script = "echo $$ > pid{0}; while [ ! -e go ]; do echo $SECONDS > beat{0}; sleep 0.01; done"
    site.submit(*[script.format(i) for i in range(3)])
    site.start(cores=3, grace=0.2)
    pids = [site.wait_for(f"pid{i}").strip() for i in range(3)]
    cancel(site.machine, site.jobs[1])
    assert site.ended(1).result.reason == "cancelled"
    assert [psutil.pid_exists(int(pid)) for pid in pids] == [True, False, True]
    beats = [site.directory / "beat0", site.directory / "beat2"]
    before = [beat.stat().st_mtime_ns for beat in beats]
    time.sleep(0.1)
    site.wait_until(
        lambda: all(b.stat().st_mtime_ns > t for b, t in zip(beats, before, strict=True))
    )
    (site.directory / "go").touch()
    assert site.ended(0).result.ok and site.ended(2).result.ok
