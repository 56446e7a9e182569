"""The profiles are understood by every Snakemake that is supported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
NAMES = sorted(path.parent.name for path in PROFILES.glob("*/config.yaml"))


def test_there_is_a_profile_for_this_computer() -> None:
    assert "local" in NAMES


@pytest.mark.compatibility
@pytest.mark.parametrize("name", NAMES)
def test_snakemake_runs_a_workflow_with_the_profile(
    name: str, tmp_path: Path, snakemake: Callable
) -> None:
    (tmp_path / "Snakefile").write_text(
        'rule hello:\n    output: "hello.txt"\n    shell: "echo hello >{output}"\n'
    )
    # Snakemake's own executor: this is about the options, and needs no worker.
    options = ["--executor", "local", "--cores", "1"]
    done = snakemake("--profile", str(PROFILES / name), *options, cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "hello.txt").read_text() == "hello\n"
