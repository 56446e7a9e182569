"""Large files are kept in the object store of git-lfs, with pointers in the artifact branch."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from git_helpers import git, write

from snakemake_kochi.artifacts.content import read_artifacts
from snakemake_kochi.artifacts.large import Pointer, Store, parse_pointer
from snakemake_kochi.errors import GitError, MissingContentError, NameNotFoundError

CONTENT = os.urandom(3 << 20)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def lfs(repository: Path, *words: str, stdin: bytes = b"") -> bytes:
    """A git-lfs command of the user."""
    return subprocess.run(
        ["git", "lfs", *words], cwd=repository, input=stdin, stdout=subprocess.PIPE, check=True
    ).stdout


def typed(repository: Path, *words: str) -> None:
    """A command of the user. The hooks of `repository` would refuse any change of a ref."""
    git(repository, "-c", "core.hooksPath=/dev/null", *words)


def commit_files(repository: Path, files: dict[str, bytes]) -> str:
    for path, content in files.items():
        write(repository / path, content)
    typed(repository, "add", "--all")
    typed(repository, "commit", "--quiet", "--no-gpg-sign", "-m", "files")
    return git(repository, "rev-parse", "HEAD").strip()


# ---- pointers and the store


def test_a_pointer_is_the_one_of_git_lfs(repository: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "file", CONTENT)
    pointer = Pointer(DIGEST, len(CONTENT))
    assert lfs(repository, "pointer", f"--file={file}") == pointer.text
    assert parse_pointer(pointer.text) == pointer


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        Pointer(DIGEST, 5).text + b"\n",
        Pointer(DIGEST.upper(), 5).text,
        Pointer("../" + DIGEST[3:], 5).text,
        Pointer(DIGEST, -5).text,
    ],
)
def test_what_is_almost_a_pointer_is_none(content: bytes) -> None:
    assert parse_pointer(content) is None


def test_git_lfs_finds_what_the_store_keeps(repository: Path) -> None:
    pointer = Store.of(repository).put(io.BytesIO(CONTENT))
    assert pointer == Pointer(DIGEST, len(CONTENT))
    assert lfs(repository, "smudge", stdin=pointer.text) == CONTENT


def test_the_store_is_where_git_lfs_has_been_told(repository: Path, tmp_path: Path) -> None:
    git(repository, "config", "lfs.storage", str(tmp_path / "elsewhere"))
    pointer = Store.of(repository).put(io.BytesIO(CONTENT))
    assert (tmp_path / "elsewhere" / "objects" / DIGEST[:2] / DIGEST[2:4] / DIGEST).is_file()
    assert lfs(repository, "smudge", stdin=pointer.text) == CONTENT


def test_the_store_of_a_worktree_is_that_of_its_repository(
    repository: Path, tmp_path: Path
) -> None:
    typed(repository, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    assert Store.of(tmp_path / "tree") == Store.of(repository)


def test_a_full_disk_leaves_nothing_in_the_store(repository: Path) -> None:
    class Full(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1 << 20:
                raise OSError(28, "No space left on device")
            return super().read(size)

    store = Store.of(repository)
    with pytest.raises(OSError, match="No space left"):
        store.put(Full(CONTENT))
    assert [path for path in store.directory.rglob("*") if path.is_file()] == []


def test_the_copy_of_a_killed_process_is_removed_after_a_day(repository: Path) -> None:
    store = Store.of(repository)
    store.put(io.BytesIO(b"first"))
    old, new = (write(store.directory / "tmp" / f"kochi-{age}", age) for age in ("old", "new"))
    foreign = write(store.directory / "tmp" / "foreign", "git-lfs has its own")
    for file in (old, foreign):
        os.utime(file, (time.time() - 2 * 86400,) * 2)
    store.put(io.BytesIO(b"second"))
    assert [file.exists() for file in (old, new, foreign)] == [False, True, True]


@pytest.mark.parametrize(("shared", "modes"), [("", (0o644, 0o755)), ("group", (0o664, 0o2775))])
def test_files_of_the_store_have_the_modes_of_the_repository(
    repository: Path, shared: str, modes: tuple[int, int]
) -> None:
    if shared:
        git(repository, "config", "core.sharedRepository", shared)
    before = os.umask(0o022)
    try:
        store = Store.of(repository)
        file = store.path(store.put(io.BytesIO(CONTENT)))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == modes[0]
    assert {stat.S_IMODE(each.stat().st_mode) for each in list(file.parents)[:4]} == {modes[1]}


# ---- reading


def test_artifacts_of_a_commit_are_read_whether_they_are_large_or_not(repository: Path) -> None:
    pointer = Store.of(repository).put(io.BytesIO(CONTENT))
    files = {
        "m/large.bin": pointer.text,
        "m/small.log": b"small\n",
        "m/empty": b"",
        "m/line\nend": b"odd name\n",
        "m/blob.bin": CONTENT[:200_000],  # as an earlier release kept files of any size
    }
    commit = commit_files(repository, files)
    found = {}
    for path, stream in read_artifacts(repository, commit, [*files, "m/small.log"]):
        # Not all of them are read to their end.
        found[path] = stream.read(3) if path == "m/blob.bin" else stream.read()
    expected = files | {"m/large.bin": CONTENT, "m/blob.bin": CONTENT[:3]}
    assert found == expected
    streams = read_artifacts(repository, commit, ["m/blob.bin", "m/large.bin"])
    digests = [hashlib.file_digest(stream, "sha256").hexdigest() for _, stream in streams]
    assert digests == [hashlib.sha256(CONTENT[:200_000]).hexdigest(), DIGEST]


def test_a_content_that_is_not_in_this_clone_is_told_before_anything_is_read(
    repository: Path,
) -> None:
    pointers = {f"m/{number}.bin": Pointer(str(number) * 64, 20 << 20).text for number in range(3)}
    commit = commit_files(repository, {"m/small": b"small", **pointers})
    with pytest.raises(MissingContentError) as refused:
        next(read_artifacts(repository, commit, ["m/small", *pointers]))
    assert refused.value.paths == tuple(pointers)
    assert refused.value.message == (
        "m/0.bin and 2 more: large files, of which this clone has only pointers (60 MiB)"
    )
    assert f"kochi artifact fetch --at {commit} m/0.bin\n" in str(refused.value)


def test_a_truncated_content_counts_as_missing(repository: Path) -> None:
    store = Store.of(repository)
    pointer = store.put(io.BytesIO(CONTENT))
    os.truncate(store.path(pointer), 100)
    commit = commit_files(repository, {"m/large.bin": pointer.text})
    with pytest.raises(MissingContentError):
        next(read_artifacts(repository, commit, ["m/large.bin"]))


def test_bad_paths_and_commits_have_messages(repository: Path) -> None:
    commit = commit_files(repository, {"m/30.log": b"x"})
    with pytest.raises(NameNotFoundError, match=r"m/31\.log: no such file.*\n.*'m/30\.log'"):
        next(read_artifacts(repository, commit, ["m/31.log"]))
    with pytest.raises(NameNotFoundError, match="m: no such file"):
        next(read_artifacts(repository, commit, ["m"]))
    for bad in ("--output=x", "0" * 40):
        with pytest.raises(GitError):
            next(read_artifacts(repository, bad, ["m/30.log"]))
    identity = git(repository, "rev-parse", "HEAD:m/30.log").strip()
    (repository / ".git" / "objects" / identity[:2] / identity[2:]).unlink()
    with pytest.raises(GitError, match=r"m/30\.log: this clone has no object"):
        next(read_artifacts(repository, commit, ["m/30.log"]))
