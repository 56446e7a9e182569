"""`kochi artifact`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support import git, write

from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.paths import Root, WorkingPaths

from .conftest import Outcome

Kochi = Callable[..., Outcome]


def add_result(project: Path, name: str) -> None:
    paths = Root(Path(os.environ["KOCHI_ROOT"])).project(project)
    file = project.parent / "output"
    file.write_text(f"result {name}\n")
    result = Result(identity=name, files={f"fib/{name}.log": file}, record={"identity": name})
    journal(paths, "local", result)
    commit_pending(project, paths, "local")


def lie_in_results(project: Path, name: str) -> None:
    """Leave a result as a run does that has not journaled it."""
    working = WorkingPaths(project, "local")
    write(working.results / f"fib/{name}.log", f"result {name}\n")
    record = {
        "identity": name,
        "machine": "local",
        "ended": "2026-01-01T00:00:00+00:00",
        "artifacts": [{"type": "stdout", "dest": f"fib/{name}.log", "src": None}],
    }
    write(working.records / name / "record.json", json.dumps(record))


def test_results_come_to_the_worktree_as_in_the_tutorial(
    project: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kochi("artifact", "init", "../proj-artifacts").status == 0
    add_result(project, "first")
    worktree = project.parent / "proj-artifacts"
    monkeypatch.chdir(worktree)
    outcome = kochi("artifact", "sync", "-m", "local")
    assert outcome.status == 0, outcome.err
    assert "Merged 1 commit of kochi_artifacts_local" in outcome.out
    assert (worktree / "local/fib/first.log").read_text() == "result first\n"
    assert "nothing new" in kochi("artifact", "sync").out
    # From the project, too.
    monkeypatch.chdir(project)
    add_result(project, "second")
    data = kochi("artifact", "sync", "--json").data
    assert data["commits"] == 1
    assert data["directory"] == str(worktree)
    assert (worktree / "local/fib/second.log").exists()


def test_the_log_lists_the_commits(project: Path, kochi: Kochi) -> None:
    add_result(project, "first")
    add_result(project, "second")
    rows = kochi("artifact", "log", "--json").data
    assert len(rows) == 2
    assert rows[0]["commit"] == git(project, "rev-parse", "kochi_artifacts_local").strip()
    assert len(kochi("artifact", "log", "-l", "1", "--json").data) == 1
    assert rows[0]["commit"][:12] in kochi("artifact", "log").out


def test_discard_asks_first(project: Path, kochi: Kochi, shell: Kochi) -> None:
    add_result(project, "first")
    for answer in ("n\n", ""):
        outcome = shell("artifact", "discard", stdin=answer)
        assert outcome.status == 1
        assert git(project, "branch", "--list", "kochi_artifacts_local") != ""
    assert "no answer was given; nothing was changed\nTo agree in advance, add: -y" in outcome.err
    outcome = kochi("artifact", "discard", "-y", "--json")
    assert outcome.data == {"machine": "local", "results": 1}
    assert git(project, "branch", "--list", "kochi_artifacts_local") == ""
    assert kochi("artifact", "discard", "-y").status == 1


def test_before_init_sync_says_what_to_type(project: Path, kochi: Kochi) -> None:
    outcome = kochi("artifact", "sync")
    assert outcome.status == 1
    assert "kochi artifact init DIR" in outcome.err


def test_a_directory_that_is_not_empty_is_refused(project: Path, kochi: Kochi) -> None:
    outcome = kochi("artifact", "init", "sub")
    assert outcome.status == 1
    assert "empty" in outcome.err


def test_outside_of_a_project_it_says_what_to_type(kochi: Kochi) -> None:
    outcome = kochi("artifact", "log")
    assert outcome.status == 1
    assert "git init" in outcome.err


@pytest.mark.parametrize("directory", [".git/hooks/x", "../root/artifacts"])
def test_a_directory_of_git_or_of_kochi_itself_is_refused(
    project: Path, kochi: Kochi, directory: str
) -> None:
    outcome = kochi("artifact", "init", directory)
    assert outcome.status == 1
    assert f"kochi artifact init {project}-artifacts" in outcome.err
    assert "kochi_artifacts" not in git(project, "for-each-ref")


def test_syncing_says_that_results_were_in_no_commit(project: Path, kochi: Kochi) -> None:
    kochi("artifact", "init", "../proj-artifacts")
    for name in ("first", "second"):
        lie_in_results(project, name)
    outcome = kochi("artifact", "sync")
    assert "Committed 2 results in results/local that no commit had" in outcome.out
    assert "Merged" in outcome.out
    assert (project.parent / "proj-artifacts/local/fib/first.log").read_text() == "result first\n"
    assert "no commit" not in kochi("artifact", "sync").out
    lie_in_results(project, "third")
    assert kochi("artifact", "sync", "--json").data["missed"] == 1


def test_the_fetched_branch_of_a_machine_that_is_elsewhere_is_merged(
    project: Path, kochi: Kochi
) -> None:
    kochi("artifact", "init", "../proj-artifacts")
    add_result(project, "first")
    git(project, "branch", "kochi_artifacts_cluster", "kochi_artifacts_local")
    # Directories of its own: they cannot be made here.
    (project.parent / "a file").write_text("")
    elsewhere = project.parent / "a file" / "kochi"
    file = project / "kochi.yaml"
    cluster = {"scheduler": "slurm", "kochi_root": str(elsewhere), "lock_dir": str(elsewhere)}
    configuration = yaml.safe_load(file.read_text())
    configuration.setdefault("machines", {})["cluster"] = cluster
    file.write_text(yaml.safe_dump(configuration))
    outcome = kochi("artifact", "sync", "-m", "cluster")
    assert outcome.status == 0, outcome.err
    assert "Merged 1 commit of kochi_artifacts_cluster" in outcome.out
    assert not elsewhere.exists()


def typed(told: str, directory: Path) -> None:
    """Type the command that a line ends with."""
    command = told.partition("type: ")[2]
    who = {
        f"GIT_{role}_{what}": "a@b"
        for role in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environment = os.environ | who | {"GIT_EDITOR": "true"}
    subprocess.run(["bash", "-c", command], cwd=directory, env=environment, check=True)


def test_what_another_clone_has_pushed_is_told_and_joined_as_sync_says(
    project: Path, kochi: Kochi, tmp_path: Path
) -> None:
    add_result(project, "first")
    kochi("artifact", "init", "../proj-artifacts")
    kochi("artifact", "sync")
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(project), str(other))
    choose_name(other, "local", "local")
    add_result(other, "second")
    git(other, "branch", "kochi_artifacts", "kochi_artifacts_local")
    git(project, "remote", "add", "origin", str(other))
    git(project, "fetch", "--quiet", "origin")
    add_result(project, "third")
    told = [line for line in kochi("artifact", "sync").err.splitlines() if "To join" in line]
    assert len(told) == 2
    assert "origin/kochi_artifacts_local has 1 commit of another clone that" in told[0]
    assert "origin/kochi_artifacts has 1 commit that kochi_artifacts lacks" in told[1]
    for line in told:
        typed(line, project)
    for name in ("first", "second", "third"):
        assert (project.parent / f"proj-artifacts/local/fib/{name}.log").exists()
    assert "To join" not in kochi("artifact", "sync").err
    git(other, "checkout", "--quiet", "--detach")
    git(project, "push", "--quiet", "origin", "kochi_artifacts_local", "kochi_artifacts")


def test_discard_says_where_the_results_are_still_and_how_to_delete_them_there(
    project: Path, kochi: Kochi, shell: Kochi, tmp_path: Path
) -> None:
    add_result(project, "first")
    git(tmp_path, "clone", "--quiet", "--bare", str(project), "shared.git")
    git(project, "remote", "add", "origin", str(tmp_path / "shared.git"))
    git(project, "fetch", "--quiet", "origin")
    told = shell("artifact", "discard", stdin="y\n")
    assert told.status == 0
    line = next(line for line in told.err.splitlines() if "--delete" in line)
    typed(line, project)
    add_result(project, "second")
    listed = git(project, "ls-tree", "-r", "--name-only", "kochi_artifacts_local").split()
    assert "local/fib/second.log" in listed
    assert "local/fib/first.log" not in listed


def test_results_are_pushed_and_fetched_with_the_git_command_that_does_it(
    project: Path, kochi: Kochi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_result(project, "first")
    assert "git remote add origin" in kochi("artifact", "push").err
    bare = tmp_path / "bare"
    git(tmp_path, "init", "--quiet", "--bare", str(bare))
    git(project, "remote", "add", "origin", str(bare))
    pushed = kochi("artifact", "push")
    assert pushed.status == 0, pushed.err
    command = "git push origin refs/heads/kochi_artifacts_local:refs/heads/kochi_artifacts_local"
    assert command in pushed.err
    assert "Pushed kochi_artifacts_local\norigin has 1 artifact branch" in pushed.out
    assert "the same on both sides" in kochi("artifact", "push").out
    git(tmp_path, "clone", "--quiet", "--branch=kochi_artifacts_local", str(bare), "clone")
    git(tmp_path / "clone", "checkout", "--quiet", "--orphan", "main")
    write(tmp_path / "clone" / "kochi.yaml", "{}")
    monkeypatch.chdir(tmp_path / "clone")
    # That needs to know which project it is, and not what its kochi.yaml says.
    write(tmp_path / "clone" / "kochi.yaml", "machines: [")
    assert "kochi.yaml:1" in kochi("artifact", "log").err
    fetched = kochi("artifact", "fetch", "--json")
    write(tmp_path / "clone" / "kochi.yaml", "{}")
    assert fetched.data["remote"] == "origin"
    line = "git fetch --no-prune origin '+refs/heads/kochi_artifacts*:"
    assert fetched.data["command"].startswith(line)
    wrong = kochi("artifact", "fetch", "orgin")
    assert wrong.status == 1
    assert "'orgin' is neither a remote of this repository nor a file" in wrong.err
    assert "did you mean 'origin'?" in wrong.err


@pytest.fixture
def clone_with_pointer(
    project: Path, kochi: Kochi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A clone, the current directory, that has fetched the branch with a large file."""
    file = write(tmp_path / "30.bin", "large " * 50_000)
    small = write(tmp_path / "30.log", "small")
    paths = Root(Path(os.environ["KOCHI_ROOT"])).project(project)
    files = {"fib/30.bin": file, "fib/30.log": small}
    journal(paths, "local", Result("first", files, {"identity": "first"}), project, 9999)
    commit_pending(project, paths, "local")
    git(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", str(tmp_path / "bare"))
    git(project, "remote", "add", "origin", str(tmp_path / "bare"))
    git(project, "push", "--quiet", "origin", "HEAD:main")
    pushed = kochi("artifact", "push", "--json")
    assert pushed.data["large_command"].startswith("git lfs push --all origin refs/heads/kochi_")
    git(tmp_path, "clone", "--quiet", str(tmp_path / "bare"), "clone")
    monkeypatch.chdir(tmp_path / "clone")
    write(tmp_path / "clone" / "kochi.yaml", "{}")
    assert kochi("artifact", "fetch").status == 0
    return tmp_path / "clone"


def test_fetching_a_file_that_is_none_has_a_message(clone_with_pointer: Path, kochi: Kochi) -> None:
    for words, status, message in (
        (["local/fib/31.bin"], 1, "did you mean 'local/fib/30.bin'?"),
        (["mine/30.bin"], 1, "no artifact branch has results under the name 'mine'\nknown: local"),
        (["/no/file"], 1, "/no/file: there is no such file"),
        (["./kochi.yaml"], 1, "not one in a worktree of an artifact branch"),
        (["local/fib/30.log", "-o", "no/where"], 1, "no/where: cannot be written (No such file"),
        (["local/fib/30.log", "--at", "nope"], 1, "kochi: there is no commit nope"),
        (["local/fib/30.log", "--at", "HEAD"], 1, "no such file in commit HEAD"),
        (["-o", "x"], 2, "--at and --output need a FILE"),
        (["--large", "local/fib/30.bin"], 2, "--large is for all files"),
        (["-o", "x", "a/b", "c/d"], 2, "--output is for one FILE"),
    ):
        refused = kochi("artifact", "fetch", *words)
        assert refused.status == status, words
        assert message in refused.err, words
        assert not list(clone_with_pointer.glob(".*.tmp")), words


def test_the_log_of_a_branch_that_is_not_here_is_that_of_the_fetched_one(
    clone_with_pointer: Path, kochi: Kochi
) -> None:
    fetched = git(clone_with_pointer, "rev-parse", "origin/kochi_artifacts_local").strip()
    refused = kochi("artifact", "log")
    assert refused.status == 1
    assert "git log origin/kochi_artifacts_local" in refused.err
    name = clone_with_pointer / ".git/kochi/published/local"
    write(name, "local\n")
    assert fetched[:12] in kochi("artifact", "log").out


def test_the_content_of_a_large_file_is_fetched_by_its_name(
    clone_with_pointer: Path, kochi: Kochi
) -> None:
    first = kochi("artifact", "fetch", "local/fib/30.bin", "-o", "copy.bin")
    fetched = "local/fib/30.bin (292.97 KiB) was fetched and is in this clone."
    assert first.out == f"{fetched}\nWrote copy.bin\n"
    assert Path("copy.bin").read_text() == "large " * 50_000
    again = kochi("artifact", "fetch", "origin", "local/fib/30.bin")
    assert again.out == "local/fib/30.bin (292.97 KiB) is in this clone.\n"
    assert "add: --output FILE" in again.err
    at = git(clone_with_pointer, "rev-parse", "origin/kochi_artifacts_local").strip()
    small = kochi("artifact", "fetch", "local/fib/30.log", "-o", "copy", "--at", at)
    assert small.out == "local/fib/30.log (5 bytes) is in the branch itself.\nWrote copy\n"
    assert Path("copy").read_text() == "small"
    assert "Ran: git lfs fetch" in kochi("artifact", "fetch", "--large").err


def test_a_pointer_in_a_worktree_becomes_the_file_if_the_user_has_set_up_git_lfs(
    clone_with_pointer: Path, kochi: Kochi, tmp_path: Path
) -> None:
    git(clone_with_pointer, "worktree", "add", "-q", "../tree", "kochi_artifacts_local")
    pointer = tmp_path / "tree/local/fib/30.bin"
    assert kochi("artifact", "fetch", str(pointer)).status == 0
    assert pointer.stat().st_size < 200
    git(tmp_path, "lfs", "install", "--skip-repo")
    assert kochi("artifact", "fetch", "origin", str(pointer)).status == 0
    assert pointer.read_text() == "large " * 50_000
    assert git(tmp_path / "tree", "status", "--porcelain") == ""
