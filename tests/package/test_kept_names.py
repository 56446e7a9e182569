"""Directories that are looked at again and again: what a look costs, and what it misses."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem
from support import REPOSITORY

from snakemake_kochi.files import KeptNames


class Watched:
    """A directory on a file server whose clock shows a time in whole seconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1000.0
        self.make()
        self.kept = KeptNames(path, lambda: self.now)

    def make(self) -> None:
        self.path.mkdir()
        self.tick()

    def tick(self) -> None:
        os.utime(self.path, ns=(0, int(self.now) * 10**9))

    def add(self, name: str) -> None:
        (self.path / name).write_text("")
        self.tick()

    def seen(self, after: float = 0.0, is_notified: bool = False) -> set[str]:
        self.now += after
        return set(self.kept.names(is_notified))


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "watched")


def test_each_change_is_seen_by_the_next_look(watched: Watched) -> None:
    assert watched.seen() == set()
    for number in range(30):
        watched.add(str(number))
        assert str(number) in watched.seen()
        watched.now += 7 * number % 13
        assert str(number) in watched.seen()
    (watched.path / "0").unlink()
    watched.tick()
    assert "0" not in watched.seen()


def test_two_changes_within_the_same_second_are_both_seen(watched: Watched) -> None:
    watched.add("first")
    assert watched.seen(0.1) == {"first"}
    watched.add("second")
    assert watched.seen(0.1) == {"first", "second"}


def test_a_change_that_leaves_no_trace_is_seen_after_a_minute_or_a_notification(
    watched: Watched,
) -> None:
    began = watched.now
    watched.seen(), watched.seen(5)
    (watched.path / "first").write_text("")
    os.utime(watched.path, ns=(0, int(began) * 10**9))
    assert watched.seen() == set()
    assert watched.seen(is_notified=True) == {"first"}
    (watched.path / "second").write_text("")
    os.utime(watched.path, ns=(0, int(began) * 10**9))
    assert watched.seen(5) == {"first"}
    assert watched.seen(60) == {"first", "second"}


def test_a_directory_that_is_gone_or_new_is_seen_at_once(watched: Watched) -> None:
    watched.add("old")
    watched.seen(), watched.seen(5)
    (watched.path / "old").unlink()
    watched.path.rmdir()
    assert watched.seen() == set()
    watched.make()
    watched.add("new")
    assert watched.seen() == {"new"}


def test_a_directory_in_the_place_of_another_is_seen_at_once(watched: Watched) -> None:
    watched.add("old")
    watched.seen(), watched.seen(5)
    before = os.stat(watched.path).st_mtime_ns
    watched.path.rename(watched.path.with_name("moved"))
    watched.make()
    watched.add("new")
    os.utime(watched.path, ns=(0, before))
    assert watched.seen() == {"new"}


def test_a_parent_in_the_place_of_another_is_seen_after_a_minute(tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    watched = Watched(above / "watched")
    watched.add("old")
    assert watched.seen() == {"old"}
    above.rename(tmp_path / "moved")
    above.mkdir()
    watched.make()
    watched.add("new")
    assert watched.seen(60) == {"new"}


def test_a_filesystem_without_an_answer_says_nothing_about_the_names(tmp_path: Path) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        watched = Watched(filesystem.path / "watched")
        watched.add("name")
        assert watched.seen() == watched.seen(5) == {"name"}
        with filesystem.fault("getattr", errno.EIO, "*/watched") as fault:
            with pytest.raises(OSError, match="Input/output"):
                watched.seen()
            assert filesystem.count(fault)
        assert watched.seen() == {"name"}
        watched.kept.close()


def test_an_unchanged_directory_costs_one_call_and_none_for_the_directories_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    from bench.slow_filesystem import SlowFilesystem

    with SlowFilesystem(tmp_path / "backing", tmp_path / "mounted") as slow:
        path = slow.path / "above"
        path.mkdir()
        watched = Watched(path / "watched")
        watched.add("name")
        watched.seen(), watched.seen(5)
        slow.count()
        for _ in range(5):
            assert watched.seen(5) == {"name"}
        found = Counter({each.operation: each.count for each in slow.count()})
        watched.kept.close()
    assert found["getattr"] <= 5
    assert found.total() == found["getattr"], found
