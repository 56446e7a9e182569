"""Versions of this package that `kochi machine setup` has put into a KOCHI_ROOT."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cleaning.stage import Stage, make_old

from snakemake_kochi.paths import EnvironmentPaths
from snakemake_kochi.queue.by_hand import note_requested
from snakemake_kochi.queue.views import RequestedWorker

DAY = 86400.0


def make_version(stage: Stage, name: str, days: float) -> Path:
    """As `kochi machine setup` makes it, last used some days ago."""
    directory = stage.root.directory / "remote"
    environment = directory / "pythons" / f"{name}-0a1b2c3d"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    EnvironmentPaths(environment).used.touch()
    (directory / f"python-{name}").symlink_to(f"pythons/{environment.name}")
    make_old(environment, days)
    return environment


def test_versions_that_were_not_used_for_long_go_with_their_links(stage: Stage) -> None:
    stage.worker()  # a machine
    old, recent = make_version(stage, "0.1.0-aa", 40), make_version(stage, "0.1.0-bb", 20)
    link = stage.root.directory / "remote" / "python-0.1.0-aa"
    assert stage.clean(is_dry=True).freed["versions"].count == 1
    assert old.is_dir()
    assert link.is_symlink()
    assert stage.clean().freed["versions"].count == 1
    assert not old.exists()
    assert not link.is_symlink()
    assert recent.is_dir()
    assert "versions" not in stage.clean(installs=0.0, keep=("versions:0.1.0-bb*",)).freed
    assert stage.clean(installs=0.0).freed["versions"].count == 1


def make_interpreter(stage: Stage, name: str, days: float) -> Path:
    """A Python that came with a setup some days ago."""
    interpreter = stage.root.directory / "remote" / "interpreters" / name
    (interpreter / "bin").mkdir(parents=True)
    (interpreter / "bin" / "python3").touch()
    EnvironmentPaths(interpreter).used.touch()
    make_old(interpreter, days)
    return interpreter


def test_a_python_goes_after_the_last_version_that_executes_it(stage: Stage) -> None:
    stage.worker()  # a machine
    version = make_version(stage, "0.1.0-aa", 20)
    needed, unused, new = (
        make_interpreter(stage, f"cpython-3.12.{number}", days)
        for number, days in enumerate((40, 40, 0.5))
    )
    python = version / "bin" / "python"
    python.unlink()
    python.symlink_to(needed / "bin" / "python3")
    assert stage.clean().freed["versions"].count == 1
    assert (needed.is_dir(), unused.is_dir(), new.is_dir()) == (True, False, True)

    # Of one that is being made, the name is hidden.
    hidden = version.rename(version.with_name(".0.1.0-aa.tmp"))
    os.utime(hidden)
    assert "versions" not in stage.clean(installs=0.0).freed
    make_old(hidden.rename(version))
    assert stage.clean(is_dry=True, installs=0.0).freed["versions"].count == 2
    assert stage.clean(installs=0.0).freed["versions"].count == 2
    assert (version.exists(), needed.exists(), new.is_dir()) == (False, False, True)


def test_a_python_that_a_killed_setup_has_made_goes_without_any_version(stage: Stage) -> None:
    stage.worker()
    left = make_interpreter(stage, ".cpython-3.12.1-aabbccdd.tmp", 2)
    unused = make_interpreter(stage, "cpython-3.12.1-aabbccdd", 2)
    freed = stage.clean(installs=0.0).freed
    assert (freed["leftovers"].count, freed["versions"].count) == (1, 1)
    assert (left.exists(), unused.exists()) == (False, False)


def test_the_version_that_cleans_up_stays(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = make_version(stage, "0.1.0-aa", 400)
    monkeypatch.setattr(sys, "prefix", str(environment))
    assert "versions" not in stage.clean(installs=0.0).freed


def test_a_version_that_a_waiting_job_names_stays(stage: Stage) -> None:
    environment = make_version(stage, "0.1.0-aa", 40)
    stage.submit("job", environment={"PYTHON": f"{environment}/bin/python"})
    assert "versions" not in stage.clean(installs=0.0).freed


def test_while_a_requested_worker_has_not_started_all_versions_stay(stage: Stage) -> None:
    make_version(stage, "0.1.0-aa", 40)
    number = stage.worker()
    Path(stage.machine.layout.worker(number).facts).unlink()
    note_requested(stage.machine, RequestedWorker(number, ["q"], "17", "kochi"))
    assert "versions" not in stage.clean(installs=0.0).freed


def test_what_killed_setups_have_left_goes_after_a_day(stage: Stage) -> None:
    stage.worker()
    make_version(stage, "0.1.0-aa", 1)
    pythons = stage.root.directory / "remote" / "pythons"
    for name, days in ((".0.1.0-bb-1.tmp", 2), (".0.1.0-bb-2.tmp", 0)):
        (pythons / name / "bin").mkdir(parents=True)
        make_old(pythons / name, days)
    stage.clean()
    assert sorted(path.name for path in pythons.glob(".*")) == [".0.1.0-bb-2.tmp"]
