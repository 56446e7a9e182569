"""Deaths and errors in the kernel, by strace: what test_every_step.py does, for whole programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.stage import Stage, stages
from support import worker_command

from snakemake_kochi.queue import find_job


def under_strace(
    inject: str, *program: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with a fault of `strace -e inject=...` in it and in all it starts."""
    # Python writes to its caches of byte code as well.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    calls = inject.partition(":")[0]
    return subprocess.run(
        [
            # Without --seccomp-bpf, with which no signal is delivered.
            *("strace", "-f", "-qq", "-o", os.devnull),
            *("-e", f"trace={calls}", "-e", f"inject={inject}", sys.executable, *program),
        ],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
    )


def work(stage: Stage, inject: str) -> subprocess.CompletedProcess[str]:
    settings = {"queues": ("q",), "cores": 1, "idle_wait": 0.2, "between_jobs": 0}
    command = worker_command(stage.directory / "root", stage.directory, **settings)
    return under_strace(inject, *command[1:])


@pytest.fixture
def new_stage(tmp_path: Path, mark: str) -> Callable[[], Stage]:
    every = stages(tmp_path)
    return lambda: next(every)


# Those by which files change hands, and processes begin and end; and how many of four deaths there
# have to be: each process counts its own calls.
@pytest.mark.parametrize(
    ("call", "least"),
    [
        ("rename,renameat,renameat2", 1),
        # strace counts the calls of each kind apart: numbers and deliveries, and results.
        ("link", 1),
        ("linkat", 1),
        ("unlink,unlinkat", 1),
        ("clone,clone3,fork,vfork", 1),
        ("flock", 1),
        ("mkdir,mkdirat", 1),
    ],
)
def test_a_worker_dies_in_a_system_call(
    new_stage: Callable[[], Stage], call: str, least: int
) -> None:
    killed = 0
    for number in range(1, 9, 2):
        stage = new_stage()
        stage.submit("a")
        done = work(stage, f"{call}:signal=KILL:when={number}")
        stage.repair()
        result = find_job(stage.machine, 0).result
        assert result is not None
        # The killed one may be the fork that is about to become the job.
        assert result.ok or (result.signal == 9 and stage.lines("a", "begin") == [])
        stage.check({0: "a"})
        stage.close()
        # The worker's own death, its supervisor's, or that of the fork that is to become the job.
        killed += done.returncode != 0 or not result.ok or result.attempt > 1
    assert killed >= least, "it was hardly ever killed"


ERRORS = [
    ("flock:error=ENOLCK", "does not support"),
    ("rename,renameat,renameat2:error=EIO", "Input/output error"),
    ("fsync:error=ENOSPC", "No space left on device"),
    ("mkdir,mkdirat:error=EDQUOT", "Disk quota exceeded"),
]


@pytest.mark.parametrize(("inject", "said"), ERRORS)
def test_who_hands_over_is_told_what_is_wrong_and_nothing_is_handed_over(
    new_stage: Callable[[], Stage],
    inject: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = new_stage()
    stage.submit("a")
    monkeypatch.setenv("KOCHI_ROOT", str(stage.directory / "root"))
    words = ("-m", "snakemake_kochi.cli", "enqueue", "-q", "new", "--", "true")
    done = under_strace(inject, *words, cwd=stage.directory)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.startswith("kochi: "), done.stderr
    stage.repair()
    stage.check({0: "a"})


@pytest.mark.parametrize(
    "inject",
    [
        "flock:error=ENOSYS",
        # For a moment only: a worker waits for a lock that cannot be had, and says so.
        "flock:error=EIO:when=4..9",
        "link,linkat:error=EPERM:when=2",
        "link,linkat:error=ENOSPC:when=3",
        "rename,renameat,renameat2:error=EIO:when=3..5",
        "mkdir,mkdirat:error=ENOSPC:when=2",
        # The supervisor makes two processes, and the worker one for each job.
        "clone,clone3,fork,vfork:error=EAGAIN:when=2..3",
    ],
)
def test_an_error_in_a_worker_costs_no_ticket(new_stage: Callable[[], Stage], inject: str) -> None:
    stage = new_stage()
    stage.submit("a", "b", "c")
    done = work(stage, inject)
    assert "Traceback" not in done.stderr, done.stderr
    stage.repair()
    assert {result.job: result.ok for result in stage.reported} == dict.fromkeys(range(3), True)
    stage.check({0: "a", 1: "b", 2: "c"})
