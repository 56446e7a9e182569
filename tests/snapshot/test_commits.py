"""Snapshots of commits that are not checked out."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_helpers import git, write

from snakemake_kochi.errors import GitError
from snakemake_kochi.snapshot import find_commit, freeze, freeze_commit, list_entries


def commit_all(repository: Path, message: str) -> str:
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", f"--message={message}")
    return git(repository, "rev-parse", "HEAD").strip()


def test_a_branch_comes_before_a_tag_and_both_before_what_else_git_takes_for_a_commit(
    repository: Path, tmp_path: Path
) -> None:
    first = git(repository, "rev-parse", "HEAD").strip()
    write(repository / "more.c", "more\n")
    second = commit_all(repository, "second")
    git(repository, "tag", "same", first)
    git(repository, "branch", "same", second)
    git(repository, "branch", "deep/branch", first)
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    assert find_commit(repository, "same") == second
    assert find_commit(repository, "refs/tags/same") == first
    assert find_commit(repository, "HEAD~1") == find_commit(repository, first[:9]) == first
    # Of a clone, a branch of its origin.
    assert find_commit(tmp_path / "clone", "deep/branch") == first


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mian", "'mian' is no branch, tag or commit here, did you mean 'main'"),
        ("", "the value is empty"),
        ("-x", "'-x' is no branch"),
        ("--upload-pack=touch owned", "is no branch"),
        ("main:file.c", "is no branch"),
        ("a\0b", "is no branch"),
        ("0" * 40, "is no branch"),
    ],
)
def test_a_name_without_a_commit_is_an_error_and_never_an_option_of_git(
    repository: Path, name: str, said: str
) -> None:
    with pytest.raises(GitError, match=said):
        find_commit(repository, name)


def test_a_clean_working_tree_and_its_commit_have_the_same_tree(
    repository: Path, store: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    made = freeze_commit(repository, commit, store)
    assert made == freeze(repository, store)
    assert (made.base, made.dirty) == (commit, False)


def test_committed_results_are_left_out_as_they_are_of_a_working_tree(
    repository: Path, store: Path
) -> None:
    write(repository / "results/old.log", "old\n")
    commit = commit_all(repository, "results")
    made = freeze_commit(repository, commit, store, ("/results",))
    assert made.tree == freeze(repository, store, ("/results",)).tree
    assert not [each for each in list_entries(store, made.tree) if each.path.startswith("results")]


def test_submodules_have_the_files_of_the_recorded_commits_also_inside_each_other(
    repository: Path, tmp_path: Path, store: Path
) -> None:
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "--quiet", "--initial-branch=main")
        write(tmp_path / name / f"{name}.c", "old\n")
        commit_all(tmp_path / name, "old")
    git(tmp_path / "outer", "submodule", "--quiet", "add", "../inner", "deep")
    commit_all(tmp_path / "outer", "deep")
    git(repository, "submodule", "--quiet", "add", "../outer", "lib/outer")
    git(repository, "submodule", "--quiet", "update", "--init", "--recursive")
    commit = commit_all(repository, "submodule")
    expected = freeze(repository, store)
    # Later, it is not checked out any more.
    git(repository, "rm", "--quiet", "-r", "lib/outer")
    commit_all(repository, "without")
    made = freeze_commit(repository, commit, store)
    paths = {each.path for each in list_entries(store, made.tree)}
    assert {"lib/outer/outer.c", "lib/outer/deep/inner.c"} <= paths
    assert made.tree == expected.tree


def test_a_submodule_that_is_not_here_is_an_error_that_says_what_to_type(
    repository: Path, tmp_path: Path, store: Path
) -> None:
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "--quiet", "--initial-branch=main")
    write(tmp_path / "other" / "a.c", "a\n")
    commit_all(tmp_path / "other", "a")
    git(repository, "submodule", "--quiet", "add", "../other", "other")
    commit = commit_all(repository, "submodule")
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    with pytest.raises(GitError, match=r"has other as a submodule at commit .* not here") as error:
        freeze_commit(tmp_path / "clone", commit, store)
    assert "git submodule update --init" in str(error.value)
