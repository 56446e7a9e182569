"""Nothing that a stranger has configured in a repository is executed, whatever is asked of it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from git_helpers import git, write
from git_traps import TRAPS, Marks, by_watcher, configure, lose, touched_later

from snakemake_kochi.artifacts import branches
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.errors import GitError, KochiError
from snakemake_kochi.git import run_git
from snakemake_kochi.paths import Root
from snakemake_kochi.snapshot import fetch_source, freeze, resolve_source
from snakemake_kochi.snapshot.snapshot import toplevel


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    directory = tmp_path / "executed"
    directory.mkdir()
    return Marks(directory)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed by a command"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.git"


@pytest.mark.parametrize("lost", [None, "HEAD", "HEAD^{tree}", "HEAD:main.c"])
def test_freezing_a_repository_executes_nothing_of_its_configuration(
    repository: Path, store: Path, marks: Marks, lost: str | None
) -> None:
    if lost is not None:
        lose(repository, lost)
    marks.set_all(repository)
    touched_later(repository)
    with contextlib.suppress(KochiError):
        freeze(repository, store)
    with contextlib.suppress(KochiError):
        toplevel(repository / "src")
    assert marks.executed() == []


@pytest.mark.parametrize("kind", ["submodule", "untracked", "in no repository"])
def test_nor_of_the_configuration_of_a_repository_inside(
    repository: Path, store: Path, tmp_path: Path, marks: Marks, kind: str
) -> None:
    top = tmp_path / "outer"
    top.mkdir()
    if kind != "in no repository":
        git(top, "init", "--quiet")
    inside = top / "inside"
    shutil.copytree(repository, inside)
    if kind == "submodule":
        git(top, "-c", "advice.addEmbeddedRepo=false", "add", "inside")
        git(top, "commit", "--quiet", "--message=with one inside")
    lose(inside, "HEAD^{tree}")
    marks.set_all(inside)
    touched_later(inside)
    with contextlib.suppress(KochiError):
        freeze(top, store)
    assert marks.executed() == []


@pytest.mark.parametrize("lost", [None, "HEAD", "v1", "HEAD^{tree}", "HEAD:main.c"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_source_on_this_computer_is_read_without_executing_anything_of_its_configuration(
    repository: Path, store: Path, tmp_path: Path, marks: Marks, lost: str | None, scheme: str
) -> None:
    git(repository, "tag", "--annotate", "v1", "--message=one")
    commit = git(repository, "rev-parse", "HEAD").strip()
    if lost is not None:
        lose(repository, lost)
    marks.set_all(repository)
    address = f"{scheme}{repository}"
    for branch, wanted in ((None, None), ("v1", None), (None, commit), (None, commit[:9])):
        with contextlib.suppress(KochiError):
            resolve_source(address, branch, wanted)
        with contextlib.suppress(KochiError):
            fetch_source(address, branch, wanted, store, tmp_path / f"{branch}-{wanted}")
    assert marks.executed() == []


def test_a_directory_that_looks_like_a_bare_repository_is_none(
    repository: Path, store: Path, marker: Path
) -> None:
    inside = repository / "data"
    git(repository, "init", "--quiet", "--bare", "data")
    by_watcher(inside, f"touch {marker}")
    git(inside, "config", "core.bare", "false")
    git(inside, "config", "core.worktree", str(repository))
    with pytest.raises(GitError, match="bare repository"):
        freeze(inside, store)
    assert not marker.exists()


def test_a_stranger_s_submodules_run_no_command(
    repository: Path, store: Path, tmp_path: Path, marker: Path
) -> None:
    commit = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{commit},lib")
    text = '[submodule "lib"]\n\tpath = lib\n\turl = {}\n\tupdate = {}\n'
    run = f"sh -c touch% {marker}"
    for url, update in ((f"ext::{run}", "checkout"), (str(repository), f"!touch {marker}")):
        write(repository / ".gitmodules", text.format(url, update))
        git(repository, "add", ".gitmodules")
        git(repository, "commit", "--quiet", "--message=submodule")
        with pytest.raises(GitError):
            fetch_source(str(repository), None, None, store, tmp_path / "source")
    assert not marker.exists()


@pytest.mark.parametrize("address", ["fd::17", "ext::sh -c touch% MARKER", "transport::x"])
def test_an_address_that_names_a_program_is_refused_at_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    # As a user may have it: the helpers that git brings are allowed.
    git(tmp_path, "config", "--global", "protocol.allow", "always")
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: resolve_source(address, None, None),
        lambda: resolve_source(address, None, "a" * 40),
        lambda: fetch_source(address, "main", None, store, tmp_path / "source"),
    ):
        with pytest.raises(GitError, match="git would run a program") as caught:
            call()
        assert "https://" in str(caught.value.hint)
    assert not (tmp_path / "MARKER").exists()


def test_a_transport_that_is_not_known_is_refused_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = write(tmp_path / "bin" / "git-remote-gopher", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    git(tmp_path, "config", "--global", "protocol.gopher.allow", "always")
    with pytest.raises(GitError, match="'gopher' not allowed") as caught:
        resolve_source("gopher://example.org/x", None, None)
    assert "ssh://" in str(caught.value.hint)
    assert not (tmp_path / "ran").exists()


def test_committing_executes_nothing_of_the_configuration(
    repository: Path, tmp_path: Path, marks: Marks
) -> None:
    paths = Root(tmp_path / "root").project(repository)
    choose_name(repository, "local", "local")
    source = write(tmp_path / "result", "1\n")
    journal(paths, "local", Result("one", {"a": source}, {}))
    assert commit_pending(repository, paths, "local") == 1
    lose(repository, "kochi_artifacts_local")
    marks.set_all(repository)
    journal(paths, "local", Result("two", {"b": source}, {}))
    with contextlib.suppress(KochiError):
        commit_pending(repository, paths, "local")
    assert marks.executed() == []


def test_bringing_results_together_executes_nothing_of_the_configuration(
    repository: Path, tmp_path: Path, marks: Marks
) -> None:
    paths = Root(tmp_path / "root").project(repository)
    for words in (("config", "user.name", "User"), ("config", "user.email", "user@example.org")):
        git(repository, *words)
    source = write(tmp_path / "result", "1\n")
    journal(paths, "local", Result("one", {"a": source}, {}))
    together = tmp_path / "together"
    branches.initialise(repository, together, name="local")
    assert branches.synchronise(repository, paths, "local").results == 1
    (file,) = together.rglob("a")
    write(file, "mine\n")
    git(together, "commit", "--quiet", "--all", "--message=mine")
    journal(paths, "local", Result("two", {"a": write(source, "2\n")}, {}))
    assert commit_pending(repository, paths, "local") == 1
    marks.set_all(repository)
    write(repository / ".git" / "info" / "attributes", "a filter=a=b\n")
    touched_later(together)
    with pytest.raises(GitError, match="both changed local/a"):
        branches.synchronise(repository, paths, "local")
    assert file.read_text() == "mine\n"
    branches.log(repository, "local")
    assert marks.executed() == []
    subprocess.run(["git", "merge", "kochi_artifacts_local"], cwd=together, check=False)
    assert {"by_merge_driver", "by_filter"} <= set(marks.executed())


def test_a_stash_that_git_tells_of_is_no_change(repository: Path, store: Path) -> None:
    write(repository / "main.c", "other\n")
    git(repository, "stash")
    configure(repository, {"status.showStash": "true"})
    assert not freeze(repository, store).dirty


def test_a_partial_clone_of_ones_own_is_frozen_and_what_it_lacks_is_named(
    repository: Path, store: Path, tmp_path: Path
) -> None:
    git(repository, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    words = ("clone", "--quiet", "--filter=blob:none", f"file://{repository}", str(clone))
    git(tmp_path, *words)
    assert freeze(clone, store).tree == freeze(repository, store).tree
    assert not freeze(clone, store).dirty
    # Of another branch a partial clone has no files.
    git(repository, "checkout", "--quiet", "-b", "other")
    write(repository / "main.c", "other\n")
    git(repository, "commit", "--quiet", "--all", "--message=other")
    git(clone, "fetch", "--quiet")
    words = ("cat-file", "blob", "origin/other:main.c")
    with pytest.raises(GitError, match="partial clone") as caught:
        run_git(clone, *words)
    assert caught.value.hint is not None
    subprocess.run(shlex.split(caught.value.hint.partition(": ")[2]), check=True)
    assert run_git(clone, *words) == b"other\n"


def test_what_a_filter_of_the_users_own_has_changed_is_clean(
    repository: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with git-lfs, which is configured for all repositories."""
    own = write(tmp_path / "gitconfig", '[filter "up"]\n\tclean = tr a-z A-Z\n\trequired\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    write(repository / ".gitattributes", "main.c filter=up\n")
    git(repository, "add", "--all")
    git(repository, "add", "--renormalize", "main.c")
    git(repository, "commit", "--quiet", "--message=filtered")
    touched_later(repository)
    assert not freeze(repository, store).dirty


def test_the_traps_work(repository: Path, marks: Marks) -> None:
    """Otherwise the tests above would show nothing: git as it is falls into each of them, with all
    the others beside it."""
    for name in ("theirs", "ours"):
        git(repository, "checkout", "--quiet", "-b", name, "main")
        write(repository / "src" / "a.c", f"{name}\n")
        git(repository, "commit", "--quiet", "--all", "--message=other")
    marks.set_all(repository)
    touched_later(repository)

    def type_git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=repository, capture_output=True, check=False)

    type_git("log", "-1")
    type_git("merge-tree", "--write-tree", "ours", "theirs")
    type_git("status")
    write(repository / "src" / "a.c", "changed\n")
    type_git("-c", "core.fsmonitor=false", "diff", "src")
    type_git("update-ref", "refs/heads/new", "HEAD")
    lose(repository, "HEAD")
    type_git("rev-parse", "--verify", "HEAD^{commit}")
    assert marks.executed() == sorted(trap.__name__ for trap in TRAPS)
