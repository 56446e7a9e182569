"""kill -9 before steps of the queue and of a worker: nothing lost, nothing twice.

Every fifth step or so is tried: what goes wrong at one goes wrong at most of those around it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.injection import Scene, deaths, run_scene
from faults.stage import Stage, stages

from snakemake_kochi.files import to_json
from snakemake_kochi.queue import cancel, find_job, recover


class Attack:
    """Plays a scene again and again, each time on a new stage, and kills it one step later."""

    def __init__(self, directory: Path, prepare: Callable[[Stage], Scene]) -> None:
        # Who meets an attempt with a damaged file waits for all processes that have its numbers:
        # tests beside this one have jobs with the same ones, but on another machine.
        self._stages = stages(directory, f"steps-{os.getpid()}")
        self._prepare = prepare
        self.stage: Stage

    def _next(self) -> Scene:
        self.stage = next(self._stages)
        return self._prepare(self.stage)

    def run(self, check: Callable[[Stage], None], stride: int) -> int:
        """Returns how many deaths there were."""
        number = 0
        for ending in deaths(self._next, stride):
            assert ending.error == "", ending.error
            self.stage.repair()
            check(self.stage)
            self.stage.close()
            number += 1
        return number - 1


@pytest.fixture
def attack(tmp_path: Path, mark: str) -> Callable[..., int]:
    def run(
        prepare: Callable[[Stage], Scene], check: Callable[[Stage], None], stride: int = 5
    ) -> int:
        return Attack(tmp_path, prepare).run(check, stride)

    return run


def test_a_scene_that_is_left_alone_counts_its_steps_and_says_what_it_raised(
    tmp_path: Path,
) -> None:
    def steps() -> None:
        (tmp_path / "a").write_text("1")
        (tmp_path / "a").rename(tmp_path / "b")

    assert run_scene(steps).ok
    assert (tmp_path / "b").exists()
    killed = run_scene(steps, at=1)
    assert killed.was_killed and killed.steps == 1
    assert run_scene(steps, at=1000).ok
    assert "ENOSPC" in run_scene(steps, at=1, error=OSError(28, "ENOSPC")).error
    assert "ZeroDivisionError" in run_scene(lambda: 1 / 0).error


@pytest.mark.parametrize(
    ("first", "before", "handed_over"),
    [
        pytest.param(0, ("old",), ("a", "b", "c"), id="with a directory"),
        pytest.param(0, (), ("a", "b"), id="one by one"),
        pytest.param(253, ("old",), ("a", "b", "c", "d"), id="of two shards"),
    ],
)
def test_who_hands_over(
    attack: Callable[..., int], first: int, before: tuple[str, ...], handed_over: tuple[str, ...]
) -> None:
    """A prefix of the tickets is there, in their order, or none; and those before."""

    def prepare(stage: Stage) -> Scene:
        stage.machine.ids.write_bytes(to_json({"version": 1, "job": first, "worker": 0}))
        if before:
            stage.submit(*before)
        return lambda: stage.submit(*handed_over)

    def check(stage: Stage) -> None:
        jobs = {result.job: find_job(stage.machine, result.job) for result in stage.reported}
        names = {job: view.ticket.name for job, view in jobs.items() if view.ticket}
        assert len(names) >= len(before)
        assert [names[job] for job in sorted(names)] == [*before, *handed_over][: len(names)]
        assert all(view.result.ok and view.attempt == 1 for view in jobs.values() if view.result)
        stage.check(names)

    assert attack(prepare, check) > 3


def test_a_worker_from_its_first_step_to_its_last(attack: Callable[..., int]) -> None:
    def prepare(stage: Stage) -> Scene:
        stage.submit("a", "b")
        return stage.work

    def check(stage: Stage) -> None:
        for result in stage.reported:
            # The kill may have hit the job itself, before its command began.
            began = stage.lines("ab"[result.job], "begin")
            assert result.ok or (result.signal == 9 and result.attempt not in began), result
        stage.check({0: "a", 1: "b"})

    assert attack(prepare, check, stride=11) > 10


def test_a_worker_that_is_told_to_stop(attack: Callable[..., int]) -> None:
    work = "[ $KOCHI_ATTEMPT != 1 ] || { kill -TERM $PPID; sleep 1000; }; "

    def prepare(stage: Stage) -> Scene:
        stage.submit("a", work=work)
        return stage.work

    def check(stage: Stage) -> None:
        stage.check({0: "a"})
        assert stage.reported[0].ok or stage.lines("a", "begin") == []

    assert attack(prepare, check, stride=17) > 5


def test_who_recovers_the_ticket_of_a_dead_worker(attack: Callable[..., int]) -> None:
    def prepare(stage: Stage) -> Scene:
        stage.submit("a", "b")
        begun, _not_begun = stage.claim(stage.register_dead_worker(), limit=2)
        stage.begin(begun)
        return lambda: recover(stage.machine, "q")

    def check(stage: Stage) -> None:
        assert {result.job: result.ok for result in stage.reported} == {0: True, 1: True}
        assert all(result.attempt <= 2 for result in stage.reported)
        stage.check({0: "a", 1: "b"})

    assert attack(prepare, check) > 2


@pytest.mark.parametrize("where", ["waiting", "running"])
def test_who_cancels(attack: Callable[..., int], where: str) -> None:
    def prepare(stage: Stage) -> Scene:
        stage.submit("a", "b")
        if where == "running":
            (claim,) = stage.claim(stage.register_dead_worker())
            stage.begin(claim)
        return lambda: cancel(stage.machine, 0)

    def check(stage: Stage) -> None:
        ends = {result.job: result.reason for result in stage.reported}
        assert ends == {0: ends[0], 1: "success"} and ends[0] in ("cancelled", "success")
        assert (stage.lines("a", "end") == []) == (ends[0] == "cancelled")
        stage.check({0: "a", 1: "b"})

    assert attack(prepare, check) > 2


def test_who_gives_up_a_ticket_that_took_down_its_workers(attack: Callable[..., int]) -> None:
    def prepare(stage: Stage) -> Scene:
        stage.submit("a")
        for _ in range(2):
            (claim,) = stage.claim(stage.register_dead_worker())
            stage.begin(claim)
            recover(stage.machine, "q")
        (claim,) = stage.claim(stage.register_dead_worker())
        stage.begin(claim)
        return lambda: recover(stage.machine, "q")

    def check(stage: Stage) -> None:
        assert [(result.reason, result.attempt) for result in stage.reported] == [("lost", 3)]
        stage.check({0: "a"})

    assert attack(prepare, check) > 2


def test_who_removes_a_queue(tmp_path: Path, mark: str) -> None:
    every = stages(tmp_path)
    stage = next(every)

    def prepare() -> Scene:
        nonlocal stage
        stage = next(every)
        stage.submit("a")
        stage.repair()
        return lambda: stage.queue.remove()

    number = 0
    for ending in deaths(prepare):
        number += 1
        assert ending.error == "", ending.error
        assert stage.queue.remove(), "what was begun is ended by the next"
        visible = [path for path in stage.machine.queues.iterdir() if path.name[0] != "."]
        assert visible == []
        stage.close()
    assert number > 3
