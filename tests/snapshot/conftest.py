"""Repositories with everything in them that has ever hurt, and a watch over what is the user's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Test modules are imported one by one, so a module beside them is found this way only.
sys.path.insert(0, str(Path(__file__).parent))
from git_helpers import BAD_NAME, State, files_of, git, state_of, write


@pytest.fixture
def untouched() -> Iterator[Callable[[Path], None]]:
    """Call it with a repository: at the end of the test that must be as it was then."""
    watched: list[tuple[Path, State]] = []
    yield lambda repository: watched.append((repository, state_of(repository)))
    for repository, before in watched:
        assert state_of(repository) == before


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit, clean."""
    top = tmp_path / "project"
    write(top / "main.c", "int main;\n")
    write(top / "src" / "a.c", "a\n")
    write(top / ".gitignore", "*.o\n/build/\n")
    git(top, "init", "--quiet", "--initial-branch=main")
    git(top, "add", "--all")
    git(top, "commit", "--quiet", "--message=first")
    return top


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "root" / "store.git"


def commit_files_and_submodules(top: Path, library: Path) -> None:
    for name in ("deleted.c", "staged.c", "both.c", "mode.sh", "kept.o", "becomes_link.c"):
        write(top / name, f"{name}\n")
    write(top / "becomes_directory", "file\n")
    write(top / "dir_to_link" / "x.c", "x\n")
    write(library / "lib.c", "lib\n")
    write(library / ".gitignore", "*.log\n")
    git(library, "init", "--quiet", "--initial-branch=main")
    git(library, "add", "--all")
    git(library, "commit", "--quiet", "--message=library")
    git(top, "submodule", "--quiet", "add", str(library), "lib")
    git(top, "submodule", "--quiet", "add", str(library), "absent")
    git(top, "add", "--all", "--force")
    git(top, "commit", "--quiet", "--message=second, not pushed anywhere")
    git(top, "submodule", "--quiet", "deinit", "absent")


def configure_against_us(top: Path, elsewhere: Path) -> None:
    git(top, "config", "commit.gpgsign", "true")
    git(top, "config", "gpg.program", "/nonexistent")
    git(top, "config", "core.hooksPath", str(elsewhere / "hooks"))
    git(top, "config", "core.fsmonitor", str(elsewhere / "hooks" / "monitor"))
    git(top, "config", "core.untrackedCache", "true")
    git(top, "config", "status.showUntrackedFiles", "no")
    git(top, "config", "core.autocrlf", "input")
    git(top, "config", "core.excludesFile", str(write(elsewhere / "excludes", "*.globally\n")))
    for hook in ("post-index-change", "reference-transaction", "pre-commit", "monitor"):
        write(elsewhere / "hooks" / hook, f"#!/bin/sh\ntouch '{elsewhere}/hook-ran'\nexit 1\n")
        (elsewhere / "hooks" / hook).chmod(0o755)


def change_tracked_files(top: Path) -> None:
    write(top / "staged.c", "staged\n")
    write(top / "both.c", "staged\n")
    git(top, "-c", "core.hooksPath=/dev/null", "add", "staged.c", "both.c")
    write(top / "both.c", "staged, then changed\r\n")
    (top / "deleted.c").unlink()
    (top / "mode.sh").chmod(0o755)
    (top / "becomes_link.c").unlink()
    (top / "becomes_link.c").symlink_to("main.c")
    (top / "becomes_directory").unlink()
    write(top / "becomes_directory" / "inner.c", "inner\n")
    (top / "dir_to_link" / "x.c").unlink()
    (top / "dir_to_link").rmdir()
    write(top / "elsewhere" / "x.c", "somebody else's x\n")
    (top / "dir_to_link").symlink_to("elsewhere")


def add_untracked_files(top: Path) -> None:
    (top / "dangling").symlink_to("nowhere/at all")
    for name in ("with space.c", "new\nline.c", "-dash.c", "été.c", BAD_NAME, "back\\slash.c"):
        write(top / name, f"{name!a}\n")
    write(top / "not-utf8.txt", b"\xff\xfe\xe9\0\n")
    write(top / "large.bin", os.urandom(5 << 20))
    write(top / "huge.txt", "line\n" * 400_000)
    write(top / "intended.c", "not staged yet\n")
    git(top, "-c", "core.hooksPath=/dev/null", "add", "--intent-to-add", "intended.c")
    write(top / "ignored.o", "ignored")
    write(top / "build" / "x", "ignored")
    write(top / "x.globally", "ignored")
    (top / "empty").mkdir()
    os.mkfifo(top / "pipe")


def change_repositories_inside(top: Path) -> None:
    write(top / "lib" / "lib.c", "changed in the submodule\n")
    write(top / "lib" / "new.c", "new in the submodule\n")
    write(top / "lib" / "x.log", "ignored in the submodule\n")
    write(top / "nested" / "n.c", "a repository that is no submodule\n")
    git(top / "nested", "init", "--quiet")
    git(top, "-c", "core.hooksPath=/dev/null", "branch", "kochi_artifacts")
    git(
        top,
        *("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet"),
        *("artifacts", "kochi_artifacts"),
    )


@pytest.fixture
def torture(repository: Path, tmp_path: Path) -> tuple[Path, dict[str, tuple[str, bytes]]]:
    """A repository in the worst of states, and the files a snapshot of it must have."""
    top = repository
    commit_files_and_submodules(top, tmp_path / "library")
    configure_against_us(top, tmp_path)
    change_tracked_files(top)
    add_untracked_files(top)
    change_repositories_inside(top)
    hidden = {"ignored.o", "build/x", "x.globally", "lib/x.log"}
    expected = {
        path: content
        for path, content in files_of(top).items()
        if ".git" not in Path(path).parts
        and path not in hidden
        and not path.startswith("artifacts/")
    }
    return top, expected


@pytest.fixture
def count_objects() -> Callable[[Path], int]:
    """The number of objects in a repository, none of which is packed twice."""

    def count(repository: Path) -> int:
        listed = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
        return len(listed.splitlines())

    return count
