"""`kochi why`: from a result's file to the run that wrote it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from support import git, run, run_apart

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
BRANCH = "kochi_artifacts_local"
FILE = "results/local/sum/first/2_0.txt"
PATH = "local/sum/first/2_0.txt"


def why(directory: Path, *words: str, status: int = 0) -> str:
    done = run(*KOCHI, "why", *words, cwd=directory)
    assert done.returncode == status, done.stdout
    assert "Traceback" not in done.stdout
    return done.stdout


def told(directory: Path, *words: str, status: int = 0) -> dict[str, Any]:
    done = run_apart(*KOCHI, "why", "--json", *words, cwd=directory)
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_story_of_a_file_in_results(finished_project: Any) -> None:
    top = finished_project.directory
    story = why(top, FILE)
    assert f"{PATH}: byte for byte as the run wrote it" in story
    assert "sum.yaml, batch first, named sum" in story
    assert "n=2" in story
    head = git(top, "rev-parse", "HEAD").strip()
    assert f"commit {head[:12]}\n" in story
    assert "git worktree add --detach DIR refs/kochi/code/" in story
    assert "tool:fast" in story
    tip = git(top, "rev-parse", BRANCH).strip()
    assert told(top, FILE)["commit"] in {tip, git(top, "rev-parse", f"{BRANCH}^").strip()}
    # Without its local record it is found in the branch.
    shutil.rmtree(top / ".snakemake" / "kochi")
    assert told(top, FILE)["file"] == "identical"


def test_a_file_that_was_changed_after_its_run_is_told_with_status_1(finished_project: Any) -> None:
    top = finished_project.directory
    with (top / FILE).open("a") as file:
        file.write("a better number\n")
    assert "CHANGED since the run wrote it" in why(top, FILE, status=1)
    # The branch still has what the run wrote.
    assert told(top, PATH)["file"] == "identical"


def test_the_same_from_results_a_worktree_a_path_and_a_clone(
    finished_project: Any, tmp_path: Path
) -> None:
    top = finished_project.directory
    git(top, "worktree", "add", "--quiet", str(tmp_path / "artifacts"), BRANCH)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(top), str(clone))
    assert run(*KOCHI, "artifact", "fetch", cwd=clone).returncode == 0
    stories = [
        told(top, FILE),
        told(top / "results", "local/sum/first/2_0.txt"),
        told(tmp_path / "artifacts", PATH),
        told(top, PATH),
        told(top, PATH, "--at", BRANCH),
        told(clone, PATH),
    ]
    assert all(story == stories[0] for story in stories[1:])
    assert stories[0]["file"] == "identical"
    assert stories[0]["record"]["parameters"]["n"] == "2"


def test_each_version_of_a_file_has_its_own_run_and_its_changes(finished_project: Any) -> None:
    top = finished_project.directory
    before = git(top, "rev-parse", BRANCH).strip()
    (top / "code.txt").write_text("other code\nof two lines\n")
    finished_project.snakemake(FILE)
    now, then = told(top, FILE), told(top, PATH, "--at", before)
    assert now["record"]["identity"] != then["record"]["identity"]
    assert now["changes"] == "1 file changed, 2 insertions(+), 1 deletion(-)"
    assert then["changes"] == ""
    assert "with changes (1 file changed, 2 insertions(+), 1 deletion(-))" in why(top, FILE)


def test_a_result_that_is_in_no_branch_is_found_whatever_its_name(finished_project: Any) -> None:
    top = finished_project.directory
    finished_project.edit("sum.yaml", "${duplicate}.txt", "${duplicate} ü.txt")
    file = "results/local/sum/first/2_0 ü.txt"
    finished_project.snakemake(file)
    git(top, "branch", "-D", BRANCH)
    story = told(top, file)
    assert (story["file"], story["commit"]) == ("identical", "")


ANSWERS = {
    "results/local/sum/first/3_0.txt": "did you mean",
    "sum.yaml": "is no result",
    "results/local/sum/first.csv": "Tables and plots are made from all records",
    "local/sum/first/9_0.txt": "no such file in commit",
    "lokal/sum/first/2_0.txt": "did you mean 'local'",
}


def test_files_that_no_run_wrote_get_a_clear_answer(finished_project: Any, tmp_path: Path) -> None:
    top = finished_project.directory
    for file, answer in ANSWERS.items():
        assert answer in why(top, file, status=1)
    git(top, "worktree", "add", "--quiet", str(tmp_path / "artifacts"), BRANCH)
    worktree = tmp_path / "artifacts"
    (worktree / "local" / "notes.txt").write_text("by hand\n")
    assert "no such file in commit" in why(worktree, "local/notes.txt", status=1)
    git(worktree, "add", "--all")
    git(worktree, "commit", "--quiet", "--message=notes")
    assert "local/notes.txt has no record" in why(worktree, "local/notes.txt", status=1)
    assert "there is no commit nowhere" in why(top, PATH, "--at", "nowhere", status=1)


def test_a_record_that_was_edited_is_told_and_runs_no_option_of_git(
    finished_project: Any, tmp_path: Path
) -> None:
    top = finished_project.directory
    worktree = tmp_path / "artifacts"
    git(top, "worktree", "add", "--quiet", str(worktree), BRANCH)
    records = list((worktree / "local" / ".kochi" / "records").rglob("*.json"))
    file = next(each for each in records if "2_0.txt" in each.read_text())
    record = json.loads(file.read_text())
    record["snapshot"]["base"] = f"--output={tmp_path}/written"
    for wrong in ("was edited: snapshot.base", "lacks node"):
        if wrong == "lacks node":
            record["snapshot"]["base"] = None
            del record["node"]
        file.write_text(json.dumps(record))
        (worktree / PATH).write_text(f"edited, too: {wrong}\n")
        git(worktree, "commit", "--quiet", "--all", "--message=edited")
        assert wrong in why(worktree, PATH, status=1)
    assert not list(tmp_path.glob("written*"))
