"""Allocations that end before their worker starts, and silent workers."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from snakemake_kochi.allocation.failures import FailedStarts
from snakemake_kochi.errors import KochiError, WorkerError
from snakemake_kochi.paths import Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.schedulers.interface import Allocation
from snakemake_kochi.schedulers.slurm.answers import read_listing

OWN = Machine("own").allocation_at

LOGGER: Any = logging.getLogger("test")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def starts(clock: Clock) -> FailedStarts:
    return FailedStarts(True, LOGGER, clock)


def fail(starts: FailedStarts, *nodes: str) -> None:
    for number, node in enumerate(nodes):
        ended = Allocation(str(number), "ended", "NonZeroExitCode", node)
        starts.failed(ended.id, ended, Path("/nowhere/x.log"))


def test_a_node_that_fails_repeatedly_is_excluded_and_the_run_goes_on(
    starts: FailedStarts,
) -> None:
    fail(starts, "a", "b", "a", "a", "a")
    starts.check()
    assert starts.excluded == ("a",)
    assert starts.may_request


def test_a_node_is_excluded_although_workers_start_on_others_in_between(
    starts: FailedStarts,
) -> None:
    fail(starts, "a")
    starts.worker_came()
    fail(starts, "a")
    assert starts.excluded == ("a",)


def test_failures_of_different_days_do_not_exclude_a_node_and_one_that_was_is_tried_again(
    starts: FailedStarts, clock: Clock
) -> None:
    fail(starts, "a")
    clock.now += 7 * 24 * 3600
    fail(starts, "a")
    assert starts.excluded == ()
    fail(starts, "a")
    assert starts.excluded == ("a",)
    clock.now += 25 * 3600
    assert starts.excluded == ()


def test_failures_on_three_nodes_in_a_row_end_the_run_or_delay_requests_while_workers_exist(
    starts: FailedStarts, clock: Clock
) -> None:
    fail(starts, "a", "b", "c")
    with pytest.raises(WorkerError, match=r"3 allocations in a row .* 2 on node c .*wrote no log"):
        starts.check()
    assert not starts.may_request
    clock.now += 10
    assert starts.may_request
    fail(starts, "d")
    clock.now += 10
    assert not starts.may_request  # each pause is longer
    clock.now += 10
    assert starts.may_request
    starts.worker_came()
    starts.check()


def test_a_cause_that_all_failures_in_a_row_have_in_common_is_said_first(
    starts: FailedStarts, tmp_path: Path
) -> None:
    def fail_with(words: str, *nodes: str) -> str:
        for node in nodes:
            log = tmp_path / f"{node}.log"
            log.write_text(f"on node {node}\njob{node}: {words}\n")
            starts.failed(node, Allocation(node, "ended", "NonZeroExitCode", node), log)
        with pytest.raises(WorkerError, match="in a row ended") as raised:
            starts.check()
        return raised.value.message

    alike = "none starts: the log ends with: job1: no python, each time. 3 allocations"
    assert alike in fail_with("no python", "3", "2", "1")
    assert "none starts: 4 allocations" in fail_with("no bash", "4")
    starts.worker_came()
    assert "job7: no bash, each time. 3 " in fail_with("no bash", "5", "6", "7")


def test_a_node_known_from_the_log_alone_is_named_and_each_failure_counts_without_exclusion(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    starts = FailedStarts(False, LOGGER)
    log = tmp_path / "x.log"
    log.write_text("on node far\nbash: no python\n")
    for id in ("1", "2", "3"):
        starts.failed(id, None, log)
    assert starts.excluded == ()
    assert f"1 on node far; its log is {log}" in caplog.text
    with pytest.raises(WorkerError, match="3 on node far"):
        starts.check()


def unsure(tmp_path: Path, clock: Clock, log: Path, seconds: float) -> FailedStarts:
    """Starts with a KOCHI_ROOT that nodes perhaps do not see; the log appears after some
    seconds."""

    def sleep(pause: float) -> None:
        clock.now += pause
        if clock.now >= Clock.now + seconds:
            log.write_text("on node a\n")

    root = Root(tmp_path)
    return FailedStarts(True, LOGGER, clock, root_if_unsure=root, sleep=sleep)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "machines" / "own" / "allocations" / "1.log"
    file.parent.mkdir(parents=True)
    return file


def listed(state: str, reason: str) -> Allocation:
    return read_listing(f"1|{state}|a|{reason}", OWN)["1"]


@pytest.mark.parametrize("reason", ["NonZeroExitCode", "JobLaunchFailure", "RaisedSignal:53(x)"])
def test_a_first_node_that_writes_its_log_elsewhere_does_not_see_the_root(
    tmp_path: Path, clock: Clock, log: Path, reason: str
) -> None:
    starts = unsure(tmp_path, clock, log, float("inf"))
    with pytest.raises(KochiError, match=f"a does not see it.*{re.escape(reason)}.*log is not"):
        starts.failed("1", listed("FAILED", reason), log)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("NODE_FAIL", "NodeDown"),
        ("PENDING", "launch failed requeued held"),
        ("FAILED", "SystemFailure"),
        ("TIMEOUT", "TimeLimit"),
    ],
)
def test_a_first_node_that_could_not_begin_does_not_prove_what_it_sees(
    tmp_path: Path, clock: Clock, log: Path, state: str, reason: str
) -> None:
    starts = unsure(tmp_path, clock, log, float("inf"))
    starts.failed("1", listed(state, reason), log)
    starts.failed("2", None, log.with_name("2.log"))
    starts.check()


def test_a_log_that_appears_late_or_is_not_known_proves_nothing(
    tmp_path: Path, clock: Clock, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    starts = unsure(tmp_path, clock, log, 2)
    starts.failed("1", listed("FAILED", "NonZeroExitCode"), log)
    assert f"its log is {log}" in caplog.text
    # Any error but that of a missing file. EIO would need a filesystem of its own.
    unknown = log.with_name("x" * 300)
    starts.failed("2", listed("FAILED", "NonZeroExitCode"), unknown)
    assert "it is not known now whether it wrote a log" in caplog.text


def test_the_pause_grows_with_each_cancellation_by_others(
    starts: FailedStarts, clock: Clock
) -> None:
    for longest in (60, 120, 240):
        starts.cancelled(["1"])
        clock.now += longest / 2
        assert not starts.may_request
        clock.now += longest / 2
        assert starts.may_request
    starts.check()


# ---- silent workers
