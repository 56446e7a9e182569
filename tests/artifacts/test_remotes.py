"""Results and their code travel by a bare repository."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from git_helpers import commit_to_new_repository, files_of, git, write

from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.artifacts.remotes import fetch, push
from snakemake_kochi.errors import GitError, NameNotFoundError
from snakemake_kochi.paths import ProjectPaths, Root
from snakemake_kochi.snapshot import Snapshot, freeze

MACHINE = "local"
BRANCH = "kochi_artifacts_local"


def typed(repository: Path, *words: str) -> None:
    """A command of the user. The hooks of `repository` would refuse any change of a ref."""
    git(repository, "-c", "core.hooksPath=/dev/null", *words)


def result(
    repository: Path,
    paths: ProjectPaths,
    identity: str,
    recipes: list[dict[str, Any]] | None = None,
) -> Snapshot:
    """Commit a result of the working tree as it is."""
    snapshot = freeze(repository, paths.store)
    record = {
        "identity": identity,
        "snapshot": {"tree": snapshot.tree, "base": snapshot.base},
        "recipes": recipes or [],
    }
    source = write(paths.directory / "work" / identity, identity)
    journal(paths, MACHINE, Result(identity, {f"{identity}.log": source}, record))
    assert commit_pending(repository, paths, MACHINE) == 1
    return snapshot


def test_a_clone_gets_results_with_their_code(
    repository: Path, paths: ProjectPaths, clone: Path, tmp_path: Path
) -> None:
    trees = []
    for number in range(3):
        write(repository / "main.c", f"version {number}\n")
        write(repository / "untracked" / "new.c", f"new {number}\n")
        trees.append(result(repository, paths, f"r{number}").tree)
    pushed = push(repository, paths)
    assert pushed.command[:2] == ("push", "origin")
    assert (pushed.branches, pushed.snapshots, pushed.changed) == (1, 3, (BRANCH,))
    fetched = fetch(clone)
    assert fetched.snapshots == 3
    assert fetched.changed == (f"origin/{BRANCH}",)
    assert git(clone, "show", f"origin/{BRANCH}:local/r1.log") == "r1"
    for number, tree in enumerate(trees):
        copy = tmp_path / f"copy {number}"
        git(clone, "worktree", "add", "--detach", str(copy), f"refs/kochi/code/{tree}")
        assert files_of(copy)["untracked/new.c"] == ("file", b"new %d\n" % number)
    assert fetch(clone).changed == push(repository, paths).changed == ()


@pytest.mark.parametrize("setting", ["fetch.prune", "remote.origin.prune"])
def test_a_fetch_deletes_no_code_that_the_remote_lacks(
    setting: str, repository: Path, paths: ProjectPaths, bare: Path, clone: Path, tmp_path: Path
) -> None:
    result(repository, paths, "first")
    push(repository, paths)
    own = Root(tmp_path / "root of the clone").project(clone)
    tree = result(clone, own, "own").tree
    git(clone, "config", setting, "true")
    git(clone, *fetch(clone).command)
    assert git(clone, "cat-file", "-t", f"refs/kochi/code/{tree}") == "commit\n"


def test_a_push_sends_no_tags_and_no_submodules(
    repository: Path, paths: ProjectPaths, bare: Path
) -> None:
    git(repository, "config", "push.followTags", "true")
    git(repository, "config", "push.recurseSubmodules", "on-demand")
    typed(repository, "tag", "--annotate", "--message=private", "private")
    result(repository, paths, "first")
    push(repository, paths)
    assert git(bare, "tag", "--list") == ""


def test_the_printed_commands_do_the_same(
    repository: Path, paths: ProjectPaths, bare: Path, clone: Path
) -> None:
    tree = result(repository, paths, "first").tree
    typed(repository, *push(repository, paths).command)
    result(repository, paths, "second")
    typed(repository, *push(repository, paths).command)
    git(clone, *fetch(clone).command)
    assert git(clone, "show", f"origin/{BRANCH}:local/second.log") == "second"
    assert git(clone, "cat-file", "-t", f"refs/kochi/code/{tree}") == "commit\n"


def test_the_sources_of_local_and_mirrored_recipes_travel_and_those_of_remote_ones_do_not(
    repository: Path, paths: ProjectPaths, clone: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    commit = commit_to_new_repository(library, "a.c", "committed\n")
    write(library / "a.c", "edited\n")
    mirrored = freeze(library, paths.store)
    sources: list[dict[str, str]] = [
        {"git": "../library", "commit": commit},
        {"mirror": str(library), "tree": mirrored.tree, "base": commit},
        {"git": "https://example.org/x.git", "commit": "1" * 40},
        {},
    ]
    recipes = [
        {"dependency": "d", "recipe": f"r{number}", "source": source}
        for number, source in enumerate(sources)
    ]
    result(repository, paths, "first", recipes)
    assert push(repository, paths).snapshots == 3
    fetch(clone)
    assert git(clone, "show", f"refs/kochi/code/{commit}:a.c") == "committed\n"
    assert git(clone, "show", f"refs/kochi/code/{mirrored.tree}:a.c") == "edited\n"


def test_a_result_without_code_is_committed_and_a_later_push_publishes_the_code(
    repository: Path, paths: ProjectPaths, bare: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Its ref cannot be made as long as this file is in the way.
    in_the_way = write(repository / ".git" / "refs" / "kochi", "")
    tree = result(repository, paths, "first").tree
    assert "is not in the repository yet" in caplog.text
    assert push(repository, paths).without_code == 1
    in_the_way.unlink()
    pushed = push(repository, paths)
    assert (pushed.snapshots, pushed.without_code) == (1, 0)
    assert git(bare, "cat-file", "-t", f"refs/kochi/code/{tree}") == "commit\n"


def test_a_remote_with_results_of_another_clone_refuses_with_what_to_type(
    repository: Path, paths: ProjectPaths, bare: Path
) -> None:
    result(repository, paths, "first")
    push(repository, paths)
    result(repository, paths, "second")
    push(repository, paths)
    typed(repository, "branch", "-f", BRANCH, f"{BRANCH}^")
    result(repository, paths, "third")
    with pytest.raises(GitError) as caught:
        push(repository, paths)
    assert f"origin refused refs/heads/{BRANCH} [rejected]" in caught.value.message
    assert "kochi artifact fetch origin" in str(caught.value)
    assert git(bare, "show", f"{BRANCH}:local/second.log") == "second"


def test_the_reason_of_a_remote_that_accepts_nothing_is_told(
    repository: Path, paths: ProjectPaths, bare: Path
) -> None:
    result(repository, paths, "first")
    hook = write(bare / "hooks" / "pre-receive", "#!/bin/sh\necho the disk is full >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(GitError) as caught:
        push(repository, paths)
    assert f"origin refused refs/heads/{BRANCH} [remote rejected]" in caught.value.message
    assert "\n    remote: the disk is full" in caught.value.message
    assert "fetch" not in str(caught.value)


def test_code_of_a_shallow_clone_is_pushed_where_its_base_is_known(
    repository: Path, bare: Path, tmp_path: Path
) -> None:
    write(repository / "later.txt", "later")
    git(repository, "add", "later.txt")
    typed(repository, "commit", "--quiet", "--no-gpg-sign", "--message=later")
    typed(repository, "push", "--quiet", "origin", "HEAD")
    git(tmp_path, "clone", "--quiet", "--depth=1", "--branch=main", bare.as_uri(), "shallow")
    shallow = tmp_path / "shallow"
    choose_name(shallow, MACHINE, MACHINE)
    write(shallow / "uncommitted.txt", "uncommitted")
    paths = Root(tmp_path / "root of shallow").project(shallow)
    tree = result(shallow, paths, "first").tree
    push(shallow, paths)
    assert git(bare, "show", f"refs/kochi/code/{tree}:uncommitted.txt") == "uncommitted"
    git(tmp_path, "init", "--quiet", "--bare", "other")
    git(shallow, "remote", "add", "other", str(tmp_path / "other"))
    with pytest.raises(GitError, match="git fetch --unshallow"):
        push(shallow, paths, "other")


def test_what_is_missing_is_said(repository: Path, paths: ProjectPaths, tmp_path: Path) -> None:
    with pytest.raises(GitError, match="git remote add origin"):
        push(repository, paths)
    git(tmp_path, "init", "--quiet", "--bare", "bare")
    git(repository, "remote", "add", "origin", str(tmp_path / "bare"))
    with pytest.raises(NameNotFoundError, match="did you mean 'origin'"):
        fetch(repository, "orign")
    with pytest.raises(GitError, match="no artifact branch to push") as refused:
        push(repository, paths)
    # Neither sends a person to the other one for ever.
    assert refused.value.hint == "To make results, type: kochi batch FILE.yaml BATCH"
    with pytest.raises(GitError, match="origin has no artifact branch") as absent:
        fetch(repository)
    assert absent.value.hint is not None
    assert absent.value.hint.startswith(refused.value.hint)
    git(repository, "remote", "set-url", "origin", str(tmp_path / "gone"))
    with pytest.raises(GitError, match="gone"):
        fetch(repository)


def test_the_remote_is_the_one_that_git_pushes_to(
    repository: Path, paths: ProjectPaths, bare: Path, tmp_path: Path
) -> None:
    result(repository, paths, "first")
    git(tmp_path, "init", "--quiet", "--bare", "other")
    git(repository, "remote", "add", "other", str(tmp_path / "other"))
    assert push(repository, paths).remote == "origin"
    git(repository, "config", "remote.pushDefault", "other")
    assert push(repository, paths).remote == "other"
    git(repository, "config", "--unset", "remote.pushDefault")
    git(repository, "config", "--remove-section", "remote.other")
    git(repository, "config", "--rename-section", "remote.origin", "remote.mine")
    assert push(repository, paths).remote == "mine"


def test_a_deleted_artifact_branch_leaves_the_code(
    repository: Path, paths: ProjectPaths, clone: Path
) -> None:
    tree = result(repository, paths, "first").tree
    push(repository, paths)
    typed(repository, "branch", "-D", BRANCH)
    typed(repository, "gc", "--quiet", "--prune=now")
    assert git(repository, "cat-file", "-t", f"refs/kochi/code/{tree}") == "commit\n"
    fetch(clone)
    assert git(clone, "show", f"origin/{BRANCH}:local/first.log") == "first"


def test_records_of_others_cannot_make_a_push_publish_what_is_not_in_the_store(
    repository: Path, paths: ProjectPaths, bare: Path, tmp_path: Path
) -> None:
    commit = commit_to_new_repository(tmp_path / "private", "a.c", "private\n")
    source = {"git": str(tmp_path / "private"), "commit": commit}
    written = tmp_path / "written"
    mirror = {"mirror": str(repository), "tree": "2" * 40, "base": f"--output={written}"}
    records: list[Any] = [
        {"recipes": [{"dependency": "d", "recipe": "r", "source": source}]},
        {"snapshot": {"tree": "../../heads/main", "base": None}},
        {"snapshot": {"tree": "1" * 40, "base": "--all"}},
        {"recipes": [{"dependency": "d", "recipe": "r", "source": mirror}]},
        {"snapshot": "edited"},
        [],
    ]
    lines = [f"100644 blob {_blob(repository, each)}\t{n}.json" for n, each in enumerate(records)]
    tree = _tree(repository, lines)
    for name in ("records", ".kochi", "local"):
        tree = _tree(repository, [f"040000 tree {tree}\t{name}"])
    made = git(repository, "commit-tree", tree, "-m", "of another").strip()
    typed(repository, "update-ref", f"refs/heads/{BRANCH}", made)
    pushed = push(repository, paths)
    assert (pushed.branches, pushed.snapshots, pushed.without_code) == (1, 0, 0)
    assert not written.exists()


def _blob(repository: Path, record: Any) -> str:
    file = write(repository.parent / "record.json", json.dumps(record))
    return git(repository, "hash-object", "-w", str(file)).strip()


def _tree(repository: Path, lines: list[str]) -> str:
    file = write(repository.parent / "lines", "".join(f"{line}\n" for line in lines))
    with file.open() as stream:
        made = subprocess.run(
            ["git", "mktree"], cwd=repository, stdin=stream, check=True, capture_output=True
        )
    return made.stdout.decode().strip()
