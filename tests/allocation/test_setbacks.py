"""What follows from allocations that ended before their worker came."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from snakemake_kochi.allocation.scheduler import Allocation
from snakemake_kochi.allocation.setbacks import Setbacks
from snakemake_kochi.errors import WorkerError

LOGGER: Any = logging.getLogger("test")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def setbacks(clock: Clock) -> Setbacks:
    return Setbacks(True, LOGGER, clock)


def fail(setbacks: Setbacks, *nodes: str) -> None:
    for number, node in enumerate(nodes):
        ended = Allocation(str(number), "ended", "NonZeroExitCode", node)
        setbacks.failed(ended.id, ended, Path("/nowhere/x.log"))


def test_a_node_that_fails_again_and_again_is_excluded_and_is_no_reason_to_end(
    setbacks: Setbacks,
) -> None:
    fail(setbacks, "a", "b", "a", "a", "a")
    setbacks.check()
    assert setbacks.excluded == ("a",)
    assert setbacks.may_ask


def test_a_node_is_excluded_although_workers_come_on_others_in_between(setbacks: Setbacks) -> None:
    fail(setbacks, "a")
    setbacks.worker_came()
    fail(setbacks, "a")
    assert setbacks.excluded == ("a",)


def test_three_nodes_in_a_row_are_a_reason_to_end_or_to_wait_while_workers_are_there(
    setbacks: Setbacks, clock: Clock
) -> None:
    fail(setbacks, "a", "b", "c")
    with pytest.raises(WorkerError, match=r"3 allocations in a row .* 2 on node c .*wrote no log"):
        setbacks.check()
    assert not setbacks.may_ask
    clock.now += 10
    assert setbacks.may_ask
    fail(setbacks, "d")
    clock.now += 10
    assert not setbacks.may_ask  # each pause is longer
    clock.now += 10
    assert setbacks.may_ask
    setbacks.worker_came()
    setbacks.check()


def test_a_node_that_only_its_log_names_is_named_and_each_failure_counts_where_none_is_excluded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setbacks = Setbacks(False, LOGGER)
    log = tmp_path / "x.log"
    log.write_text("on node far\nbash: no python\n")
    for id in ("1", "2", "3"):
        setbacks.failed(id, None, log)
    assert setbacks.excluded == ()
    assert f"1 on node far; its log is {log}" in caplog.text
    with pytest.raises(WorkerError, match="3 on node far"):
        setbacks.check()


def test_after_each_cancellation_by_others_the_next_question_is_farther_off(
    setbacks: Setbacks, clock: Clock
) -> None:
    for longest in (60, 120, 240):
        setbacks.cancelled(["1"])
        clock.now += longest / 2
        assert not setbacks.may_ask
        clock.now += longest / 2
        assert setbacks.may_ask
    setbacks.check()
