"""A run's large file travels as a pointer, and a colleague gets its content."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import git, run

from .conftest import results

pytestmark = pytest.mark.phases

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
BRANCH = "kochi_artifacts_local"
PATH = "local/sum/first/10_0.txt"


def kochi(directory: Path, *words: str) -> str:
    done = run(*KOCHI, *words, cwd=directory)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_a_clone_gets_a_large_result_of_a_run_byte_for_byte(
    finished_project: Any, tmp_path: Path
) -> None:
    project = finished_project
    top = project.directory
    project.edit("kochi.yaml", "dependencies:", "large_files: 1M\ndependencies:")
    project.edit("sum.yaml", "> out.txt", "> out.txt\n    head -c 2M /dev/urandom >> out.txt")
    project.edit("sum.yaml", "n: [", "n: [10, ")
    project.snakemake(*results(10), executor="kochi")
    content = (top / results(10)[0]).read_bytes()
    assert len(content) > 2 << 20
    assert git(top, "cat-file", "-s", f"{BRANCH}:{PATH}") == "132\n"
    store = top / ".git/lfs/objects"
    assert len([path for path in store.rglob("*") if path.is_file()]) == 1
    assert "byte for byte as the run wrote it" in kochi(top, "why", PATH)
    # By a bare repository to a clone.
    git(tmp_path, "clone", "--quiet", "--bare", str(top), "bare")
    git(top, "remote", "add", "origin", str(tmp_path / "bare"))
    assert "git lfs push --all origin" in kochi(top, "artifact", "push")
    git(tmp_path, "clone", "--quiet", str(tmp_path / "bare"), "clone")
    clone = tmp_path / "clone"
    kochi(clone, "artifact", "fetch")
    told = json.loads(kochi(clone, "artifact", "fetch", PATH, "-o", "copy.txt", "--json"))
    assert [(each["path"], each["was_here"]) for each in told] == [(PATH, False)]
    assert (clone / "copy.txt").read_bytes() == content
    assert "byte for byte as the run wrote it" in kochi(clone, "why", PATH)
    # The users' own git-lfs agrees.
    git(clone, "lfs", "install", "--local", "--skip-repo")
    git(clone, "worktree", "add", "--quiet", str(tmp_path / "tree"), f"origin/{BRANCH}")
    assert (tmp_path / "tree" / PATH).read_bytes() == content
    assert git(tmp_path / "tree", "status", "--porcelain") == ""
    assert git(tmp_path / "tree", "lfs", "fsck") == "Git LFS fsck OK\n"
