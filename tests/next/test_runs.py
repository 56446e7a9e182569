"""The runs of a directory as other commands see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from snakemake_kochi.cli.unlock import _dead_next, unlock_dead_run
from snakemake_kochi.errors import KochiError
from snakemake_kochi.next.runs import facts_of_run
from snakemake_kochi.next.views import layout_of
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import Node
from snakemake_kochi.tickets import watching
from snakemake_kochi.tickets.run import Run

ELSEWHERE = Node("elsewhere", "machine", "boot", "pid:[1]")


@pytest.fixture
def locked(
    isolated_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[MachinePaths, Run, Path]:
    """A directory that a run on another host has locked, that run, and the lock."""
    monkeypatch.setattr(watching, "INTERVAL", 0.1)
    monkeypatch.setattr("snakemake_kochi.cli.unlock.IS_NEXT", True)
    lock = tmp_path / "0.output.lock"
    lock.touch()
    root = Root(isolated_environment)
    machine = root.machine("local")
    root.secure(machine.directory)
    facts = facts_of_run(None, ["mine.csv"], [str(lock)]) | {"node": asdict(ELSEWHERE)}
    return machine, Run.begin(layout_of(machine), str(tmp_path), facts), lock


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
        _dead_next(machine, lock.parent, "mine.csv", beat)
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
