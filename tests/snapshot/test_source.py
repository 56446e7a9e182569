from __future__ import annotations

from pathlib import Path

import pytest
from git_helpers import files_of, git, write

from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.snapshot import fetch_source, resolve_source


@pytest.fixture
def library(repository: Path) -> Path:
    """A repository with a second branch and an annotated tag on its first commit."""
    git(repository, "tag", "--annotate", "v1.0", "--message=one")
    git(repository, "checkout", "--quiet", "-b", "develop")
    write(repository / "dev.c", "dev\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=develop")
    git(repository, "checkout", "--quiet", "main")
    return repository


def commit_of(repository: Path, name: str) -> str:
    return git(repository, "rev-parse", f"{name}^{{commit}}").strip()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_branches_tags_and_abbreviated_commits_resolve_locally_and_remotely(
    library: Path, scheme: str
) -> None:
    address = f"{scheme}{library}"
    develop = commit_of(library, "develop")
    assert resolve_source(address, "develop", None) == develop
    assert resolve_source(address, "v1.0", None) == commit_of(library, "main")
    assert resolve_source(address, None, None) == commit_of(library, "main")
    assert resolve_source(address, None, develop[:8].upper()) == develop
    assert resolve_source(address, "develop", commit_of(library, "main")) == develop


def test_an_unknown_branch_is_answered_with_the_nearest(library: Path) -> None:
    with pytest.raises(GitError, match="no branch 'devlop'; did you mean 'develop'"):
        resolve_source(str(library), "devlop", None)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_branch_that_a_local_clone_has_at_its_origin_only_is_found(
    library: Path, tmp_path: Path, store: Path, scheme: str
) -> None:
    git(tmp_path, "clone", "--quiet", str(library), "clone")
    address = f"{scheme}{tmp_path / 'clone'}"
    assert resolve_source(address, "develop", None) == commit_of(library, "develop")
    fetch_source(address, "develop", None, store, tmp_path / "source")
    assert (tmp_path / "source" / "dev.c").exists()
    # What is listed are branches: neither the tag v1.0 nor origin/HEAD, and each once.
    with pytest.raises(GitError, match=r"no branch 'splitmix'; known: develop, main$"):
        resolve_source(address, "splitmix", None)
    with pytest.raises(GitError, match="no branch 'HEAD'; known"):
        resolve_source(address, "HEAD", None)


@pytest.mark.parametrize("commit", ["0" * 40, "abcdef12"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_unknown_commit_is_named_and_leaves_nothing_behind(
    library: Path, tmp_path: Path, store: Path, commit: str, scheme: str
) -> None:
    with pytest.raises(GitError, match=f"no commit '{commit}'"):
        fetch_source(f"{scheme}{library}", None, commit, store, tmp_path / "out" / "source")
    assert list((tmp_path / "out").glob("*")) == []


def test_a_branch_given_as_a_commit_is_told_where_it_goes(library: Path) -> None:
    with pytest.raises(GitError, match="`branch:`"):
        resolve_source(str(library), None, "develop")


def test_an_unreachable_repository_is_named_with_what_to_type(tmp_path: Path, store: Path) -> None:
    address = f"file://{tmp_path}/nowhere"
    with pytest.raises(GitError, match=f"git ls-remote {address}"):
        fetch_source(address, "main", None, store, tmp_path / "source")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_fetched_source_is_a_checkout_that_describes_itself(
    library: Path, tmp_path: Path, store: Path, scheme: str
) -> None:
    source = tmp_path / "a" / "source"
    commit = fetch_source(f"{scheme}{library}", "develop", None, store, source)
    assert commit == commit_of(source, "HEAD") == commit_of(library, "develop")
    assert git(source, "describe").startswith("v1.0-1-g")
    assert git(source, "status", "--porcelain") == ""
    assert (source / "dev.c").exists()
    with pytest.raises(KochiError, match="exists already"):
        fetch_source(str(library), "develop", None, store, source)


def test_the_resolved_commit_is_fetched_though_its_branch_has_moved_on(
    library: Path, tmp_path: Path, store: Path
) -> None:
    commit = resolve_source(str(library), "main", None)
    write(library / "main.c", "later\n")
    git(library, "commit", "--quiet", "--all", "--message=later")
    assert fetch_source(str(library), "main", commit, store, tmp_path / "source") == commit
    assert (tmp_path / "source" / "main.c").read_text() == "int main;\n"


def test_an_amended_commit_on_no_branch_any_more_is_still_found(
    library: Path, tmp_path: Path, store: Path
) -> None:
    git(library, "commit", "--quiet", "--allow-empty", "--message=to be amended")
    commit = commit_of(library, "HEAD")
    git(library, "commit", "--quiet", "--amend", "--allow-empty", "--message=amended")
    assert fetch_source(f"file://{library}", None, commit, store, tmp_path / "source") == commit


def test_submodules_of_a_local_source_are_checked_out_recursively(
    library: Path, tmp_path: Path, store: Path
) -> None:
    for name, inner in (("middle", library), ("outer", tmp_path / "middle")):
        git(tmp_path, "init", "--quiet", "--initial-branch=main", name)
        git(tmp_path / name, "submodule", "--quiet", "add", str(inner), "inner")
        git(tmp_path / name, "commit", "--quiet", "--message=with a submodule")
    fetch_source(str(tmp_path / "outer"), None, None, store, tmp_path / "source")
    assert (tmp_path / "source" / "inner" / "inner" / "main.c").exists()
    assert git(tmp_path / "source", "submodule", "status", "--recursive").count("\n") == 2


def test_a_remote_source_is_kept_in_the_store_and_a_clone_does_not_depend_on_it(
    library: Path, tmp_path: Path, store: Path
) -> None:
    address = f"file://{library}"
    first = fetch_source(address, "develop", None, store, tmp_path / "first")
    assert f"refs/sources/{first}" in git(store, "for-each-ref")
    fetch_source(address, "main", None, store, tmp_path / "second")
    store.rename(tmp_path / "moved")
    assert git(tmp_path / "second", "fsck", "--strict") == ""
    assert set(files_of(tmp_path / "second")) >= {"main.c", "src/a.c"}
