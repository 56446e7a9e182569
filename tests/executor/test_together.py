"""Calls of a slow filesystem that are made at the same time."""

from __future__ import annotations

import errno
import threading
import time
from functools import partial

import pytest

from snakemake_kochi.files.together import Together


def test_on_a_slow_filesystem_calls_are_made_at_the_same_time() -> None:
    together, meeting = Together(slow=0.0), threading.Barrier(3)
    before = threading.enumerate()
    assert sorted(map(str, together([partial(meeting.wait, 60)] * 3))) == ["0", "1", "2"]
    assert not {*threading.enumerate()} - {*before}


def test_on_a_fast_filesystem_one_thread_makes_all_calls_in_their_order() -> None:
    seen: list[tuple[int, int]] = []
    together = Together(slow=60.0)
    for _ in range(2):
        together([lambda n=n: seen.append((n, threading.get_ident())) for n in range(20)])  # type: ignore[misc]
    assert seen == [(n, threading.get_ident()) for n in range(20)] * 2


def test_calls_are_made_at_the_same_time_as_soon_as_two_of_them_were_slow() -> None:
    together, meeting = Together(slow=0.01), threading.Barrier(3)

    def call(number: int) -> None:
        if number < 2:
            time.sleep(0.02)
        else:
            meeting.wait(60)

    assert together([partial(call, number) for number in range(5)]) == [None] * 5


def test_the_first_error_of_several_calls_is_raised_when_all_were_made() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        if number in (1, 2):
            raise OSError(number, "fault")
        return number

    together = Together()
    assert together.all([partial(make, 3), partial(make, 4)]) == [3, 4]
    with pytest.raises(OSError, match="1"):
        together.all([partial(make, number) for number in range(4)])
    assert sorted(made) == [0, 1, 2, 3, 3, 4]


def test_the_answers_and_errors_of_calls_are_in_the_order_of_the_calls() -> None:
    def fail() -> int:
        raise OSError(errno.EIO, "fault")

    together = Together(slow=0.0)
    for _ in range(3):
        answers = together([lambda: 1, fail, lambda: 3] * 10)
        assert [answers[0], answers[2]] == [1, 3]
        assert all(isinstance(answer, OSError) for answer in answers[1::3])
        assert answers[::3] == [1] * 10 and answers[2::3] == [3] * 10
    assert together([]) == []
