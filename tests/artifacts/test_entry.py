"""Entries of the journal: their files, and the directories of earlier versions."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from git_helpers import git, write

from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.entry import Content, read_entry, read_record
from snakemake_kochi.artifacts.journal import Result, journal, pending
from snakemake_kochi.artifacts.large import Pointer
from snakemake_kochi.artifacts.published import branch_called
from snakemake_kochi.errors import DamagedFileError, KochiError
from snakemake_kochi.files import to_json
from snakemake_kochi.paths import ProjectPaths, Root

MACHINE = "local"
CONTENTS = {"a.log": b"first\n", "b/empty": b"", "b/c.bin": b"\0\n\n\xff" * 5000}


@pytest.fixture
def entry(paths: ProjectPaths, tmp_path: Path) -> Path:
    sources = {dest: write(tmp_path / "work" / dest, CONTENTS[dest]) for dest in CONTENTS}
    journal(paths, MACHINE, Result("one", sources, {"name": "é\n\n", "attempt": "1"}))
    return paths.journal(MACHINE) / "one"


def make_directory_entry(
    paths: ProjectPaths, identity: str, files: Mapping[str, bytes], **head: Any
) -> Path:
    """An entry as version 2 wrote it."""
    place = paths.journal(MACHINE) / identity
    noted = []
    for number, (dest, content) in enumerate(files.items()):
        write(place / str(number), content)
        noted.append({"dest": dest, "file": str(number), "size": len(content)})
    whole = {"version": 1, "identity": identity, "time": 1, "files": noted, "record": {}, **head}
    write(place / "entry.json", to_json(whole))
    return place


def content_of(content: Content) -> bytes:
    with content.file.open("rb") as stream:
        stream.seek(content.offset)
        return stream.read(content.size)


def committed(repository: Path) -> dict[str, str]:
    name = branch_called(MACHINE)
    listed = git(repository, "ls-tree", "-r", "--name-only", "--full-tree", name).splitlines()
    return {
        path.removeprefix("local/"): git(repository, "show", f"{name}:{path}")
        for path in listed
        if "/.kochi/" not in path
    }


def test_an_entry_is_one_file_with_the_record_and_the_contents(entry: Path) -> None:
    read = read_entry(entry)
    assert read.record == {"name": "é\n\n", "attempt": "1"}
    assert {dest: content_of(content) for dest, content in read.files.items()} == CONTENTS
    assert [path.name for path in entry.parent.iterdir()] == ["one"]
    assert read_record(entry) == read.record


def test_common_tools_show_the_record_of_an_entry(entry: Path) -> None:
    done = subprocess.run(["sed", "/^$/q", str(entry)], check=True, capture_output=True)
    assert json.loads(done.stdout)["record"]["attempt"] == "1"


def test_an_entry_without_its_end_or_with_more_is_damaged(entry: Path) -> None:
    whole = entry.read_bytes()
    for size in (*range(0, len(whole) - 20_000, 7), len(whole) - 1):
        entry.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError):
            read_entry(entry)
    entry.write_bytes(whole + b"x")
    with pytest.raises(DamagedFileError, match="bytes were expected"):
        read_entry(entry)


def test_an_entry_with_a_size_below_zero_is_damaged(entry: Path) -> None:
    text = entry.read_bytes()
    changed = text.replace(b'"size": 6', b'"size": -6').replace(b'"size": 0', b'"size": 12')
    assert changed != text
    entry.write_bytes(changed)
    with pytest.raises(DamagedFileError, match="size -6"):
        read_entry(entry)


def test_a_file_that_grows_meanwhile_is_copied_as_it_was(
    paths: ProjectPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "log", "first\n")
    change_before_copy(monkeypatch, source, "first\nsecond\n")
    journal(paths, MACHINE, Result("one", {"log": source}, {}))
    (content,) = read_entry(paths.journal(MACHINE) / "one").files.values()
    assert content_of(content) == b"first\n"


def test_a_file_that_is_cut_meanwhile_is_not_journaled(
    paths: ProjectPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "log", "first\n")
    change_before_copy(monkeypatch, source, "f")
    with pytest.raises(OSError, match="changed while it was read"):
        journal(paths, MACHINE, Result("one", {"log": source}, {}))
    assert list(paths.journal(MACHINE).iterdir()) == []


def change_before_copy(monkeypatch: pytest.MonkeyPatch, source: Path, text: str) -> None:
    """Change a file when its size has been noted."""
    from snakemake_kochi.artifacts import journal as module

    def change(head: Mapping[str, Any]) -> bytes:
        source.write_text(text)
        return original(head)

    original = module.head_of
    monkeypatch.setattr(module, "head_of", change)


# ---- directories


def test_an_entry_of_an_earlier_version_is_committed_and_removed(
    repository: Path, paths: ProjectPaths
) -> None:
    place = make_directory_entry(paths, "old", {"a.log": b"a\n", "b": b""})
    assert read_entry(place).record == read_record(place) == {}
    assert commit_pending(repository, paths, MACHINE) == 1
    assert committed(repository) == {"a.log": "a\n", "b": ""}
    assert list(paths.journal(MACHINE).iterdir()) == []


def test_the_pointers_of_an_earlier_version_are_read(paths: ProjectPaths) -> None:
    large = [{"dest": "big", "sha256": "0" * 64, "size": 7}]
    place = make_directory_entry(paths, "old", {}, version=2, large=large)
    assert read_entry(place).large == {"big": Pointer("0" * 64, 7)}


@pytest.mark.parametrize("damage", ["entry.json", "0", "size"])
def test_a_directory_without_a_file_is_damaged(paths: ProjectPaths, damage: str) -> None:
    place = make_directory_entry(paths, "old", {"a.log": b"a\n"})
    if damage == "size":
        (place / "0").write_bytes(b"{")
    else:
        (place / damage).unlink()
    with pytest.raises(DamagedFileError, match=r"is missing|bytes were expected"):
        read_entry(place)


def test_an_interrupted_removal_of_a_directory_is_completed(
    repository: Path, paths: ProjectPaths
) -> None:
    place = make_directory_entry(paths, "old", {"a.log": b"a"})
    shutil.copytree(place, paths.directory / "copy")
    commit_pending(repository, paths, MACHINE)
    (paths.directory / "copy" / "entry.json").unlink()
    (paths.directory / "copy").rename(place)
    assert pending(paths, MACHINE) == ("old",)
    assert commit_pending(repository, paths, MACHINE) == 0
    assert pending(paths, MACHINE) == ()
    assert not paths.damaged_results(MACHINE).exists()


def test_a_file_of_a_directory_that_is_listed_but_not_found_is_not_damage(
    repository: Path, tmp_path: Path
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        paths = Root(filesystem.path / "root").project(repository)
        place = make_directory_entry(paths, "old", {"a.log": b"a"})
        for name in ("entry.json", "0"):
            with (
                filesystem.fault("getattr", errno.ENOENT, f"*/old/{name}"),
                filesystem.fault("open", errno.ENOENT, f"*/old/{name}"),
                pytest.raises(KochiError, match="is listed, but cannot be opened") as raised,
            ):
                read_entry(place)
            assert not isinstance(raised.value, DamagedFileError)


def test_an_entry_of_which_a_content_fails_while_it_is_committed_does_not_block_others(
    repository: Path, tmp_path: Path
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        paths = Root(filesystem.path / "root").project(repository)
        make_directory_entry(paths, "bad", {"bad.log": b"bad"})
        make_directory_entry(paths, "good", {"good.log": b"good"})
        with filesystem.fault("read", errno.EIO, "*/bad/0") as fault:
            assert commit_pending(repository, paths, MACHINE) == 1
            assert filesystem.count(fault)
        assert committed(repository) == {"good.log": "good"}
        assert commit_pending(repository, paths, MACHINE) == 1
        assert committed(repository) == {"bad.log": "bad", "good.log": "good"}
