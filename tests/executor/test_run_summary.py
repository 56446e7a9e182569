"""The run summary, and the measurements in it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_helpers import results
from support import job_of_run, write

from snakemake_kochi.executor.summary import RuleUsage
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue.views import Attempt
from snakemake_kochi.tickets.ticket import Resources, Ticket
from snakemake_kochi.worker.walltime import find_beginning

CONTROLLER = "here-1"


def at(seconds: float) -> str:
    return f"2026-01-01T{int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}:{seconds % 60:09.6f}"


@pytest.fixture
def machine(isolated_environment: Path) -> MachinePaths:
    return Root(isolated_environment).machine("local")


def a_ticket(job: int, rule: str = "align", **wanted: Any) -> Ticket:
    labels = {"rule": rule, "runner": "shell"}
    return Ticket("name", ("true",), "/", resources=Resources(**wanted), labels=labels, job=job)


def a_result(job: int, worker: int, start: float, end: float, **given: Any) -> Attempt:
    return Attempt(1, worker, "success", "node", at(start), at(end), 0, runner="shell", **given)


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
