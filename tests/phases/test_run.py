"""What each run loads, and how the output of build and run is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import write

from snakemake_kochi.phases.outputs import MOST_OF_BUILD, write_printed

# Each takes longer than the module of ours that would have it.
NOT_FOR_RUNS = {
    *("difflib", "git", "logging", "random", "secrets", "shutil", "tempfile", "yaml"),
    "snakemake_kochi.phases.isolation",
    "snakemake_kochi.project.sweeps",
    "snakemake_kochi.queue",
}


@pytest.mark.parametrize("spawner", ["", "worker.phase"])
def test_a_run_does_not_load_what_few_runs_need(spawner: str) -> None:
    """The spawner copies what it has loaded for each run."""
    modules = ", ".join(f"snakemake_kochi.{name}" for name in ("phases.__main__", spawner) if name)
    code = f"import sys, {modules}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert "snakemake_kochi.phases.run" in loaded
    assert not loaded & NOT_FOR_RUNS


def test_the_output_of_a_build_is_cut(tmp_path: Path) -> None:
    log = write(tmp_path / os.fsdecode(b"latin-\xe9") / "log", "line\n" * MOST_OF_BUILD)
    captured = write(tmp_path / "captured", "total 10\n")
    found = write_printed(tmp_path / "printed", "sum", "7", log, captured)
    content = (tmp_path / "printed").read_bytes()
    # The record has to say where the run's own part is.
    assert content[found["start"] :][: found["size"]] == b"total 10\n"
    assert len(content) < MOST_OF_BUILD + 1000
    assert b" bytes before this are in " + os.fsencode(log) + b"]\nline\n" in content
