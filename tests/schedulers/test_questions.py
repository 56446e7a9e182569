"""The times of questions to a scheduler, and messages about missing answers."""

from __future__ import annotations

from snakemake_kochi.schedulers.commands import Questions
from snakemake_kochi.schedulers.interface import UnreachableError


class Log:
    """Collects what a user would read."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    warning = error = debug = info


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_questions_are_ten_seconds_apart_except_after_an_event():
    clock = Clock()
    questions = Questions(Log(), clock)
    assert questions.is_due()
    assert not questions.is_due()
    clock.now += 9
    assert not questions.is_due()
    questions.at_once()
    assert questions.is_due()
    clock.now += 10
    assert questions.is_due()


def test_an_unreachable_scheduler_is_asked_less_often_even_after_events():
    clock, log = Clock(), Log()
    questions = Questions(log, clock)
    assert questions.is_due()
    for _ in range(8):
        questions.not_answered(UnreachableError("timed out"))
        questions.at_once()
        assert not questions.is_due()
    clock.now += 89
    assert not questions.is_due()
    clock.now += 32
    assert questions.is_due()
    questions.answered()
    questions.at_once()
    assert questions.is_due()
    assert len(log.lines) == 2
    assert "timed out" in log.lines[0]
    assert log.lines[1] == "The scheduler answers again."
