"""What each run loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each takes longer than the module of ours that would have it.
NOT_FOR_RUNS = {
    *("difflib", "git", "logging", "random", "secrets", "shutil", "tempfile", "yaml"),
    "snakemake_kochi.phases.isolation",
    "snakemake_kochi.phases.placement",
    "snakemake_kochi.project.expansion",
    "snakemake_kochi.queue",
}


@pytest.mark.parametrize("spawner", ["", ", snakemake_kochi.worker.runners.phase_process"])
def test_a_run_does_not_load_what_few_runs_need(spawner: str) -> None:
    """The spawner copies what it has loaded for each run."""
    code = f"import sys, snakemake_kochi.phases.__main__{spawner}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "snakemake_kochi.phases.run" in loaded
    assert not loaded & NOT_FOR_RUNS
