"""What is told once, and when it is told again."""

from __future__ import annotations

import errno

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.notices import Notices


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Log(list[str]):
    """Collects what a person would read."""

    def info(self, text: str) -> None:
        self.append(text)

    warning = info


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notices(log: Log, clock: Clock) -> Notices:
    return Notices(log, 60.0, clock)


def test_a_notice_is_told_once_for_its_key(notices: Notices, log: Log) -> None:
    notices.info("one")
    notices.info("one")
    notices.warning("two", key="q")
    notices.warning("three", key="q")
    assert log == ["one", "two"]
    assert notices.forget("q")
    assert not notices.forget("q")
    notices.warning("four", key="q")
    assert log == ["one", "two", "four"]


def test_what_is_quiet_for_some_time_is_new_again_after_that(
    notices: Notices, clock: Clock
) -> None:
    assert notices.is_new("key", quiet=10)
    clock.now += 9
    assert not notices.is_new("key", quiet=10)
    clock.now += 1
    assert notices.is_new("key", quiet=10)


def test_a_fault_is_repeated_each_minute_and_when_its_reason_changes(
    notices: Notices, log: Log, clock: Clock
) -> None:
    for name in ("a", "b"):
        notices.fault("No writing", OSError(errno.ENOSPC, "full", name))
    notices.fault("No writing", OSError(errno.EIO, "broken"))
    notices.fault("No writing", KochiError("refused", "Ask."))
    assert [line.partition("] ")[2] or line for line in log] == [
        "full: 'a'",
        "broken",
        "No writing: refused. Ask.",
    ]
    clock.now += 60
    notices.fault("No writing", KochiError("refused", "Ask."))
    assert len(log) == 4


def test_the_end_of_a_fault_is_told_if_the_fault_was(notices: Notices, log: Log) -> None:
    notices.over("No writing")
    notices.fault("No writing", KochiError("refused"))
    notices.over("No writing")
    notices.over("No writing")
    assert log == ["No writing: refused", "no longer: No writing"]
    notices.fault("No writing", KochiError("refused"))
    assert len(log) == 3
