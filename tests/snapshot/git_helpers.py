"""The user's side of tests that need git: commands, files, and what must stay as it is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

BAD_NAME = os.fsdecode(b"latin-\xe9.txt")


def git(directory: Path, *arguments: str) -> str:
    """The user's own git, with identity and nothing else set."""
    identity = ("-c", "user.name=User", "-c", "user.email=user@example.org")
    return subprocess.run(
        ["git", *identity, "-c", "protocol.file.allow=always", *arguments],
        cwd=directory,
        check=True,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
    ).stdout


def commit_to_new_repository(directory: Path, file: str, content: str) -> str:
    """A repository with one commit of one file; returns the commit."""
    write(directory / file, content)
    git(directory, "init", "--quiet")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message=first")
    return git(directory, "rev-parse", "HEAD").strip()


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def files_of(directory: Path) -> dict[str, tuple[str, bytes]]:
    """Every file below a directory: kind, and content or target."""
    found = {}
    for parent, directories, names in os.walk(directory):
        for name in (*names, *directories):
            path = Path(parent) / name
            relative = os.path.relpath(path, directory)
            if path.is_symlink():
                found[relative] = ("link", os.fsencode(os.readlink(path)))
            elif path.is_file():
                executable = path.stat().st_mode & 0o100
                found[relative] = ("executable" if executable else "file", path.read_bytes())
    return found


def visible(directory: Path) -> dict[str, tuple[str, bytes]]:
    """Every file of a working tree."""
    found = files_of(directory).items()
    return {path: content for path, content in found if path.partition("/")[0] != ".git"}


@dataclass(frozen=True)
class State:
    """All of a repository that must be the same before and after."""

    git_files: dict[str, str]
    refs: str
    configuration: str
    stash: str
    status: str


def state_of(repository: Path, artifacts: bool = True) -> State:
    """Without `artifacts` what the committer may write does not count."""

    def counts(name: str) -> bool:
        ours = ("kochi_artifacts", "/objects/", "/.git/kochi/")
        return artifacts or not any(each in f"/{name}" for each in ours)

    # The files first: `git status` itself refreshes the index.
    files = {
        os.path.relpath(path, repository): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(repository.rglob("*"))
        if ".git" in path.parts
        and path.is_file()
        and not path.is_symlink()
        and counts(os.path.relpath(path, repository))
    }
    refs = [line for line in git(repository, "for-each-ref").splitlines() if counts(line)]
    return State(
        files,
        "\n".join(refs),
        git(repository, "config", "-l"),
        git(repository, "stash", "list"),
        git(repository, "--no-optional-locks", "status", "--porcelain=v2", "--branch"),
    )


_GIT = """#!/bin/sh
echo "$*" >> "$0.commands"
pause() {{
    : > "$0.reached"
    until rm "$0.go" 2> /dev/null; do sleep 0.1; done
}}
for word; do
    if [ -d "$0.before.$word" ] && rmdir "$0.before.$word"; then pause; fi
    if [ -d "$0.after.$word" ] && rmdir "$0.after.$word"; then
        {git} "$@"
        status=$?
        pause
        exit $status
    fi
done
exec {git} "$@"
"""


class GitProgram:
    """A git on PATH that notes its commands, and stops at one of them for an action of a test."""

    def __init__(self, file: Path) -> None:
        self._file = write(file, _GIT.format(git=which("git")))
        self._file.chmod(0o755)

    def take_commands(self) -> list[str]:
        """The commands since the last call."""
        noted = self._beside("commands")
        lines = noted.read_text().splitlines() if noted.exists() else []
        noted.unlink(missing_ok=True)
        return lines

    @contextmanager
    def before(self, word: str, action: Callable[[], object]) -> Iterator[None]:
        """Do something once, when the next command with this word begins, which waits for it."""
        with self._at(self._beside(f"before.{word}"), action):
            yield

    @contextmanager
    def after(self, word: str, action: Callable[[], object]) -> Iterator[None]:
        """Do something once, when the next command with this word has done its work."""
        with self._at(self._beside(f"after.{word}"), action):
            yield

    def _beside(self, name: str) -> Path:
        return self._file.with_name(f"{self._file.name}.{name}")

    @contextmanager
    def _at(self, marker: Path, action: Callable[[], object]) -> Iterator[None]:
        marker.mkdir()
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            acted = pool.submit(self._act, action, over)
            try:
                yield
            finally:
                over.set()
            acted.result()
        assert not marker.exists(), "there was no such command"

    def _act(self, action: Callable[[], object], over: threading.Event) -> None:
        reached = self._beside("reached")
        while not reached.exists():
            if over.is_set():
                return
            time.sleep(0.005)
        reached.unlink()
        try:
            action()
        finally:
            self._beside("go").touch()
