"""Signs of life; and that the protocol asks only `base` for time and files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from simulator.actors import LAYOUT, QUEUE, content
from simulator.world import World
from snakemake_kochi import tickets
from snakemake_kochi.base import files
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.moving import removed
from snakemake_kochi.tickets.names import Layout
from snakemake_kochi.tickets.run import Run
from snakemake_kochi.tickets.watching import INTERVAL, SILENT, Beat, FencedError, Pulse, line_of

ALIVE = "/k/alive"


@pytest.fixture
def world():
    world = World()
    world.tree.make("/k")
    with world.in_place():
        files.overwrite(ALIVE, b"1")
        yield world


def looks(world: World, *seconds: float) -> list[float]:
    """The intervals of silence that an observer has counted when it looks after these pauses."""
    pulse = Pulse(ALIVE)
    counted = [pulse.look()]
    for pause in seconds:
        world.run(pause)
        counted.append(pulse.look())
    return counted


def test_silence_is_counted_on_the_observers_clock(world: World) -> None:
    assert looks(world, *[INTERVAL] * SILENT)[-1] == SILENT


def test_an_observer_that_slept_finds_nobody_dead(world: World) -> None:
    assert looks(world, 10_000.0)[-1] < SILENT


def test_a_file_that_cannot_be_read_is_no_silence(world: World) -> None:
    pulse = Pulse(ALIVE)
    pulse.look()
    world.tree.unlink(ALIVE)
    for _ in range(100):
        world.run(INTERVAL)
        pulse.look()
    files.overwrite(ALIVE, b"1")
    assert pulse.look() < SILENT


def test_silence_is_counted_also_when_the_directory_was_removed(world: World) -> None:
    world.tree.make("/k/workers")
    files.make("/k/workers/w")
    pulse = Pulse("/k/workers/w/alive")
    files.rmdir("/k/workers/w")
    for _ in range(SILENT + 1):
        world.run(INTERVAL)
        pulse.look()
    assert pulse.look() >= SILENT


def test_a_sign_of_life_ends_the_silence(world: World) -> None:
    pulse = Pulse(ALIVE)
    for _ in range(SILENT - 1):
        world.run(INTERVAL)
        pulse.look()
    files.overwrite(ALIVE, b"2")
    assert pulse.look() == 0.0


def test_a_process_whose_loop_hangs_gives_no_sign(world: World) -> None:
    beat = Beat(ALIVE, lambda: None)
    world.run(10 * INTERVAL)
    beat.beat()
    assert files.read(ALIVE) == b"1"
    beat.feed()
    beat.beat()
    assert files.read(ALIVE) == b"%012d" % 1


def test_a_worker_whose_directory_was_removed_is_fenced(world: World) -> None:
    life = WorkerLife(Layout("/k"), "w")
    life.look()
    removed(life.paths.directory)
    with pytest.raises(FencedError):
        life.look()


@pytest.mark.parametrize(("looks", "details"), [(2, {"outputs": {}}), (4, None)])
def test_an_end_is_read_five_times_however_slow_the_server_is(
    world: World, looks: int, details: object
) -> None:
    run = Run.begin(LAYOUT, "/work")
    run.submit(QUEUE, {"j": content("j")})
    (name,) = Claims(LAYOUT, QUEUE, WorkerLife(LAYOUT, "w")).claim(lambda *_: True)
    ended = f"{run.paths.inbox}/{name.ended('success')}"
    files.move(f"{LAYOUT.queue(QUEUE).running}/{name}", ended)
    for _ in range(looks):
        assert run.collect() == []
        world.run(40.0)
    if details is not None:
        files.append(ended, line_of(name, "success", details))
    (end,) = run.collect()
    assert end.line.get("details") == details


@pytest.mark.parametrize("module", sorted(Path(tickets.__file__).parent.glob("*.py")), ids=str)
def test_the_protocol_asks_only_base_for_time_and_files(module: Path) -> None:
    tree = ast.parse(module.read_text())
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
        )
    }
    assert not imported & {"os", "time", "shutil", "io", "tempfile", "threading", "subprocess"}
    touching = {"read_text", "read_bytes", "write_text", "exists", "iterdir", "stat", "glob"}
    assert not touching & {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
