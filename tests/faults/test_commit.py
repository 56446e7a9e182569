"""kill -9, and a disk that is full, before steps of keeping a result and of committing it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.injection import deaths, run_scene
from support import git

from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.content import read_artifacts
from snakemake_kochi.artifacts.entry import read_entry
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.large import Store
from snakemake_kochi.artifacts.published import branch_called as branch
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.paths import ProjectPaths, Root

MACHINE = "local"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    top = tmp_path / "project"
    top.mkdir()
    git(top, "init", "--quiet", "--initial-branch", "main")
    choose_name(top, MACHINE, MACHINE)
    git(top, "commit", "--quiet", "--allow-empty", "--message", "first")
    return top


@pytest.fixture
def paths(tmp_path: Path, repository: Path) -> ProjectPaths:
    return Root(tmp_path / "root").project(repository)


@pytest.fixture
def keep(tmp_path: Path, paths: ProjectPaths) -> Callable[[str], None]:
    def put(name: str) -> None:
        source = tmp_path / f"{name}.source"
        source.write_text(f"{name}\n")
        journal(paths, MACHINE, Result(name, {f"{name}.log": source}, {"attempt": name}))

    return put


def records(repository: Path) -> list[str]:
    """The records ever added, once for each commit that added one."""
    told = git(
        *(repository, "log", "-m", "--format=", "--name-only", "--diff-filter=A"), branch(MACHINE)
    )
    return sorted(Path(line).stem for line in told.splitlines() if "/.kochi/records/" in line)


def contents(repository: Path) -> dict[str, str]:
    listed = git(repository, "ls-tree", "-r", "--name-only", branch(MACHINE)).split()
    names = [name for name in listed if "/.kochi/" not in name]
    return {Path(name).stem: git(repository, "show", f"{branch(MACHINE)}:{name}") for name in names}


def test_who_commits(
    repository: Path, paths: ProjectPaths, keep: Callable[[str], None], mark: str
) -> None:
    kept: list[str] = []

    def scene() -> Callable[[], object]:
        for letter in "ab":
            kept.append(f"r{len(kept)}{letter}")
            keep(kept[-1])
        return lambda: commit_pending(repository, paths, MACHINE)

    number = 0
    for ending in deaths(scene, stride=5):
        number += 1
        assert ending.error == "", ending.error
        commit_pending(repository, paths, MACHINE)
        assert pending(paths, MACHINE) == ()
    assert number > 3
    assert records(repository) == sorted(kept), "each is recorded, and once"
    assert contents(repository) == {name: f"{name}\n" for name in kept}
    assert not paths.damaged_results(MACHINE).exists()


def test_who_keeps_a_result(
    repository: Path, paths: ProjectPaths, keep: Callable[[str], None]
) -> None:
    """It is there as a whole or not at all; then it can be kept again."""
    names: list[str] = []

    def scene() -> Callable[[], object]:
        names.append(f"r{len(names)}")
        return lambda: keep(names[-1])

    for ending in deaths(scene):
        assert ending.error == "", ending.error
        assert pending(paths, MACHINE) in ((), (names[-1],))
        keep(names[-1])
        commit_pending(repository, paths, MACHINE)
        assert pending(paths, MACHINE) == ()
    assert len(names) > 5
    assert records(repository) == sorted(names)
    assert contents(repository) == {name: f"{name}\n" for name in names}


def test_who_keeps_a_large_result(tmp_path: Path, repository: Path, paths: ProjectPaths) -> None:
    """Its content is in the store, as a whole, before its pointer is in the journal."""
    names: list[str] = []

    def keep(name: str) -> None:
        (source := tmp_path / f"{name}.source").write_text(f"{name}\n" * 5000)
        journal(paths, MACHINE, Result(name, {f"{name}.log": source}, {}), repository, 9999)

    def scene() -> Callable[[], object]:
        names.append(f"r{len(names)}")
        return lambda: keep(names[-1])

    for ending in deaths(scene, stride=2):
        assert ending.error == "", ending.error
        for file in repository.glob(".git/lfs/objects/*/*/*"):
            assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name
        for name in pending(paths, MACHINE):
            for pointer in read_entry(paths.journal(MACHINE) / name).large.values():
                assert Store.of(repository).has(pointer)
        keep(names[-1])
    assert len(names) > 6
    assert commit_pending(repository, paths, MACHINE) == len(names)
    assert records(repository) == sorted(names)
    artifacts = [f"{MACHINE}/{name}.log" for name in names]
    for path, stream in read_artifacts(repository, branch(MACHINE), artifacts):
        assert stream.read().decode() == f"{Path(path).stem}\n" * 5000
    assert len(list(repository.glob(".git/lfs/objects/*/*/*"))) == len(names)


def test_on_a_full_disk_a_result_is_kept_or_refused(
    repository: Path, paths: ProjectPaths, keep: Callable[[str], None]
) -> None:
    full = OSError(28, "No space left on device")
    keep("before")
    for at in range(1, 40, 3):
        ending = run_scene(lambda: commit_pending(repository, paths, MACHINE), at, full)
        assert ending.error == "" or "No space left" in ending.error, ending.error
        name = f"r{at}"
        ending = run_scene(lambda name=name: keep(name), at, full)
        assert ending.error == "" or "No space left" in ending.error, ending.error
        keep(name)
    commit_pending(repository, paths, MACHINE)
    assert records(repository) == sorted(["before", *(f"r{at}" for at in range(1, 40, 3))])
    assert pending(paths, MACHINE) == ()
