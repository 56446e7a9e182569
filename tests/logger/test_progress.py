"""The progress of a run and its prediction, with a clock of the test."""

from __future__ import annotations

from snakemake_kochi.logger.handler import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_later_half_of_the_done_steps_predicts_the_others() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.begin()
    # A build of a minute, then a step a second.
    clock.now += 60
    progress.note(1, 101)
    for done in range(2, 42):
        clock.now += 1
        progress.note(done, 101)
    assert progress.left() == 60
    assert progress.left(failed=10) == 50


def test_too_few_steps_predict_nothing() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.note(1, 10)
    clock.now += 60
    progress.note(2, 10)
    assert progress.left() is None
    progress.note(10, 10)
    assert progress.left() is None


def test_a_run_of_ten_hours_shows_some_hundred_lines() -> None:
    clock = Clock()
    progress = Progress(clock)
    progress.begin()
    lines = 0
    for _ in range(36_000):
        clock.now += 1
        if progress.due_in() <= 0:
            lines += 1
            progress.shown()
        assert progress.due_in() <= 60
    assert 500 < lines < 700
