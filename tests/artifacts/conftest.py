from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Test modules are imported one by one, so a module of helpers is found this way only.
sys.path.insert(0, str(Path(__file__).parents[1] / "snapshot"))
from git_helpers import GitProgram, State, git, state_of, write

from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.paths import ProjectPaths, Root


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository, with changes staged and not, and hooks that must not run."""
    top = tmp_path / "project"
    write(top / "main.c", "int main;\n")
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "project")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message=first")
    write(top / "main.c", "staged\n")
    git(top, "add", "--all")
    write(top / "main.c", "changed\n")
    git(top, "config", "commit.gpgsign", "true")
    git(top, "config", "gpg.program", "/nonexistent")
    git(top, "config", "user.useConfigOnly", "true")
    choose_name(top, "local", "local")
    for hook in ("reference-transaction", "post-commit", "post-checkout", "pre-merge-commit"):
        write(top / ".git" / "hooks" / hook, "#!/bin/sh\nexit 1\n").chmod(0o755)
    return top


@pytest.fixture
def paths(tmp_path: Path, repository: Path) -> ProjectPaths:
    return Root(tmp_path / "root").project(repository)


@pytest.fixture
def bare(repository: Path, tmp_path: Path) -> Path:
    """The remote `origin` of the repository."""
    git(tmp_path, "init", "--quiet", "--bare", "bare")
    git(repository, "remote", "add", "origin", str(tmp_path / "bare"))
    return tmp_path / "bare"


@pytest.fixture
def clone(repository: Path, bare: Path, tmp_path: Path) -> Path:
    """A clone that was made before there were results."""
    git(tmp_path, "clone", "--quiet", str(bare), "clone")
    return tmp_path / "clone"


@pytest.fixture
def untouched(repository: Path) -> Iterator[Callable[[], None]]:
    """Call it: at the end of the test all of the repository but objects and the artifact branches
    must be as it was then."""
    before: list[State] = []
    yield lambda: before.append(state_of(repository, artifacts=False))
    for state in before:
        assert state_of(repository, artifacts=False) == state


@pytest.fixture
def git_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitProgram:
    program = GitProgram(tmp_path / "bin" / "git")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return program
