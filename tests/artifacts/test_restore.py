"""Files of results are restored from a branch: complete, verified, and never over other content."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from full_disk import mounted
from git_helpers import write

from snakemake_kochi.artifacts.committer import commit_pending
from snakemake_kochi.artifacts.journal import Result, journal
from snakemake_kochi.artifacts.reading import published
from snakemake_kochi.artifacts.restore import (
    Publication,
    Wanted,
    published_records,
    restore_files,
)
from snakemake_kochi.paths import ProjectPaths

MACHINE = "local"


def publish(
    repository: Path, paths: ProjectPaths, contents: dict[str, bytes], version: int = 1
) -> list[Any]:
    """A result for each destination, whose name is that of the result; return the records."""
    records = []
    for dest, content in contents.items():
        identity = f"{dest}.20260101T000000.{hashlib.sha256(content).hexdigest()[:6]}"
        source = paths.directory / "work" / identity
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_bytes(content)
        described = {"type": "file", "dest": dest, "src": dest, "size": len(content)}
        described["sha256"] = hashlib.sha256(content).hexdigest()
        record = {"version": version, "identity": identity, "machine": MACHINE}
        record["artifacts"] = [described]
        journal(paths, MACHINE, Result(identity, {dest: source}, record))
        records.append(record)
    assert commit_pending(repository, paths, MACHINE) == len(contents)
    return records


def wanted(records: list[Any], place: Path) -> list[Wanted]:
    return [
        Wanted(record, {dest: place / "results" / dest}, place / "records" / dest / "record.json")
        for record in records
        for dest in [record["artifacts"][0]["dest"]]
    ]


def publication(repository: Path) -> Publication:
    (commit,) = published(repository).tips[MACHINE]
    return Publication(MACHINE, commit)


def contents_of(place: Path) -> dict[str, bytes]:
    """All files but those that are being written, by their paths in results/."""
    results = place / "results"
    files = [each for each in results.rglob("*") if each.is_file() and each.name[0] != "."]
    return {each.relative_to(results).as_posix(): each.read_bytes() for each in files}


def test_a_result_that_a_newer_one_replaced_is_restored_from_the_history(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    old = publish(repository, paths, {"a.txt": b"old", "b.txt": b"b"})
    publish(repository, paths, {"a.txt": b"new"})
    outcome = restore_files(repository, publication(repository), wanted(old, tmp_path))
    assert outcome.restored == {record["identity"] for record in old}
    assert contents_of(tmp_path) == {"a.txt": b"old", "b.txt": b"b"}
    records = {json.loads(each.read_text())["identity"] for each in tmp_path.rglob("restored.json")}
    assert records == outcome.restored
    again = restore_files(repository, publication(repository), wanted(old, tmp_path))
    assert (again.present, again.restored) == (outcome.restored, set())


def test_a_file_with_other_content_stays_with_its_whole_result_unless_forced(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    records = publish(repository, paths, {"a.txt": b"a", "b.txt": b"b"})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.txt").write_bytes(b"mine")
    (tmp_path / "results" / "b.txt").write_bytes(b"b")
    asked = wanted(records, tmp_path)
    outcome = restore_files(repository, publication(repository), asked)
    assert outcome.differing == {asked[0].identity: [tmp_path / "results" / "a.txt"]}
    assert outcome.restored == {asked[1].identity}
    assert contents_of(tmp_path) == {"a.txt": b"mine", "b.txt": b"b"}
    assert not asked[0].aside.exists()
    outcome = restore_files(repository, publication(repository), asked, force=True)
    assert outcome.restored == {asked[0].identity}
    assert contents_of(tmp_path) == {"a.txt": b"a", "b.txt": b"b"}


def test_a_result_of_the_branch_gives_way_to_another_one_unless_it_was_edited(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    contents = {"a.txt": b"old a", "b.txt": b"old b", "c.txt": b"old c", "d.txt": b"old d"}
    old = publish(repository, paths, contents)
    restore_files(repository, publication(repository), wanted(old, tmp_path))
    for each in wanted(old, tmp_path):
        os.rename(each.aside, each.record_file)
    a, b, c, _ = wanted(old, tmp_path)
    (tmp_path / "results" / "b.txt").write_bytes(b"mine")
    # A run here, whose result was not published.
    write(c.record_file, json.dumps({**c.record, "identity": "of my own run"}))
    (tmp_path / "results" / "d.txt").unlink()
    new = publish(repository, paths, dict.fromkeys(contents, b"new"))
    outcome = restore_files(repository, publication(repository), wanted(new, tmp_path))
    assert outcome.restored == {new[0]["identity"], new[3]["identity"]}
    assert outcome.differing.keys() == {new[1]["identity"], new[2]["identity"]}
    left = {"a.txt": b"new", "b.txt": b"mine", "c.txt": b"old c", "d.txt": b"new"}
    assert contents_of(tmp_path) == left
    assert json.loads(a.aside.read_text())["identity"] == new[0]["identity"]
    assert json.loads(b.record_file.read_text())["identity"] == old[1]["identity"]


def test_the_same_file_of_a_run_here_keeps_its_own_record(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    (record,) = publish(repository, paths, {"a.txt": b"a"})
    (asked,) = wanted([record], tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.txt").write_bytes(b"a")
    own = {**record, "identity": "of my own run"}
    write(asked.record_file, json.dumps(own))
    outcome = restore_files(repository, publication(repository), [asked])
    assert (outcome.own, outcome.restored) == ({asked.identity}, set())
    assert "of my own run" in asked.record_file.read_text()


@pytest.mark.parametrize("replaced", [["a.txt"], ["a.json"], ["a.txt", "a.json"]])
def test_a_forced_call_that_was_killed_after_the_files_goes_on_with_the_record(
    repository: Path, paths: ProjectPaths, tmp_path: Path, replaced: list[str]
) -> None:
    identity = "a.20260101T000000.abcdef"
    described = {"type": "file", "dest": "a.txt", "src": "a.txt", "size": 1}
    described["sha256"] = hashlib.sha256(b"a").hexdigest()
    artifacts = [described, {"type": "stats", "dest": "a.json", "src": None}]
    record = {"version": 1, "identity": identity, "machine": MACHINE, "artifacts": artifacts}
    (paths.directory / "work").mkdir(parents=True)
    published_text = {"a.txt": "a", "a.json": json.dumps(record)}
    files = {dest: paths.directory / "work" / dest for dest in published_text}
    for dest, text in published_text.items():
        files[dest].write_text(text)
    journal(paths, MACHINE, Result(identity, files, record))
    commit_pending(repository, paths, MACHINE)
    # The other run made another a.txt, or the same one if the killed call replaced only the stats.
    was = "mine" if "a.txt" in replaced else "a"
    other = {**described, "sha256": hashlib.sha256(was.encode()).hexdigest()}
    own = {**record, "identity": "of my own run", "artifacts": [other, artifacts[1]]}
    here = {"a.txt": was, "a.json": json.dumps(own)}
    here |= {dest: published_text[dest] for dest in replaced}
    results = {dest: tmp_path / "results" / dest for dest in here}
    for dest, text in here.items():
        write(results[dest], text)
    asked = Wanted(record, results, tmp_path / "record" / "record.json")
    write(asked.record_file, json.dumps(own))
    outcome = restore_files(repository, publication(repository), [asked], force=True)
    assert (outcome.restored, outcome.own) == ({identity}, set())
    assert json.loads(asked.aside.read_text())["identity"] == identity
    there = {dest: file.read_text() for dest, file in results.items()}
    assert json.loads(there.pop("a.json"))["identity"] == identity
    assert there == {"a.txt": "a"}
    # Killed again, before Snakemake learnt of it.
    outcome = restore_files(repository, publication(repository), [asked])
    assert outcome.own == set() and outcome.restored == {identity}


def test_a_branch_whose_file_is_not_that_of_the_record_restores_nothing(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    (record,) = publish(repository, paths, {"a.txt": b"a"})
    forged = {**record, "artifacts": [{**record["artifacts"][0], "sha256": "0" * 64}]}
    outcome = restore_files(repository, publication(repository), wanted([forged], tmp_path))
    assert list(outcome.lacking) == [record["identity"]]
    assert contents_of(tmp_path) == {}
    assert not list(tmp_path.rglob("restored.json"))
    assert not list((tmp_path / "results").iterdir())


def test_after_kill_9_each_file_is_whole_and_the_next_call_goes_on(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    contents = {f"{n}.bin": bytes([n]) * 300_000 for n in range(60)}
    records = publish(repository, paths, contents)
    found = publication(repository)
    for least in (1, 20):
        child = os.fork()
        if child == 0:
            try:
                restore_files(repository, found, wanted(records, tmp_path))
            finally:
                os._exit(0)
        deadline = time.monotonic() + 60
        while len(contents_of(tmp_path)) < least and time.monotonic() < deadline:
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        there = contents_of(tmp_path)
        assert len(there) >= least
        assert there.items() <= contents.items()
        with_record = [each for each in wanted(records, tmp_path) if each.aside.exists()]
        assert all(file.exists() for each in with_record for file in each.files.values())
    outcome = restore_files(repository, found, wanted(records, tmp_path))
    assert len(outcome.restored | outcome.present) == 60
    assert contents_of(tmp_path) == contents
    hidden = [each for each in (tmp_path / "results").rglob(".*") if each.is_file()]
    assert hidden == []


def test_on_a_full_disk_what_is_there_is_whole_and_the_next_call_goes_on(
    repository: Path, paths: ProjectPaths, tmp_path: Path
) -> None:
    contents = {f"{n}.bin": bytes([n]) * 1_000_000 for n in range(3)}
    records = publish(repository, paths, contents)
    with mounted(tmp_path / "small") as disk:
        (disk.directory / "ballast").write_bytes(bytes(2_000_000))
        asked = wanted(records, disk.directory)
        with pytest.raises(OSError, match="No space left") as raised:
            restore_files(repository, publication(repository), asked)
        assert str(raised.value.filename).startswith(str(disk.directory))
        assert 0 < len(contents_of(disk.directory)) < 3
        assert contents_of(disk.directory).items() <= contents.items()
        (disk.directory / "ballast").unlink()
        restore_files(repository, publication(repository), asked)
        assert contents_of(disk.directory) == contents


def test_a_record_of_a_newer_release_is_left_out_and_told(
    repository: Path, paths: ProjectPaths, caplog: pytest.LogCaptureFixture
) -> None:
    (record,) = publish(repository, paths, {"a.txt": b"a"})
    publish(repository, paths, {"b.txt": b"b"}, version=1000)
    found = list(published_records(repository, publication(repository)))
    assert [each["identity"] for each in found] == [record["identity"]]
    assert "written by a newer snakemake_kochi" in caplog.text
