"""What a spawner of phases reads for its copies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import git, write

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.locks.settings import find_lock_settings, read_lock_settings
from snakemake_kochi.phases import batch_freeze, beforehand, node
from snakemake_kochi.phases.batch_freeze import batch_freeze_file, load_batch_freeze
from snakemake_kochi.phases.beforehand import Beforehand
from snakemake_kochi.phases.freeze import take_freeze

_EXPERIMENT = """
    batches:
      one: {params: {n: [1]}}
      other: {params: {n: [1]}}
    run: {script: echo}
    """


@pytest.fixture
def freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The freeze of a project with two batches, of which each had a run."""
    monkeypatch.setattr(beforehand, "_LOOK_INTERVAL", 0.0)
    find_lock_settings.cache_clear()
    directory = tmp_path / "project"
    write(directory / "kochi.yaml", "")
    write(directory / "sum.yaml", _EXPERIMENT)
    git(directory, "init", "--quiet")
    file = take_freeze(directory, "local").file
    for batch in ("one", "other"):
        load_batch_freeze(file, "sum.yaml", batch)
    yield file
    batch_freeze._known.clear()
    node._known.clear()


def _read(freeze: Path, batch: str, known: Beforehand) -> None:
    known.read(["run", "sum.yaml", f"--batch={batch}"], {"KOCHI_FREEZE": str(freeze)})


def test_the_runs_of_a_batch_have_its_freeze_and_the_hardware_without_reading_them(
    freeze: Path,
) -> None:
    before = load_batch_freeze(freeze, "sum.yaml", "one")
    known = Beforehand()
    _read(freeze, "one", known)
    assert load_batch_freeze(freeze, "sum.yaml", "one") == before
    assert load_batch_freeze(freeze, "sum.yaml", "one") is load_batch_freeze(
        freeze, "sum.yaml", "one"
    )
    assert node.hardware() == node.hardware(Path("//"))


def test_the_runs_of_a_batch_know_the_settled_locks(freeze: Path) -> None:
    _read(freeze, "one", Beforehand())
    paths = load_batch_freeze(freeze, "sum.yaml", "one").paths
    found = find_lock_settings(paths.machine("local"))
    assert find_lock_settings.cache_info().hits
    assert found == read_lock_settings(paths.machine("local"))


def test_the_last_batch_is_the_one_that_is_known(freeze: Path) -> None:
    known = Beforehand()
    for batch in ("one", "other"):
        _read(freeze, batch, known)
        assert [each.batch for each in batch_freeze._known.values()] == [batch]
        assert load_batch_freeze(freeze, "sum.yaml", batch).batch == batch


def test_a_freeze_that_was_damaged_since_is_not_known_any_more(freeze: Path) -> None:
    known = Beforehand()
    _read(freeze, "one", known)
    batch_freeze_file(freeze, "sum.yaml", "one").write_text("{")
    _read(freeze, "one", known)
    with pytest.raises(DamagedFileError):
        load_batch_freeze(freeze, "sum.yaml", "one")


def test_nothing_is_known_of_the_first_run_of_a_batch_and_of_other_phases(freeze: Path) -> None:
    batch_freeze_file(freeze, "sum.yaml", "one").unlink()
    known = Beforehand()
    _read(freeze, "one", known)
    known.read(["build", "sum.yaml", "--batch=other"], {"KOCHI_FREEZE": str(freeze)})
    known.read(["run", "sum.yaml"], {})
    assert not batch_freeze._known
    # What the first run has written is found by the next one.
    load_batch_freeze(freeze, "sum.yaml", "one")
    _read(freeze, "one", known)
    assert batch_freeze._known
