"""The filesystem of the simulator answers as a real one does, call by call."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from simulator.tree import Tree
from simulator.world import World, WorldDisk
from snakemake_kochi.base import files

NAMES = ("a", "b", "c")
CALLS = 300


def answer(disk: Any, call: str, *arguments: Any) -> Any:
    """What a call returns, or its error's number."""
    try:
        found = getattr(disk, call)(*arguments)
    except OSError as error:
        return error.errno
    return set(found) if call == "listed" else found


def calls(seed: int, base: str) -> Any:
    chosen = random.Random(seed)

    def path() -> str:
        return "/".join([base, *(chosen.choice(NAMES) for _ in range(chosen.randint(1, 3)))])

    for _ in range(CALLS):
        call = chosen.choice(("listed", "move", "move", "make", "make", "write", "read", "unlink"))
        if call == "move":
            yield call, path(), path()
        elif call == "write":
            flags = chosen.choice((os.O_CREAT | os.O_EXCL, os.O_CREAT, os.O_APPEND))
            yield call, path(), chosen.choice((b"x", b"longer")), flags, False
        else:
            yield chosen.choice((call, "rmdir")), path()


@pytest.mark.parametrize("seed", range(20))
def test_the_simulated_filesystem_answers_as_a_real_one(seed: int, tmp_path: Path) -> None:
    simulated = World()
    simulated.tree = Tree()
    model = WorldDisk(simulated)
    for parent in (*reversed(tmp_path.parents), tmp_path):
        if parent != Path("/"):
            model.make(str(parent))
    for call, *arguments in calls(seed, str(tmp_path)):
        assert answer(model, call, *arguments) == answer(files, call, *arguments), call


def test_a_late_answer_is_done_later() -> None:
    """What makes reconciling necessary: a server acts on a request that was given up."""
    from simulator.world import Fault

    world = World(faults={("late", 1): Fault(110, late=20.0)})
    disk = WorldDisk(world)
    errors: list[int | None] = []

    def process() -> None:
        try:
            disk.make("/d")
        except OSError as error:
            errors.append(error.errno)

    world.start("late", "n", process)
    world.run(10.0)
    assert (errors, world.tree.names("")) == ([110], [])
    world.run(20.0)
    assert world.tree.names("") == ["d"]
