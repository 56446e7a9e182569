"""The regular look at queues: jobs that no worker can run, and deleted files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from run_helpers import background
from seen import FIRST
from support import job_of_run, write

SNAKEFILE = """
    rule large:
        output: "large"
        threads: 3
        shell: "touch {output}"
    """


def test_a_job_that_no_worker_of_a_queue_can_run_is_reported_once(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    kochi = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "q", "-b")
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "-j8", "--kochi-queue", "q")
    never = f"No worker of queue q can ever run kochi job {job_of_run(0)} of rule large"
    said = f"{never} (worker {FIRST}: 3 cores needed"
    small = background(*kochi, "--cores", "1", cwd=tmp_path)
    with small, background(*run, cwd=tmp_path) as controller:
        assert controller.stdout is not None
        before = []
        while said not in (line := controller.stdout.readline()):
            assert line, f"it ended: {before}"
            before.append(line)
        with background(*kochi, "--cores", "4", cwd=tmp_path):
            output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 0
    assert said not in output
    assert (tmp_path / "large").exists()


@pytest.mark.parametrize("part", ["queues", "queues/*"])
def test_a_run_whose_queues_a_job_deletes_ends_and_names_them(
    part: str, tmp_path: Path, isolated_environment: Path, snakemake: Any
) -> None:
    machine = isolated_environment / "machines" / "local"
    write(
        tmp_path / "Snakefile",
        f"""
        rule all:
            output: "done"
            shell: "rm -r {machine}/{part}; sleep 300; touch {{output}}"
        """,
    )
    done = snakemake("--executor", "kochi", "-j2", cwd=tmp_path)
    assert done.returncode == 1
    where = machine / part.removesuffix("/*")
    assert f"{where}" in done.stdout
    assert "was deleted while jobs needed it" in done.stdout
    assert "Traceback" not in done.stdout
