"""kill -9 before steps of a packer, and disks that are full: nothing is lost."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

from cleaning.stage import make_old
from faults.injection import Scene, deaths, run_scene
from packing.stage import Seen, Stage

NAMES = ("a", "b", "a")


def prepared(directory: Path) -> Stage:
    """A pack, and old jobs beside it."""
    stage = Stage(directory)
    for _ in range(2):
        stage.end(*NAMES)
        make_old(stage.machine.jobs, days=2)
        if not stage.packs():
            stage.pack()
    assert len(stage.packs()) == 1 and len(stage.directories()) == len(NAMES)
    return stage


def finish(stage: Stage) -> None:
    """The next packer goes on, and leaves nothing behind."""
    make_old(stage.machine.directory, days=2)
    assert stage.pack().faults == []
    assert stage.directories() == [] and len(stage.packs()) == 1
    left = sorted(path.name for path in stage.machine.packs.glob("*/*"))
    assert len(left) == 2 and left[1].startswith("index-"), left


def test_a_packer_that_is_killed_before_any_step_loses_nothing(tmp_path: Path) -> None:
    numbers = itertools.count()
    stage: Stage
    before: dict[int, Seen]

    def scene() -> Scene:
        nonlocal stage, before
        stage = prepared(tmp_path / str(next(numbers)))
        before = stage.seen()
        return stage.pack

    count = 0
    for ending in deaths(scene, stride=4):
        assert ending.error == ""
        assert stage.seen() == before, ending.steps
        finish(stage)
        assert stage.seen() == before, ending.steps
        count += 1
    assert count > 8


def test_a_packer_on_a_full_disk_loses_nothing_and_says_so(tmp_path: Path) -> None:
    for at in itertools.count(1, 8):
        stage = prepared(tmp_path / str(at))
        before = stage.seen()

        def scene(stage: Stage = stage) -> None:
            packing = stage.pack()
            assert packing.faults or packing.jobs

        ending = run_scene(scene, at, OSError(errno.ENOSPC, "No space left on device"))
        assert stage.seen() == before, at
        finish(stage)
        assert stage.seen() == before, at
        if ending.steps < at:
            break
    assert at > 20
