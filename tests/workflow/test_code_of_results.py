"""A colleague with a clone has the code of each result, byte for byte."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support import git, run

from .conftest import results

BRANCH = "origin/kochi_artifacts_local"
KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")


def test_a_clone_has_the_uncommitted_code_of_each_result_of_any_executor(
    finished_project: Any, tmp_path: Path
) -> None:
    project = finished_project
    top = project.directory
    git(tmp_path, "clone", "--quiet", "--bare", str(top), "bare")
    git(top, "remote", "add", "origin", str(tmp_path / "bare"))
    head = git(top, "rev-parse", "HEAD")
    for number, executor in ((1, "local"), (2, "kochi")):
        (top / "code.txt").write_text(f"code {number}\n")
        (top / "untracked.txt").write_text(f"untracked {number}\n")
        project.edit("sum.yaml", "n: [", f"n: [{number}0, ")
        project.snakemake(*results(10 * number), executor=executor)
    status = git(top, "status", "--porcelain")
    said = run(*KOCHI, "artifact", "push", cwd=top)
    assert said.returncode == 0, said.stdout
    assert "refs/kochi/code/*:refs/kochi/code/*" in said.stdout
    assert (git(top, "rev-parse", "HEAD"), git(top, "status", "--porcelain")) == (head, status)
    git(tmp_path, "clone", "--quiet", str(tmp_path / "bare"), "clone")
    clone = tmp_path / "clone"
    assert run(*KOCHI, "artifact", "fetch", cwd=clone).returncode == 0
    seen = {}
    listed = git(clone, "ls-tree", "-r", "--name-only", BRANCH, "local/.kochi/records/")
    for path in listed.splitlines():
        record = json.loads(git(clone, "show", f"{BRANCH}:{path}"))
        ref = f"refs/kochi/code/{record['snapshot']['tree']}"
        files = git(clone, "ls-tree", "--name-only", ref).splitlines()
        untracked = "untracked.txt" in files and git(clone, "show", f"{ref}:untracked.txt")
        if record["snapshot"]["dirty"]:
            diff = git(
                clone, "show", f"{BRANCH}:local/.kochi/diffs/{record['snapshot']['tree']}.diff"
            )
            assert diff.strip() == record["snapshot"]["diff"].strip()
            assert f"+code {int(record['parameters']['n']) // 10}" in diff.splitlines()
        seen[record["parameters"]["n"]] = (git(clone, "show", f"{ref}:code.txt"), untracked)
    assert seen == {
        "1": ("code\n", False),
        "2": ("code\n", False),
        "10": ("code 1\n", "untracked 1\n"),
        "20": ("code 2\n", "untracked 2\n"),
    }
