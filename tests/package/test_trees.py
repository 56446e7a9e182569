"""Directories are removed, and files copied."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support import write

from snakemake_kochi.files import (
    copy_file,
    read_file,
    remove_tree,
    time_of_new_file,
    write_file,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "a tree"
    write(tree / "empty", "")
    write(tree / "program", "#!/bin/sh\n").chmod(0o4755)
    write(tree / "inner/own", "x" * 100_000).chmod(0o600)
    write(tree / "closed/read only", "x").chmod(0o444)
    (tree / "nothing in it").mkdir()
    (tree / "away").symlink_to("/does/not/exist")
    (tree / "closed").chmod(0o2555)
    return tree


def test_a_removed_tree_takes_nothing_with_it_to_which_its_links_lead(
    tree: Path, tmp_path: Path
) -> None:
    write(tmp_path / "other/kept", "kept")
    (tree / "to a directory").symlink_to(tmp_path / "other")
    (tree / "inner/to a file").symlink_to(tmp_path / "other/kept")
    remove_tree(tree)
    assert not tree.exists()
    assert (tmp_path / "other/kept").read_text() == "kept"


def test_what_is_no_directory_is_not_removed(tmp_path: Path) -> None:
    write(tmp_path / "other/kept", "kept")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for path in (tmp_path / "link", tmp_path / "other/kept", tmp_path / "missing"):
        remove_tree(path)
    assert (tmp_path / "link/kept").read_text() == "kept"


def test_what_cannot_be_removed_keeps_nothing_else(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, unlink = tree / "inner/own", os.unlink

    def refuse(path: str, dir_fd: int | None = None) -> None:
        if path == kept.name:
            raise PermissionError(errno.EPERM, "immutable", path)
        unlink(path, dir_fd=dir_fd)

    assert kept.exists()
    monkeypatch.setattr(os, "unlink", refuse)
    remove_tree(tree)
    assert [path for path in tree.rglob("*") if not path.is_dir()] == [kept]


def test_a_copied_file_replaces_the_content_of_another(tmp_path: Path) -> None:
    content = os.urandom(1_000_001)  # more than is copied at once
    (tmp_path / "source").write_bytes(content)
    (tmp_path / "target").write_bytes(bytes(2_000_000))
    copy_file(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == content


@pytest.mark.parametrize("make", [os.link, os.symlink])
def test_a_file_is_not_copied_to_itself(tmp_path: Path, make: Callable[..., None]) -> None:
    write(tmp_path / "result", "years of work")
    make(tmp_path / "result", tmp_path / "made")
    with pytest.raises(OSError, match="made"):
        copy_file(tmp_path / "made", tmp_path / "result")
    assert (tmp_path / "result").read_text() == "years of work"


def test_the_content_of_a_file_is_read_and_written_as_a_whole(tmp_path: Path) -> None:
    content = os.urandom(200_001)
    write_file(tmp_path / "file", bytes(300_000))
    write_file(tmp_path / "file", content)
    assert read_file(tmp_path / "file") == content
    with pytest.raises(IsADirectoryError) as refused:
        read_file(tmp_path)
    assert refused.value.filename == str(tmp_path)


def test_no_file_stays_open_that_shows_the_time_of_the_server_where_it_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def open_named(path: Path, flags: int, mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, mode)

    def unlink(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_named)
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(OSError, match="Input/output error"):
            time_of_new_file(tmp_path)
    (left,) = tmp_path.iterdir()
    assert str(left) not in [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]


def test_an_error_names_the_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS tells of an exhausted quota when the file is closed."""
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with monkeypatch.context() as patched, pytest.raises(OSError) as refused:
        patched.setattr(os, "close", fail)
        write_file(tmp_path / "file", b"content")
    assert (refused.value.errno, refused.value.filename) == (errno.EDQUOT, str(tmp_path / "file"))


def test_a_large_file_is_not_copied_again_with_each_part_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, copied = os.urandom(3_000_000), 0
    (tmp_path / "file").write_bytes(content)

    class Part(bytes):
        def __add__(self, other: bytes) -> Part:  # type: ignore[override]
            nonlocal copied
            copied += len(self) + len(other)
            return Part(super().__add__(other))

    read = os.read
    monkeypatch.setattr(os, "read", lambda *arguments: Part(read(*arguments)))
    assert read_file(tmp_path / "file") == content
    assert copied <= len(content)
