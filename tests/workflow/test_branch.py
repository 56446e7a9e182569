"""What a run of Snakemake does when its artifact branch, or .git, is not what it was."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from support import git

from .conftest import results

BRANCH = "kochi_artifacts_local"


def kept(project: Any) -> set[str]:
    listed = git(project.directory, "ls-tree", "-r", "--name-only", BRANCH).splitlines()
    records = [path for path in listed if "/.kochi/records/" in path]
    artifacts = {path for path in listed if path.endswith(".log")}
    assert len(records) == len(artifacts)
    return {Path(path).name for path in artifacts}


def test_results_of_a_branch_deleted_during_a_run_are_in_it_at_the_end(
    finished_project: Any,
) -> None:
    project = finished_project
    top = project.directory
    delete = f"test $KOCHI_PARAM_N != 3 || git -C '{top}' branch -D {BRANCH}; "
    project.edit("sum.yaml", 'echo "total', f'{delete}echo "total')
    project.snakemake(*results(1, 2), executor="kochi")
    # The third run deletes what the first two have committed.
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    said = project.snakemake(*results(1, 2, 3), executor="kochi")
    assert kept(project) == {"1_0.log", "2_0.log", "3_0.log"}
    assert "in results/local that no commit had" in said


def test_the_next_run_commits_what_a_branch_lost_though_it_has_nothing_to_do(
    finished_project: Any,
) -> None:
    project = finished_project
    git(project.directory, "branch", "-D", BRANCH)
    assert BRANCH not in git(project.directory, "for-each-ref")
    project.snakemake("sum_first", "-n")
    assert BRANCH not in git(project.directory, "for-each-ref"), "a dry run commits nothing"
    assert "committed 2 results" in project.snakemake("sum_first")
    assert kept(project) == {"1_0.log", "2_0.log"}
    assert "committed" not in project.snakemake("sum_first")


def test_a_run_during_which_git_is_away_loses_nothing(project: Any) -> None:
    top = project.directory
    # The first run takes it away, the second, a process later, brings it back.
    project.edit(
        "sum.yaml",
        'echo "total',
        f"cd '{top}'; if [ -e .git ]; then mv .git .away; else mv .away .git; fi; cd - >&2; "
        'echo "total',
    )
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    project.snakemake(*results(1, 2, 3))
    assert not (top / ".git").exists()
    (top / ".away").rename(top / ".git")
    project.snakemake(*results(1, 2, 3))
    assert kept(project) == {"1_0.log", "2_0.log", "3_0.log"}
    journals = Path(os.environ["KOCHI_ROOT"]).glob("projects/*/artifacts/local/journal/*")
    assert list(journals) == []


def test_an_old_worktree_says_once_that_it_replaces_newer_results(
    finished_project: Any, tmp_path: Path
) -> None:
    project = finished_project
    project.edit("code.txt", "code", "newer code")
    project.commit("newer")
    assert "replaced" not in project.snakemake(*results(1, 2))
    newer = git(project.directory, "rev-parse", "HEAD").strip()
    git(project.directory, "worktree", "add", "--quiet", "--detach", str(tmp_path / "old"), "HEAD~")
    old = replace(project, directory=tmp_path / "old")
    said = old.snakemake(*results(1, 2))
    assert "2 newer results replaced by older work" in said
    assert f"from commit {newer[:12]}" in said
    # What it says to type shows the newer one.
    typed = re.search(r"git show (\w+:local/sum/first/\d_0\.\w+)", said)
    assert typed is not None
    place = typed[1].replace(typed[1].rpartition(".")[2], "txt")
    assert git(old.directory, "show", place).startswith("newer code")
    again = ("--forcerun", "run_sum_first", "--", *results(1, 2))
    assert "replaced" not in old.snakemake(*again)
    assert "replaced" not in project.snakemake(*again)
