"""The capacity of a worker, the tickets that it skips, and its records of jobs."""

from __future__ import annotations

import io
import math
import os
import time
from pathlib import Path

import psutil
import pytest

from snakemake_kochi.queue import Queue, cancel, find_worker
from snakemake_kochi.worker.node.capacity import OWN_MB, capacity_of_this_node
from snakemake_kochi.worker.output import Echo


def test_a_worker_publishes_its_capacity(site):
    assert site.start(cores=3, memory_mb=123, gpus="2").wait() == 0
    capacity = find_worker(site.machine, 0).capacity
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
    capacity = find_worker(site.machine, 0).capacity
    # A scheduler ends a whole allocation whose memory is exhausted, so the worker keeps a share.
    assert (capacity.cores, capacity.memory_mb, capacity.gpus) == (1, 2000 - OWN_MB, 1)
    everything = capacity_of_this_node(environment={"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "0"})
    assert 2000 < everything.memory_mb <= psutil.virtual_memory().total // 2**20


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gpus": "x"}, "--gpus x: a number of GPUs was expected"),
        ({"walltime": 3.0}, "a walltime of 3 seconds leaves no time for jobs"),
        ({"memory_mb": 0}, "key 'memory_mb': a number from 1 was expected, not 0"),
    ],
)
def test_a_worker_with_impossible_settings_is_refused_before_it_registers(site, settings, said):
    worker = site.start(**settings, stderr=-1)
    _, errors = worker.communicate()
    assert worker.returncode != 0
    assert said in errors
    assert "Traceback" not in errors
    assert not site.machine.workers.exists()


def test_tickets_that_never_fit_are_skipped_named_and_left_to_others(site):
    site.submit("true", cores=3)
    site.submit("true", memory_mb=200)
    site.submit("true", gpus=1)
    site.submit("true", cores=2, memory_mb=100)
    site.submit("echo > done")
    worker = site.start(cores=2, memory_mb=100)
    shown, _ = worker.communicate()
    assert worker.returncode == 0
    assert [site.job(job).state for job in range(5)] == ["waiting"] * 3 + ["ended"] * 2
    assert "Kochi job job0 (ID=0) is left to other workers: 3 cores needed, 2 available." in shown
    assert "(ID=1) is left to other workers: 200 MiB of memory needed, 100 available." in shown
    assert "(ID=2) is left to other workers: 1 GPU needed, none available." in shown
    assert find_worker(site.machine, 0).reason == "nothing is left that it can run"
    assert site.start(cores=3, memory_mb=200, gpus="1").wait() == 0
    assert [site.job(job).result.ok for job in range(5)] == [True] * 5
    assert find_worker(site.machine, 1).reason == "nothing to do"


def test_only_the_first_of_many_that_never_fit_are_named(site):
    site.submit(*["true"] * 50, gpus=1)
    shown, _ = site.start().communicate()
    assert shown.count("is left to other workers") == 5
    assert shown.endswith("and more; list them with: kochi show jobs\n")
    log = site.machine.worker(0).log.read_text()
    assert log.count("is skipped: 1 GPU needed, none available") == 1


def test_a_worker_that_stays_claims_tickets_behind_those_that_never_fit(site):
    site.submit(*["true"] * 3, gpus=1)
    worker = site.start(stay=True, idle_wait=7200)
    site.wait_until(lambda: site.machine.worker(0).log.exists())
    site.wait_until(lambda: "skipped" in site.machine.worker(0).log.read_text())
    (ticket,) = site.submit("true")
    assert site.ended(ticket.job).result.ok
    assert worker.poll() is None
    assert len(Queue(site.machine, "q").waiting()) == 3


def test_memory_and_gpus_limit_the_jobs_that_run_beside_each_other(site):
    alone = "mkdir busy{0} || exit 1; sleep 0.2; rmdir busy{0}"
    site.submit(*[alone.format("m")] * 3, memory_mb=60)
    site.submit(*[alone.format("g")] * 3, gpus=1)
    assert site.start(cores=8, memory_mb=100, gpus="1").wait() == 0
    assert all(site.job(job).result.ok for job in range(6))


def test_the_outputs_of_a_success_are_recorded_by_time_and_size(site):
    site.submit(
        "echo hello > 'a b'; mkdir d; ln -s nowhere l", outputs=("a b", "d", "l", "missing")
    )
    site.submit("echo hello > f; exit 1", outputs=("f",))
    assert site.start(cores=1).wait() == 0
    outputs = site.job(0).result.outputs
    assert set(outputs) == {"a b", "d"}
    for name in outputs:
        found = (site.directory / name).stat()
        assert tuple(outputs[name]) == (found.st_mtime_ns, found.st_size)
    assert site.job(1).result.outputs == {}


def peak_memory_mb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


@pytest.mark.parametrize("echo", [False, True])
def test_the_output_of_a_job_does_not_pass_through_the_workers_memory(site, echo):
    site.submit("head -c 100000000 /dev/zero; echo end", "true")
    with open(os.devnull, "w") as nowhere:
        options = {} if not echo else {"preexec_fn": lambda: os.dup2(nowhere.fileno(), 1)}
        site.start(stay=True, cores=1, echo=echo, **options)
    assert site.ended(0).result.ok
    assert site.ended(1).result.ok
    assert site.machine.job(0).log.stat().st_size == 100_000_004
    assert peak_memory_mb(find_worker(site.machine, 0).process.pid) < 150


class GrowingLog(io.BytesIO):
    """A terminal that is slower than the job: the log always has more to show."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def write(self, content: bytes) -> int:
        if content.startswith(b"x"):
            with self._log.open("ab") as stream:
                stream.write(content)
        return super().write(content)


def test_a_job_that_writes_without_end_does_not_keep_the_worker_from_others(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000)
    terminal = GrowingLog(log)
    echo = Echo(jobs=True, stream=terminal)
    echo.job_started(0, "busy", log, 0)
    echo.pump()
    shown = len(terminal.getvalue())
    echo.pump()
    assert len(terminal.getvalue()) > shown, "it goes on with the next look"


def test_an_output_that_is_shown_in_parts_is_shown_whole(tmp_path):
    log = tmp_path / "log"
    content = b"y" * 40_000_000
    log.write_bytes(content)
    terminal = io.BytesIO()
    echo = Echo(jobs=True, stream=terminal)
    echo.job_started(0, "large", log, 0)
    echo.job_ended(0, "")
    echo.pump()
    assert echo.deadline < math.inf
    echo.pump(everything=True)
    assert echo.deadline == math.inf
    assert content + b"\n" + b"-" * 80 in terminal.getvalue()


def test_neighbours_of_a_job_that_is_cancelled_go_on(site):
    script = "echo $$ > pid{0}; while [ ! -e go ]; do echo $SECONDS > beat{0}; sleep 0.01; done"
    site.submit(*[script.format(i) for i in range(3)])
    site.start(cores=3, grace=0.2)
    pids = [site.wait_for(f"pid{i}").strip() for i in range(3)]
    cancel(site.machine, 1)
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
