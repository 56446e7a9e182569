"""Which files belong to a snapshot of a directory. Reads only.

Lists of patterns follow the rules of .gitignore, by pathspec (`GitIgnoreSpec`): `*.c` matches a
name at any depth, `/a.c` and `src/*.c` only at that place, `docs/` a directory with everything in
it, `**` any depth, and a later `!pattern` excludes again.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pathspec

from snakemake_kochi.errors import ConfigError, GitError
from snakemake_kochi.git import run_git, without_programs

# A directory of files, unpacked from somewhere, may itself look like a bare repository.
FILES_ONLY = ("-c", "safe.bareRepository=explicit")


@dataclass(frozen=True)
class Listing:
    """Paths relative to the directory.

    `base` is the commit checked out (None without one); `dirty`: the files are not exactly those of
    the commit. `inside`: the repositories inside, submodules or not. `untracked`: those of the
    paths that their repository does not track.
    """

    paths: tuple[str, ...]
    base: str | None
    dirty: bool
    inside: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()


def list_files(directory: Path, excluded: Callable[[str], bool]) -> Listing:
    """List the files and symbolic links of a directory as they are now.

    In a git repository, these are the tracked files and the files that are not ignored, also those
    of repositories inside, submodules or not. In a directory that is in no repository, or that the
    repository around it ignores, these are all files except `.git`.
    """
    prefix = _path_in_repository(directory)
    if prefix is None:
        kept = [path for path in _walk_plain(directory) if not excluded(path)]
        return Listing(tuple(kept), None, True)
    paths, untracked = [], []
    nested: list[Path] = []
    for path, tracked in _walk_repository(directory, nested):
        if not excluded(path):
            paths.append(path)
            if not tracked:
                untracked.append(path)
    head = run_git(
        directory, *FILES_ONLY, "rev-parse", "--verify", "--quiet", "HEAD^{commit}", accept=(0, 1)
    )
    base = head.decode().strip() or None
    # Not by one `git status` alone: it would run one in each repository inside, with its filters.
    dirty = (
        base is None
        or bool(untracked)
        or _is_changed(directory, directory, prefix, excluded)
        or any(_is_changed(inside, directory, "", excluded) for inside in nested)
    )
    found = tuple(os.path.relpath(each, directory) for each in nested)
    return Listing(tuple(dict.fromkeys(paths)), base, dirty, found, tuple(untracked))


def not_checked_out(directory: Path) -> tuple[str, ...]:
    """Files of a repository's index that its sparse checkout leaves out of the working tree."""
    listed = run_git(directory, *FILES_ONLY, "ls-files", "-z", "-t")
    return tuple(os.fsdecode(line[2:]) for line in listed.split(b"\0") if line[:1] == b"S")


def submodules(directory: Path) -> tuple[str, ...]:
    """The paths of the submodules in a repository's index, checked out or not."""
    listed = run_git(directory, *FILES_ONLY, "ls-files", "-z", "--stage")
    lines = (line.partition(b"\t") for line in listed.split(b"\0"))
    return tuple(os.fsdecode(path) for mode, _, path in lines if mode.startswith(b"160000 "))


def ignored_files(directory: Path) -> tuple[str, ...]:
    """What git ignores in a working tree; of a directory with nothing else, only its name with a
    slash. Raises GitError."""
    words = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    listed = run_git(directory, *FILES_ONLY, *words)
    return tuple(os.fsdecode(path) for path in listed.split(b"\0") if path)


def is_ignored(directory: Path, path: str) -> bool:
    """Whether git ignores a path in a working tree. Raises GitError."""
    words = ("check-ignore", "-z", "--stdin")
    return bool(run_git(directory, *FILES_ONLY, *words, stdin=os.fsencode(path), accept=(0, 1)))


def _path_in_repository(directory: Path) -> str | None:
    """The directory's path below the top of its repository ("" for the top), None without one."""
    try:
        inside, _, prefix = run_git(
            directory, *FILES_ONLY, "rev-parse", "--is-inside-work-tree", "--show-prefix"
        ).partition(b"\n")
    except GitError as error:
        if "not a git repository (or any" in error.message:
            return None
        raise
    if inside != b"true":
        raise GitError(
            f"{directory} is inside a bare repository or a .git directory: it has no source files"
        )
    path = os.fsdecode(prefix.removesuffix(b"\n"))
    if path and run_git(
        directory, *FILES_ONLY, "check-ignore", "-z", "--stdin", stdin=b".", accept=(0, 1)
    ):
        return None
    return path


def _walk_plain(directory: Path) -> Iterator[str]:
    real = _RealDirectories(directory)
    for parent, directories, files in os.walk(directory):
        inner = os.path.relpath(parent, directory)
        begin = "" if inner == "." else f"{inner}/"
        if begin and ".git" in (*directories, *files):
            directories.clear()
            yield from (begin + path for path, _ in _walk_nested(Path(parent), None, []))
            continue
        directories[:] = [name for name in directories if name != ".git"]
        links = [name for name in directories if os.path.islink(os.path.join(parent, name))]
        for name in (*files, *links):
            if name != ".git" and _is_content(real.mode(begin + name)):
                yield begin + name


def _walk_repository(directory: Path, nested: list[Path]) -> Iterator[tuple[str, bool]]:
    """Each file's path and whether it is tracked; `nested` gets the repositories inside."""
    listed = run_git(
        directory,
        *FILES_ONLY,
        "ls-files",
        "-z",
        "-t",
        "--cached",
        "--others",
        "--exclude-standard",
    )
    real = _RealDirectories(directory)
    for line in filter(None, listed.split(b"\0")):
        tracked, path = line[:1] != b"?", os.fsdecode(line[2:]).rstrip("/")
        mode = real.mode(path)
        if _is_content(mode):
            yield path, tracked
        elif stat.S_ISDIR(mode) and os.path.lexists(directory / path / ".git"):
            for inner, inner_tracked in _walk_nested(directory / path, directory, nested):
                yield f"{path}/{inner}", tracked and inner_tracked


def _walk_nested(
    inside: Path, outer: Path | None, nested: list[Path]
) -> Iterator[tuple[str, bool]]:
    """The files of a repository inside; of a worktree of the outer repository, none."""
    try:
        if outer is None or _common_directory(inside) != _common_directory(outer):
            yield from _walk_repository(inside, nested)
            nested.append(inside)
    except GitError:
        # A `.git` that leads nowhere, as in a copied submodule; the files are there all the same.
        yield from ((path, False) for path in _walk_plain(inside))


def _is_content(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _common_directory(repository: Path) -> bytes:
    return run_git(
        repository, *FILES_ONLY, "rev-parse", "--path-format=absolute", "--git-common-dir"
    )


class _RealDirectories:
    """Modes of files reached through real directories only.

    Git remembers `a/x`. When a symbolic link has replaced `a`, lstat still finds an `a/x`, which is
    another file.
    """

    def __init__(self, top: Path) -> None:
        self._top = os.fspath(top)
        self._known = {"": True}

    def mode(self, path: str) -> int:
        """The file's st_mode, 0 if there is none."""
        if not self._is_real(os.path.dirname(path)):
            return 0
        return self._lstat(path)

    def _is_real(self, path: str) -> bool:
        if path not in self._known:
            self._known[path] = self._is_real(os.path.dirname(path)) and stat.S_ISDIR(
                self._lstat(path)
            )
        return self._known[path]

    def _lstat(self, path: str) -> int:
        try:
            return os.lstat(f"{self._top}/{path}").st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0


def _is_changed(repository: Path, top: Path, prefix: str, excluded: Callable[[str], bool]) -> bool:
    """Whether a tracked file differs from the commit that its repository has checked out.

    `repository` is that of `top`, in which `top` is at `prefix`, or one inside.
    """
    begin = "" if repository == top else f"{os.path.relpath(repository, top)}/"
    try:
        status = run_git(
            repository,
            *FILES_ONLY,
            *("status", "--porcelain=v2", "-z", "--untracked-files=no", "--no-renames"),
            *("--ignore-submodules=dirty", "--", "."),
            environment=without_programs(repository),
        )
    except GitError:
        # An unmerged .gitmodules, objects that are missing: no proof that it is clean.
        return True
    fields = {b"1": 8, b"u": 10}
    for line in filter(None, status.split(b"\0")):
        path = os.fsdecode(line.split(b" ", fields[line[:1]])[-1])
        if not excluded(begin + path.removeprefix(prefix)):
            return True
    return False


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A function that says whether a path matches. Raises ConfigError for a bad pattern."""
    for pattern in patterns:
        try:
            pathspec.GitIgnoreSpec.from_lines([pattern], backend="simple")
        except ValueError as error:
            raise ConfigError(f"pattern {pattern!r}: {error}") from error
    # The same backend everywhere: the meaning of a pattern must not depend on other packages.
    spec = pathspec.GitIgnoreSpec.from_lines(patterns, backend="simple")
    return spec.match_file if patterns else lambda path: False
