"""Real filesystems answer as the simulated one: each call of a scene is done in both."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem
from gluster import GlusterVolume

from simulator.mirror import Mirror
from simulator.scenes import SCENES, tell
from simulator.world import World

# Where nodes see what another one did a moment ago, a file may still have the name of before: who
# reads it so takes nothing, because the rename is asked next. Worlds with caches play that.
READ_BY_AN_OLD_NAME = re.compile("read .*: FileNotFoundError.* in memory, ")


def differences(mounts: Sequence[Path], scenes: Sequence[str]) -> Iterator[str]:
    for number, name in enumerate(scenes):
        for mount in mounts:
            (mount / str(number)).mkdir(exist_ok=True)
        with ExitStack() as stack:
            world = World()
            world.tree = mirror = Mirror(world, [each / str(number) for each in mounts], stack)
            assert not tell(SCENES[name], world).problems
            assert mirror.asked > 100
            yield from mirror.different


@pytest.mark.parametrize("parent", [None, "/dev/shm"])
def test_the_filesystems_of_one_node(parent: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        assert [*differences([Path(directory)], [*SCENES])] == []


def test_two_nodes_of_a_filesystem_with_caches(tmp_path: Path) -> None:
    both = tmp_path / "both"
    with (
        FaultyFilesystem(both, tmp_path / "one", 1.0) as one,
        FaultyFilesystem(both, tmp_path / "two", 1.0) as two,
    ):
        assert [*differences([one.path, two.path], [*SCENES])] == []


def test_two_nodes_of_glusterfs() -> None:
    with GlusterVolume() as volume:
        mounts = [volume.mount("first"), volume.mount("second")]
        scenes = ["two workers, one dies", "cancel against finish", "a run dies and is adopted"]
        found = differences(mounts, scenes)
        assert [each for each in found if not READ_BY_AN_OLD_NAME.match(each)] == []
