"""When something that failed is tried again."""

from __future__ import annotations

from snakemake_kochi.backoff import Backoff


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_pauses_grow_up_to_a_limit_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(10.0, 120.0)
    found = [backoff.failed() for _ in range(50)]
    assert 7.5 <= found[0] <= 10.0
    assert 15.0 <= found[1] <= 20.0
    assert all(90.0 <= pause <= 120.0 for pause in found[4:])
    backoff.worked()
    assert backoff.failed() <= 10.0


def test_nothing_is_tried_again_before_its_pause_is_over() -> None:
    clock = Clock()
    backoff = Backoff(10.0, 120.0, clock)
    assert backoff.is_due
    clock.now += backoff.failed() - 1
    assert not backoff.is_due
    clock.now += 1
    assert backoff.is_due
    backoff.hold(60)
    clock.now += 59
    assert not backoff.is_due
    clock.now += 1
    assert backoff.is_due
