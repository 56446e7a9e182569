"""The runs of a directory as other commands see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from snakemake_kochi.cli.unlock import _dead_runs, unlock_dead_run
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import Node
from snakemake_kochi.queue.runs import facts_of_run
from snakemake_kochi.tickets import watching
from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.run import Run

ELSEWHERE = Node("elsewhere", "machine", "boot", "pid:[1]")


@pytest.fixture
def locked(
    isolated_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[MachinePaths, Run, Path]:
    """A directory that a run on another host has locked, that run, and the lock."""
    monkeypatch.setattr(watching, "INTERVAL", 0.1)
    lock = tmp_path / "0.output.lock"
    lock.touch()
    root = Root(isolated_environment)
    machine = root.machine("local")
    root.secure(machine.directory)
    facts = facts_of_run(None, ["mine.csv"], [str(lock)]) | {"node": asdict(ELSEWHERE)}
    return machine, Run.begin(machine.layout, str(tmp_path), facts), lock


def unlock(machine: MachinePaths, lock: Path, wanted: str = "mine.csv") -> None:
    unlock_dead_run(machine, lock.parent, wanted, True, "this")


def test_a_run_on_another_host_is_dead_when_it_gives_no_sign_of_life(
    locked: tuple[MachinePaths, Run, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    machine, _, lock = locked
    unlock(machine, lock)
    assert "waiting for a sign of its life" in capfd.readouterr().err
    assert not lock.exists()


def test_a_run_that_lives_on_another_host_keeps_its_lock(
    locked: tuple[MachinePaths, Run, Path],
) -> None:
    machine, run, lock = locked

    def beat(_: float) -> None:
        run.beat()

    with pytest.raises(KochiError, match="is alive on elsewhere"):
        _dead_runs(machine, lock.parent, "mine.csv", beat)
    unlock(machine, lock, "other.csv")  # it makes other files
    assert lock.exists()


def anew(run: Run, lock: Path) -> None:
    lock.with_suffix(".new").touch()
    lock.with_suffix(".new").rename(lock)


def ended(run: Run, lock: Path) -> None:
    run.end()


@pytest.mark.parametrize("change", [anew, ended])
def test_the_lock_of_another_process_stays(
    locked: tuple[MachinePaths, Run, Path], change: Callable[[Run, Path], None]
) -> None:
    machine, run, lock = locked
    change(run, lock)
    unlock(machine, lock)
    assert lock.exists()


def test_who_takes_over_from_a_run_takes_all_that_it_owns(isolated_environment: Path) -> None:
    """Its journal has ends of what it took over, also if it made other files itself."""
    layout = Root(isolated_environment).machine("local").layout
    Root(isolated_environment).secure(Path(layout.directory))

    def begin(makes: str) -> Run:
        return Run.begin(layout, "/work", makes, lambda facts: True)

    begin("ab").submit("q", {"a": b"{}", "b": b"{}"})
    second = begin("ac")
    assert not second.adopt(lambda makes: "a" in makes)
    claims = Claims(layout, "q", WorkerLife(layout, "1"))
    (name,) = claims.claim(lambda name, read, claimed: True if not claimed else None)
    assert claims.finish(name, "success")
    assert [end.key for end in second.collect()] == ["a"]

    third = begin("b")
    assert not third.adopt(lambda makes: "b" in makes)
    assert [(end.key, end.name.state) for end in third.collect()] == [("a", "success")]
    assert [job.key for job in third.open] == ["b"]


def test_a_dead_run_of_other_files_is_taken_over_and_a_living_one_is_not(
    isolated_environment: Path,
) -> None:
    layout = Root(isolated_environment).machine("local").layout
    Root(isolated_environment).secure(Path(layout.directory))
    for makes in ("dead", "living"):
        Run.begin(layout, "/work", makes)
    run = Run.begin(layout, "/work", "mine", lambda facts: facts == "dead")
    assert not run.adopt(lambda makes: makes == "mine")
    assert run.parts == [3, 1]
