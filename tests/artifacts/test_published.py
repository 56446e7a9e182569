"""The names under which results are published, and the first commit of a branch in a clone."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from git_helpers import git, write

from snakemake_kochi.artifacts.branches import initialise, synchronise
from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.published import choose_name, default_name, published_name
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import ProjectPaths, Root
from snakemake_kochi.phases.outputs import commit_at_exit

MACHINE = "local"
MINE = "kochi_artifacts_ada-laptop"


@pytest.fixture(autouse=True)
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr(socket, "gethostname", lambda: "Laptop.example.org")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A bare repository to which everyone pushes."""
    first = tmp_path / "first"
    write(first / "main.c", "int main;\n")
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "first")
    git(first, "add", "--all")
    git(first, "commit", "--quiet", "--message=first")
    git(tmp_path, "clone", "--quiet", "--bare", "first", "shared.git")
    return tmp_path / "shared.git"


@pytest.fixture
def clone(shared: Path, tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        git(tmp_path, "clone", "--quiet", str(shared), name)
        return tmp_path / name

    return make


def put(repository: Path, dest: str, text: str = "") -> ProjectPaths:
    """A result in the journal, and committed."""
    paths = Root(repository.parent / f"{repository.name}-root").project(repository)
    source = write(repository.parent / "work" / dest, text or dest)
    journal(paths, MACHINE, Result(f"{repository.name}.{Path(dest).stem}", {dest: source}, {}))
    assert commit_pending(repository, paths, MACHINE) == 1
    return paths


def push(repository: Path, *branches: str) -> None:
    git(repository, "push", "--quiet", "origin", *branches)


def names(repository: Path, ref: str) -> set[str]:
    listed = git(repository, "ls-tree", "-r", "--name-only", ref).split()
    return {name for name in listed if "/.kochi/" not in name}


def test_a_second_clone_continues_from_the_pushed_branch(
    clone: Callable[[str], Path], tmp_path: Path
) -> None:
    first = clone("one")
    initialise(first, tmp_path / "one-results")
    paths = put(first, "a.log")
    synchronise(first, paths, MACHINE)
    push(first, MINE, "kochi_artifacts")
    second = clone("two")
    # As a run does it, before anybody has typed `kochi artifact init`.
    paths = put(second, "a.log", "again")
    assert initialise(second, tmp_path / "two-results") == "ada-laptop"
    report = synchronise(second, paths, MACHINE)
    assert (report.name, report.commits, report.stranger) == ("ada-laptop", 1, "")
    assert (tmp_path / "two-results" / "ada-laptop" / "a.log").read_text() == "again"
    push(second, MINE, "kochi_artifacts")  # refused, if they were not descendants


def test_a_clone_begins_with_the_branch_of_the_machine_if_nothing_was_merged(
    clone: Callable[[str], Path], tmp_path: Path
) -> None:
    first = clone("one")
    put(first, "a.log")
    push(first, MINE)
    second = clone("two")
    initialise(second, tmp_path / "results")
    assert (tmp_path / "results" / "ada-laptop" / "a.log").exists()
    put(second, "b.log")
    assert names(second, MINE) == {"ada-laptop/a.log", "ada-laptop/b.log"}
    push(second, MINE)


def test_of_two_remotes_the_newer_branch_counts(
    clone: Callable[[str], Path], shared: Path, tmp_path: Path
) -> None:
    first = clone("one")
    put(first, "a.log")
    push(first, MINE)
    git(tmp_path, "clone", "--quiet", "--bare", str(shared), "fork.git")
    git(first, "remote", "add", "fork", str(tmp_path / "fork.git"))
    # Commits of one second would be as new.
    tree = git(first, "rev-parse", f"{MINE}^{{tree}}").strip()
    words = ("-c", "core.hooksPath=/dev/null", "commit-tree", tree, "-p", MINE, "-m", "later")
    later = subprocess.run(
        ["git", "-c", "user.name=A", "-c", "user.email=a@b", *words],
        cwd=first,
        env={"GIT_COMMITTER_DATE": "4000000000 +0000", "PATH": os.environ["PATH"]},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    git(first, "push", "--quiet", "fork", f"{later}:refs/heads/{MINE}")
    second = clone("two")
    git(second, "remote", "add", "fork", str(tmp_path / "fork.git"))
    git(second, "fetch", "--quiet", "fork")
    put(second, "b.log")
    assert git(second, "rev-parse", f"{MINE}~").strip() == later


def test_a_published_name_stays_when_the_host_is_renamed(
    clone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = clone("one")
    put(repository, "a.log")
    monkeypatch.setattr(socket, "gethostname", lambda: "dhcp-17")
    put(repository, "b.log")
    assert names(repository, MINE) == {"ada-laptop/a.log", "ada-laptop/b.log"}
    assert "kochi" not in git(repository, "config", "--list")


def test_the_name_is_that_of_the_host_where_the_run_began_and_not_of_a_node(
    clone: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = clone("one")
    paths = Root(tmp_path / "one-root").project(repository)
    arguments = (repository, paths, MACHINE, lambda: True)
    main_process = multiprocessing.get_context("fork").Process(
        target=commit_at_exit, args=arguments
    )
    main_process.start()
    main_process.join()
    monkeypatch.setattr(socket, "gethostname", lambda: "node017")
    put(repository, "a.log")
    assert names(repository, MINE) == {"ada-laptop/a.log"}


def test_a_node_that_takes_the_noted_name_for_missing_does_not_replace_it(
    clone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = clone("one")
    put(repository, "a.log")
    monkeypatch.setattr(socket, "gethostname", lambda: "node017")
    read = Path.read_text
    stale = [FileNotFoundError(), FileNotFoundError()]  # as a client of NFS has kept them

    def read_text(path: Path) -> str:
        if stale and path.parts[-2:] == ("published", MACHINE):
            raise stale.pop()
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read_text)
        put(repository, "b.log")
    assert not stale
    assert names(repository, MINE) == {"ada-laptop/a.log", "ada-laptop/b.log"}


def test_an_existing_branch_of_local_is_kept_and_that_of_a_colleague_is_not_used(
    clone: Callable[[str], Path], tmp_path: Path
) -> None:
    old = clone("old")
    choose_name(old, MACHINE, MACHINE)
    put(old, "a.log")
    (old / ".git" / "kochi" / "published" / MACHINE).unlink()  # as an earlier release left it
    put(old, "b.log")
    assert names(old, "kochi_artifacts_local") == {"local/a.log", "local/b.log"}
    push(old, "kochi_artifacts_local")
    new = clone("new")
    put(new, "c.log")
    assert names(new, MINE) == {"ada-laptop/c.log"}
    # Unless one says that it is one's own.
    mine = clone("mine")
    assert initialise(mine, tmp_path / "mine-results", name="local") == "local"
    put(mine, "d.log")
    assert names(mine, "kochi_artifacts_local") == {"local/a.log", "local/b.log", "local/d.log"}


def test_a_name_is_changed_when_all_is_merged(clone: Callable[[str], Path], tmp_path: Path) -> None:
    repository, results = clone("one"), tmp_path / "results"
    initialise(repository, results)
    paths = put(repository, "a.log")
    with pytest.raises(KochiError, match="not in kochi_artifacts yet"):
        initialise(repository, results, name="ada")
    synchronise(repository, paths, MACHINE)
    assert initialise(repository, results, name="ada") == "ada"
    put(repository, "b.log")
    synchronise(repository, paths, MACHINE)
    assert (results / "ada" / "b.log").exists()
    with pytest.raises(KochiError, match="machine local are published as 'ada' already"):
        choose_name(repository, "spica", "ada")
    for bad in ("a/b", "a..b", ".a", "a.lock", ""):
        with pytest.raises(KochiError, match="name of a git branch"):
            choose_name(repository, MACHINE, bad)
    assert published_name(repository, MACHINE) == "ada"


def test_branches_of_an_earlier_release_without_a_common_commit_are_merged_as_the_message_says(
    clone: Callable[[str], Path], tmp_path: Path
) -> None:
    first = clone("one")
    put(first, "a.log")
    second = clone("two")
    paths = put(second, "b.log")
    push(first, MINE)
    git(second, "fetch", "--quiet")
    results = tmp_path / "results"
    initialise(second, results)
    assert synchronise(second, paths, MACHINE).stranger == f"origin/{MINE}"
    identity = "git -c user.name=A -c user.email=a@b -c core.editor=true"
    typed = f"{identity} -C {shlex.quote(str(results))} merge --allow-unrelated-histories "
    typed += f"-X ours origin/{MINE} && git branch -f {MINE} kochi_artifacts"
    subprocess.run(["bash", "-c", typed], cwd=second, check=True, capture_output=True)
    assert synchronise(second, paths, MACHINE).stranger == ""
    put(second, "c.log")
    assert names(second, MINE) == {f"ada-laptop/{each}.log" for each in "abc"}
    push(second, MINE)


def test_default_names_are_valid_in_branch_names() -> None:
    assert default_name("Ada.L", "LAB_7") == "ada-l-lab_7"
    assert default_name("ähm", "") == "hm"
    assert default_name("", "") == "local"
    assert len(default_name("a" * 100, "b" * 100)) <= 60
