"""The run summary, and the measurements in it."""

from __future__ import annotations

import errno
import pickle
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty_filesystem import FaultyFilesystem
from run_helpers import results
from support import job_of_run, write

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.executor.rule_usage import RuleUsage, Sample
from snakemake_kochi.executor.run_summary import RunSummary
from snakemake_kochi.files import make_directory, to_json, write_atomically
from snakemake_kochi.next.worker.walltime import find_beginning
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import (
    Attempt,
    Capacity,
    EndedAttempt,
    Resources,
    Result,
    Ticket,
    WorkerState,
    allocate_ids,
    note_allocations,
)

CONTROLLER = "here-1"


def at(seconds: float) -> str:
    return f"2026-01-01T{int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}:{seconds % 60:09.6f}"


@pytest.fixture
def machine(isolated_environment: Path) -> MachinePaths:
    return Root(isolated_environment).machine("local")


def a_worker(machine: MachinePaths, start: float, end: float, **given: Any) -> int:
    """One with four cores whose allocation began ten seconds before it."""
    (number,) = allocate_ids(machine, "worker", 1)
    settings = {"allocation": str(number + 100), "allocation_began": at(start - 10), **given}
    state = WorkerState(
        worker=number,
        state="left",
        process=ProcessIdentity(1, 1),
        node=this_node(),
        queues=("q",),
        capacity=Capacity(4, 16000),
        started=at(start),
        updated=at(end),
        **{"controller": CONTROLLER, **settings},
    )
    path = machine.worker(number).state
    make_directory(path.parent)
    write_atomically(path, to_json(state.to_dict()))
    return number


def a_ticket(job: int, rule: str = "align", **wanted: Any) -> Ticket:
    labels = {"rule": rule, "runner": "shell"}
    return Ticket("name", ("true",), "/", resources=Resources(**wanted), labels=labels, job=job)


def a_result(job: int, worker: int, start: float, end: float, **given: Any) -> Result:
    usual = {"attempt": 1, "reason": "success", "exit_status": 0, "runner": "shell"}
    return Result(
        job=job,
        nonce="n",
        worker=worker,
        node="node",
        signal=None,
        started=at(start),
        ended=at(end),
        log="/log",
        **{**usual, **given},
    )


def test_the_core_time_of_allocations_is_divided_into_useful_idle_startup_and_lost(
    machine: MachinePaths,
) -> None:
    worker = a_worker(machine, 10, 110)
    a_worker(machine, 0, 1000, controller="other-1")
    run_summary = RunSummary(machine, CONTROLLER)
    # Of 100 s of four cores: half of the cores for 40 s, all of them for 30 s, one for 40 s.
    run_summary.add(a_ticket(0, cores=2), a_result(0, worker, 10, 50))
    run_summary.add(a_ticket(1, cores=1, exclusive=True), a_result(1, worker, 50, 80))
    failed = a_result(2, worker, 60, 100, reason="failed", exit_status=1)
    run_summary.add(a_ticket(2, cores=1), failed)
    ran, time, *_ = run_summary.lines(0)
    assert ran == "kochi ran 3 jobs: 3 by shell"
    assert time == (
        "1 allocation, 0.122 core-hours: 45 % useful, 36 % idle, 9 % start-up, 9 % lost"
    )


def test_the_cores_of_each_node_of_an_allocation_count(
    machine: MachinePaths,
) -> None:
    two = a_worker(machine, 10, 110)
    machine.worker(two).hosts.write_text("n1 slots=4\nn2 slots=4\n")
    one = a_worker(machine, 10, 60)
    run_summary = RunSummary(machine, CONTROLLER)
    run_summary.add(a_ticket(0, exclusive=True), a_result(0, two, 10, 110))
    run_summary.add(a_ticket(1, exclusive=True), a_result(1, one, 10, 35))
    _, time, *_ = run_summary.lines(0)
    # 220 s of two nodes, 60 of one.
    assert time == (
        "2 allocations, 0.311 core-hours: 80 % useful, 9 % idle, 11 % start-up, 0 % lost"
    )


def test_an_allocation_that_never_began_is_not_counted(machine: MachinePaths) -> None:
    note_allocations(machine, CONTROLLER, ["7", "8"], "1 core")
    machine.allocation_log(CONTROLLER, "7").touch()
    a_worker(machine, 10, 110)
    a_worker(machine, 10, 60)
    run_summary = RunSummary(machine, CONTROLLER)
    time, *_ = run_summary.lines(0)
    assert time.startswith("3 allocations, ")


def test_attempts_before_the_last_one_are_lost(machine: MachinePaths) -> None:
    first, second = a_worker(machine, 10, 60), a_worker(machine, 10, 60)
    paths = machine.job(7)
    make_directory(paths.directory)
    attempt = Attempt(7, 1, "n", first, this_node(), ProcessIdentity(1, 1), at(10))
    write_atomically(paths.attempt(1), to_json(attempt.to_dict()))
    ended = EndedAttempt(7, 1, "n", first, "node", "drained", at(35))
    write_atomically(paths.ended(1), to_json(ended.to_dict()))
    run_summary = RunSummary(machine, CONTROLLER)
    run_summary.add(a_ticket(7, cores=4), a_result(7, second, 10, 35, attempt=2))
    _, time, *_ = run_summary.lines(0)
    assert time.startswith("2 allocations, ")
    assert "21 % useful, 42 % idle, 17 % start-up, 21 % lost" in time


def test_unreported_jobs_are_in_the_summary(machine: MachinePaths) -> None:
    worker = a_worker(machine, 10, 110)
    cancelled = a_result(3, worker, 10, 110, reason="cancelled", exit_status=None)
    make_directory(machine.job(3).directory)
    write_atomically(machine.job(3).result, to_json(cancelled.to_dict()))
    lines = RunSummary(machine, CONTROLLER).lines(0, [a_ticket(3, cores=4), a_ticket(4)])
    assert "0 % useful, 0 % idle, 9 % start-up, 91 % lost" in lines[0]


def test_the_summary_compares_usage_and_requests_of_each_rule(machine: MachinePaths) -> None:
    worker = a_worker(machine, 0, 8000)
    run_summary = RunSummary(machine, CONTROLLER)
    for job, (seconds, memory) in enumerate([(100, 1000), (190, 2000), (300, 2100)]):
        used = {"cpu_seconds": 0.5 * seconds, "peak_memory_mb": memory}
        ticket = a_ticket(job, cores=4, memory_mb=16000, runtime_seconds=7200)
        run_summary.add(ticket, a_result(job, worker, 0, seconds, **used))
    # Failed ones are not what a request should fit, but what they used is said.
    for memory, reason in ((16100, "out of memory"), (20, "failed"), (40000, "cancelled")):
        ticket = a_ticket(2, cores=4, memory_mb=16000, runtime_seconds=7200)
        used = {"cpu_seconds": memory / 100, "peak_memory_mb": memory, "reason": reason}
        run_summary.add(ticket, a_result(2, worker, 0, 10, **used))
    for job in range(3, 10):
        run_summary.add(a_ticket(job, f"other{job}"), a_result(job, worker, 0, 1))
    lines = run_summary.lines(0)
    assert len(lines) <= 12
    assert lines[3] == (
        "    align: 6 jobs; 0.5, 0.5 of 4 cores; 2000, 2100 of 16000 MiB; 3:10, 5:00 of 2:00:00; "
        "2 failed with at most 2:41 CPU, 16100 MiB"
    )
    assert "    and 4 other rules" in lines
    assert lines[-3:] == [
        "rule align: requested 16000 MiB, its largest process used at most 2100: mem_mb=2700 is "
        "enough if the job has no other process of that size",
        "rule align: requested 2:00:00, took at most 5:00: runtime=10 is enough",
        "rule align: requested 4 cores, kept at most 0.5 busy: threads=1 is enough",
    ]


@pytest.mark.parametrize(
    "asked",
    [
        {"memory_mb": 3900, "runtime_seconds": 1200},  # not twice; not four times
        {"memory_mb": 900, "runtime_seconds": 600},
        {},
    ],
)
def test_a_negligible_saving_is_not_suggested(asked: dict[str, int]) -> None:
    usage = RuleUsage()
    used = {"cpu_seconds": 300.0, "peak_memory_mb": 2000}
    usage.add(Resources(**asked), a_result(0, 0, 0, 301, **used), 301)
    assert list(usage.suggestions(in_allocations=True)) == []


def test_nothing_is_suggested_for_a_rule_whose_jobs_request_different_resources() -> None:
    usage = RuleUsage()
    for memory in (8000, 16000):
        usage.add(Resources(memory_mb=memory), a_result(0, 0, 0, 1, peak_memory_mb=5), 1)
    assert list(usage.suggestions(in_allocations=True)) == []
    assert "5, 5 of 8000 to 16000 MiB" in usage.describe()


def test_a_sample_of_many_numbers_stays_small_and_keeps_the_median() -> None:
    sample = Sample()
    for number in range(100_000):
        sample.add(number)
    assert (sample.least, sample.most) == (0, 99_999)
    assert abs(sample.median - statistics.median(range(100_000))) < 500
    assert len(pickle.dumps(sample)) < 20_000


def test_a_result_of_an_earlier_release_has_no_usage() -> None:
    data = a_result(0, 0, 0, 1, cpu_seconds=0.5, peak_memory_mb=10).to_dict()
    now = Result.from_dict(data, Path("result.json"))
    assert (now.cpu_seconds, now.peak_memory_mb) == (0.5, 10)
    del data["cpu_seconds"], data["peak_memory_mb"]
    then = Result.from_dict(data, Path("result.json"))
    assert (then.cpu_seconds, then.peak_memory_mb) == (None, None)
    usage = RuleUsage()
    usage.add(Resources(memory_mb=16000), then, 1)
    assert usage.describe() == "1 job; 1.00 s, 1.00 s"
    with pytest.raises(DamagedFileError):
        Result.from_dict({**data, "cpu_seconds": "much"}, Path("result.json"))


def test_an_allocation_begins_when_slurm_says_so_or_when_its_process_began() -> None:
    assert find_beginning({"SLURM_JOB_ID": "7", "SLURM_JOB_START_TIME": "1767225600"}) == (
        "2026-01-01T00:00:00.000000+00:00"
    )
    began = datetime.fromisoformat(find_beginning({})).timestamp()
    assert abs(began - psutil.Process().create_time()) < 2


PYTHON = "python3 -c 'x = bytearray(200 << 20); sum(range(3000000))'; touch {output}"
MEASURED = f"""
    rule all:
        input: "shell", "run", "script"

    rule shell:
        output: "shell"
        resources: mem_mb=4000
        shell: "{PYTHON}"

    rule run:
        output: "run"
        run:
            x = bytearray(200 << 20)
            sum(range(3000000))
            open(output[0], "w").close()

    rule script:
        output: "script"
        script: "script.py"
"""
SCRIPT = "x = bytearray(200 << 20); sum(range(3000000)); open(snakemake.output[0], 'w').close()"


@pytest.mark.parametrize("runner", [(), ("--kochi-runner", "command")])
def test_memory_and_cpu_time_of_jobs_are_measured_with_each_runner(
    tmp_path: Path, snakemake: Any, runner: tuple[str, ...]
) -> None:
    write(tmp_path / "Snakefile", MEASURED)
    write(tmp_path / "script.py", SCRIPT)
    options = ("--executor", "kochi", "--jobs", "3", "--cores", "2", *runner)
    done = snakemake(*options, cwd=tmp_path)
    assert done.returncode == 0
    found = results()
    assert len(found) == 3
    assert all(200 <= result["peak_memory_mb"] < 600 for result in found)
    assert all(result["cpu_seconds"] > 0.01 for result in found)
    # On this computer only what is worth a change is said.
    assert "rule shell: requested 4000 MiB, its largest process used at most" in done.stdout
    assert "core-hours" not in done.stdout
    assert "per job" not in done.stdout


def test_a_run_without_waste_prints_only_its_runners(tmp_path: Path, snakemake: Any) -> None:
    write(tmp_path / "Snakefile", 'rule a:\n    output: "a"\n    shell: "touch {output}"\n')
    done = snakemake("--executor", "kochi", "--jobs", "1", cwd=tmp_path)
    lines = done.stdout.splitlines()
    last = lines.index("kochi ran 1 job: 1 by shell")
    assert lines[last + 1].startswith("Complete log")


def test_the_summary_omits_data_that_cannot_be_read(tmp_path: Path) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        machine = Root(filesystem.path).machine("local")
        worker = a_worker(machine, 0, 100)
        run_summary = RunSummary(machine, CONTROLLER)
        asked = machine.allocation_note(CONTROLLER, "x")
        make_directory(asked.parent)
        asked.write_text("{}")
        whole = run_summary.lines(worker)
        ways = ("*/worker.json", "*/ids.json", f"*/{asked.name}")
        for path in ways:
            with filesystem.fault("open", errno.EIO, path) as fault:
                assert len(run_summary.lines(worker)) <= len(whole)
                assert filesystem.count(fault)
    assert whole


# ---- a job that the chosen runner did not execute

WITH_THREADS = """
    import threading, time
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    rule one:
        output: "one"
        run:
            open(output[0], "w").close()
    """


def test_the_run_summary_names_a_job_that_shows_the_reason(
    tmp_path: Path, snakemake: Any, kochi: Any
) -> None:
    write(tmp_path / "Snakefile", WITH_THREADS)
    done = snakemake("--executor", "kochi", "-j1", cwd=tmp_path)
    assert done.returncode == 0
    said = f"1 by command (1 not by zygote: see kochi show job {job_of_run(0)})"
    assert f"kochi ran 1 job: {said}" in done.stdout
    shown = kochi("show", "job", job_of_run(0), cwd=tmp_path)
    assert "runner command (no zygote: its parse starts threads (see " in shown.stdout
