"""The other controllers of a directory, as a new one sees them when it starts."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import wait_until

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.run import await_others
from snakemake_kochi.heartbeat import HEARTBEAT_INTERVAL, LOST_AFTER
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Inbox, Orphans, OtherControllers
from snakemake_kochi.queue.controllers import adopt


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def change(machine: MachinePaths, inbox: Inbox, **fields: Any) -> None:
    path = machine.controller(inbox.identity).state
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def elsewhere(
    machine: MachinePaths, directory: Path, outputs: Sequence[str] | None = ("a",)
) -> Inbox:
    """A controller on another host."""
    inbox = Inbox.create(machine, str(directory), outputs)
    node = {"host": "login1", "machine": "m", "boot": "b", "namespace": "pid:[1]"}
    change(machine, inbox, node=node, process={"pid": 77, "start": 7})
    return inbox


def others(
    machine: MachinePaths,
    directory: Path,
    clock: Clock,
    outputs: Sequence[str] | None = ("a", "b"),
    is_over: bool = False,
) -> OtherControllers:
    own = Inbox.create(machine, str(directory), outputs)
    return OtherControllers(
        machine,
        str(directory),
        own.identity,
        lambda state, is_silent: is_over and is_silent,
        clock,
    )


def test_a_controller_silent_for_long_is_dead_and_an_observer_that_slept_saw_nothing(
    machine: MachinePaths, tmp_path: Path, clock: Clock
) -> None:
    silent = elsewhere(machine, tmp_path)
    watch = others(machine, tmp_path, clock)
    (watched,) = watch.look()
    assert watched.seconds_left == LOST_AFTER * HEARTBEAT_INTERVAL
    clock.now += 10_000
    (watched,) = watch.look()
    assert watched.seconds_left == (LOST_AFTER - 3) * HEARTBEAT_INTERVAL
    for _ in range(LOST_AFTER - 4):
        clock.now += HEARTBEAT_INTERVAL
        assert watch.look()
    assert watch.dead == {}
    clock.now += HEARTBEAT_INTERVAL
    assert watch.look() == []
    assert watch.dead == {silent.identity: 2 * HEARTBEAT_INTERVAL}


def test_a_controller_with_a_sign_of_life_is_named_with_what_to_type(
    machine: MachinePaths, tmp_path: Path, clock: Clock
) -> None:
    alive = elsewhere(machine, tmp_path)
    watch = others(machine, tmp_path, clock)
    assert watch.look()
    # The counter stands still where the disk is full.
    os.utime(machine.controller(alive.identity).state)
    with pytest.raises(KochiError, match=r"is alive on login1 \(process 77,") as raised:
        watch.look()
    assert "on login1: kill -INT 77" in raised.value.sentences


def test_silence_is_not_counted_while_the_file_cannot_be_read(
    machine: MachinePaths, tmp_path: Path, clock: Clock
) -> None:
    inbox = elsewhere(machine, tmp_path)
    watch = others(machine, tmp_path, clock)
    assert watch.look()
    path = machine.controller(inbox.identity).state
    kept = path.with_name("kept")
    path.rename(kept)
    path.symlink_to(path)
    with pytest.raises(OSError) as raised:
        path.read_bytes()
    assert raised.value.errno == errno.ELOOP
    for _ in range(5 * LOST_AFTER):
        clock.now += HEARTBEAT_INTERVAL
        assert len(watch.look()) == 1
    kept.replace(path)
    (watched,) = watch.look()
    assert watched.seconds_left >= (LOST_AFTER - 3) * HEARTBEAT_INTERVAL
    assert watch.dead == {}


def test_the_length_of_the_wait_is_not_reported_before_it_is_known(
    machine: MachinePaths, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = elsewhere(machine, tmp_path)
    watch = others(machine, tmp_path, clock)
    path = machine.controller(inbox.identity).state
    kept = path.with_name("kept")
    path.rename(kept)
    path.symlink_to(path)  # ELOOP
    looks = []

    def pass_time(_: float) -> None:
        looks.append(len(caplog.messages))
        if len(looks) == 2:
            kept.replace(path)
        elif len(looks) == 3:
            machine.controller(inbox.identity).gone.touch()

    told: Any = logging.getLogger("told")
    await_others(watch, lambda queue: None, told, pass_time)
    assert looks == [0, 0, 1]
    assert f"waits {LOST_AFTER * HEARTBEAT_INTERVAL:.0f} s" in caplog.messages[0]


def test_other_sources_count_for_a_controller_that_is_silent_for_a_while(
    machine: MachinePaths, tmp_path: Path, clock: Clock
) -> None:
    inbox = elsewhere(machine, tmp_path)
    watch = others(machine, tmp_path, clock, is_over=True)
    assert watch.look()
    clock.now += 2 * HEARTBEAT_INTERVAL
    assert watch.look()
    clock.now += HEARTBEAT_INTERVAL
    assert watch.look() == []
    assert watch.dead == {inbox.identity: 2 * HEARTBEAT_INTERVAL}


@pytest.mark.parametrize(
    ("theirs", "own", "is_watched"),
    [
        (["a"], ["a", "b"], True),
        (["c"], ["a", "b"], False),
        (None, ["a"], True),
        (["c"], None, True),
        ([], ["a"], False),
    ],
)
def test_only_controllers_that_make_the_same_files_matter(
    machine: MachinePaths,
    tmp_path: Path,
    clock: Clock,
    theirs: list[str] | None,
    own: list[str] | None,
    is_watched: bool,
) -> None:
    elsewhere(machine, tmp_path, theirs)
    elsewhere(machine, tmp_path.parent)
    assert len(others(machine, tmp_path, clock, own).look()) == is_watched


def test_the_adopter_of_a_controller_that_makes_the_same_files_matters_too(
    machine: MachinePaths, tmp_path: Path, clock: Clock
) -> None:
    dead, adopter = elsewhere(machine, tmp_path, ["a"]), elsewhere(machine, tmp_path, ["z"])
    dead.leave()
    assert adopt(machine, dead.identity, adopter.identity)
    change(machine, dead, left=True)
    (watched,) = others(machine, tmp_path, clock).look()
    assert watched.state.identity == adopter.identity


def test_a_directory_is_the_same_under_another_name(
    machine: MachinePaths, tmp_path: Path, clock: Clock
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    elsewhere(machine, tmp_path / "link")
    assert len(others(machine, tmp_path / "run", clock).look()) == 1


def test_a_controller_of_an_earlier_release_is_dead_when_a_person_says_so(
    machine: MachinePaths, tmp_path: Path, clock: Clock
) -> None:
    inbox = elsewhere(machine, tmp_path)
    change(machine, inbox, heartbeat=None)
    gone = machine.controller(inbox.identity).gone
    with pytest.raises(KochiError, match="this host cannot see whether it is alive") as raised:
        others(machine, tmp_path, clock).look()
    assert f"touch {gone}" in raised.value.sentences
    gone.touch()
    assert others(machine, tmp_path, clock).look() == []


def test_a_controller_that_has_an_adopter_takes_in_and_hands_over_nothing_more(
    machine: MachinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.1")
    inbox, adopter = Inbox.create(machine, str(tmp_path)), Inbox.create(machine, str(tmp_path))
    inbox.give_signs_of_life()
    inbox.note_queue("q")
    inbox.wait(0)
    orphans = Orphans.find(machine, str(tmp_path), adopter.identity, {inbox.identity: 0})
    assert orphans.controllers == (inbox.identity,)
    wait_until(lambda: inbox.adopter)
    for call in (lambda: inbox.wait(0), lambda: inbox.note_queue("q")):
        with pytest.raises(KochiError, match=adopter.identity):
            call()
    inbox.leave()
    adopter.close()


def test_a_controller_whose_adopter_has_ended_and_removed_all_takes_in_nothing_more(
    machine: MachinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.1")
    inbox, adopter = Inbox.create(machine, str(tmp_path)), Inbox.create(machine, str(tmp_path))
    Orphans.find(machine, str(tmp_path), adopter.identity, {inbox.identity: 0}).forget()
    adopter.close()
    inbox.give_signs_of_life()
    wait_until(lambda: inbox.adopter)
    with pytest.raises(KochiError, match="another run, which has ended since, presumed"):
        inbox.wait(0)
    inbox.leave()
    assert list(machine.controllers.iterdir()) == []


def test_a_controller_whose_file_is_missing_for_a_moment_goes_on(
    machine: MachinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.1")
    inbox = Inbox.create(machine, str(tmp_path))
    inbox.give_signs_of_life()
    state = machine.controller(inbox.identity).state
    for _ in range(3):
        state.unlink()
        wait_until(lambda: state.exists() or inbox.adopter)
        assert inbox.adopter is None
    inbox.close()


@pytest.mark.parametrize("lasts", [False, True])
def test_a_damaged_file_of_an_adopter_is_read_again_before_it_counts(
    machine: MachinePaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    calls: Any,
    lasts: bool,
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.1")
    inbox = Inbox.create(machine, str(tmp_path))
    adopter = machine.controller(inbox.identity).adopter(1)
    damaged = tmp_path / "damaged"
    damaged.write_text("{")
    looks = []

    def before_open(path: str) -> None:
        """Damage the file for each look, or for every second one; otherwise there is none."""
        if path == str(adopter):
            looks.append(1)
            adopter.unlink(missing_ok=True)
            if lasts or len(looks) % 2:
                os.link(damaged, adopter)

    calls.before_open = before_open
    inbox.give_signs_of_life()
    wait_until(lambda: len(looks) >= 6 or inbox.adopter)
    assert (inbox.adopter is not None) == lasts
    assert len(looks) >= 2
    inbox.close()
