"""What follows from allocations that ended before their worker came."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from snakemake_kochi.allocation.setbacks import Setbacks
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.paths import Root
from snakemake_kochi.schedulers.interface import Allocation
from snakemake_kochi.schedulers.slurm.listing import read_listing

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


def unsure(tmp_path: Path, clock: Clock, log: Path, seconds: float) -> Setbacks:
    """Where nobody has said that nodes see KOCHI_ROOT, and the log is seen after some seconds."""

    def sleep(pause: float) -> None:
        clock.now += pause
        if clock.now >= Clock.now + seconds:
            log.write_text("on node a\n")

    root = Root(tmp_path)
    return Setbacks(True, LOGGER, clock, root_if_unsure=root, sleep=sleep)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "machines" / "own" / "allocations" / "1.log"
    file.parent.mkdir(parents=True)
    return file


def listed(state: str, reason: str) -> Allocation:
    return read_listing(f"1|{state}|a|{reason}", "own")["1"]


@pytest.mark.parametrize("reason", ["NonZeroExitCode", "JobLaunchFailure", "RaisedSignal:53(x)"])
def test_a_first_node_that_writes_its_log_elsewhere_does_not_see_the_root(
    tmp_path: Path, clock: Clock, log: Path, reason: str
) -> None:
    setbacks = unsure(tmp_path, clock, log, float("inf"))
    with pytest.raises(KochiError, match=f"a does not see it: .*{re.escape(reason)}.*log is not"):
        setbacks.failed("1", listed("FAILED", reason), log)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("NODE_FAIL", "NodeDown"),
        ("PENDING", "launch failed requeued held"),
        ("FAILED", "SystemFailure"),
        ("TIMEOUT", "TimeLimit"),
    ],
)
def test_a_first_node_that_could_not_begin_is_no_sign_of_what_it_sees(
    tmp_path: Path, clock: Clock, log: Path, state: str, reason: str
) -> None:
    setbacks = unsure(tmp_path, clock, log, float("inf"))
    setbacks.failed("1", listed(state, reason), log)
    setbacks.failed("2", None, log.with_name("2.log"))
    setbacks.check()


def test_a_log_that_is_seen_late_or_not_known_is_no_sign_either(
    tmp_path: Path, clock: Clock, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setbacks = unsure(tmp_path, clock, log, 2)
    setbacks.failed("1", listed("FAILED", "NonZeroExitCode"), log)
    assert f"its log is {log}" in caplog.text
    # Any error but that of a missing file; EIO cannot be made without a filesystem of its own.
    unknown = log.with_name("x" * 300)
    setbacks.failed("2", listed("FAILED", "NonZeroExitCode"), unknown)
    assert "whether it wrote a log is not known now" in caplog.text


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
