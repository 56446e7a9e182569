"""A job deletes what the jobs of its run need in order to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import write


@pytest.mark.parametrize("part", ["queues", "queues/*", "locks"])
def test_a_run_whose_queues_or_locks_a_job_deletes_ends_and_names_them(
    part: str, tmp_path: Path, isolated_environment: Path, snakemake: Any
) -> None:
    machine = isolated_environment / "machines" / "local"
    write(
        tmp_path / "Snakefile",
        f"""
        rule all:
            output: "done"
            shell: "rm -r {machine}/{part}; touch {{output}}"
        """,
    )
    done = snakemake("--executor", "kochi", "-j2", cwd=tmp_path)
    assert done.returncode == 1
    where = machine / part.removesuffix("/*")
    assert f"{where}" in done.stdout
    assert "was deleted while jobs needed it" in done.stdout
    assert "Traceback" not in done.stdout
