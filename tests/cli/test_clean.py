"""`kochi clean`: what it says, asks and refuses. What it deletes is tested in tests/cleaning."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cleaning.stage import Stage, make_old
from support import git, write

from snakemake_kochi.paths import Root, SentPaths

from .conftest import Outcome

Kochi = Callable[..., Outcome]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setenv("KOCHI_ROOT", str(Root(stage.root.directory).directory))
    monkeypatch.chdir(tmp_path)
    stage.submit("fib_1", "fib_2")
    stage.end(2, stage.worker())
    stage.make_jobs_old()
    return stage


def test_a_dry_run_shows_a_table_and_deletes_nothing(stage: Stage, kochi: Kochi) -> None:
    outcome = kochi("clean", "--dry-run")
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert re.fullmatch(r"Would delete +Number +Inodes +Size", lines[0])
    assert re.fullmatch(r"jobs +2 +\d+ +\d+ KiB", lines[2])
    assert stage.jobs() == [0, 1]


def test_projects_of_other_computers_stay_and_old_ones_are_named(
    stage: Stage, kochi: Kochi, tmp_path: Path
) -> None:
    places = [
        SentPaths.of(stage.root.directory, tmp_path / name, "laptop") for name in ("old", "new")
    ]
    for place in places:
        content = {"version": 1, "sources": {}, "directory": f"/home/ada/{place.project.name}"}
        write(place.note(place.project), json.dumps(content))
    make_old(places[0].note(places[0].project))
    outcome = kochi("clean", "-y", "--after", "0")
    assert outcome.status == 0
    assert all(place.project.exists() for place in places)
    assert "The project /home/ada/old of another computer was last used on" in outcome.err
    assert f"rm -rf {places[0].directory}\n" in outcome.err
    assert "/home/ada/new" not in outcome.err


def test_without_an_answer_nothing_is_deleted_and_with_one_it_is(
    stage: Stage, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    outcome = kochi("clean")
    assert outcome.status == 1
    assert "no answer was given; nothing was changed" in outcome.err
    assert stage.jobs() == [0, 1]
    outcome = kochi("clean", "-y", "--keep", "fib_2", "--json")
    data = json.loads(outcome.out)
    assert data["deleted"] is True
    assert data["freed"]["jobs"]["count"] == 1
    assert data["total"]["inodes"] >= 4
    assert stage.jobs() == [1]
    assert kochi("clean", "-y").status == 0
    assert kochi("clean", "-y").err == "There is nothing to delete.\n"


def test_a_wrong_age_size_or_kind_is_named(stage: Stage, kochi: Kochi) -> None:
    for words, said in (
        (("--jobs", "soon"), "'--jobs': 'soon': a time like 12h, 30d or 0 was expected"),
        (("--after", "-3d"), "'--after': '-3d'"),
        (("--builds-above", "many"), "an amount of disk space like 512M or 50G was expected"),
        (("--keep", "build:x"), "there is no kind 'build' to keep, did you mean 'builds'?"),
        (("--keep", "jobs:"), "the pattern of a name was expected"),
    ):
        outcome = kochi("clean", *words)
        assert outcome.status == 2, words
        assert said in outcome.err
    assert stage.jobs() == [0, 1]


def test_ages_and_names_of_kochi_yaml_count_and_options_override_them(
    stage: Stage, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = stage.directory / "project"
    write(
        project / "kochi.yaml",
        """
        machines:
          local:
            clean: {after: 90d, keep: "fib_1"}
        """,
    )
    git(project, "init", "-q")
    monkeypatch.chdir(project)
    assert kochi("clean", "-n").err == "There is nothing to delete.\n"
    assert kochi("clean", "-y", "--jobs", "30d").status == 0
    assert stage.jobs() == [0]
    for clean, said in (
        ("{jobs: soon}", "kochi.yaml:3: machines.local.clean.jobs: 'soon': a time like 12h"),
        ("{job: 3d}", "local.clean.job: unknown key, did you mean 'jobs'?"),
        ("{keep: ['build:x']}", "did you mean 'builds'?"),
    ):
        write(project / "kochi.yaml", f"machines:\n  local:\n    clean: {clean}\n")
        outcome = kochi("clean", "-y")
        assert outcome.status == 1
        assert said in outcome.err, clean


def test_a_machine_without_files_is_no_error(
    tmp_path: Path, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    outcome = kochi("clean", "-y")
    assert outcome.status == 0
    assert outcome.out.startswith("There is nothing of machine local in ")
    assert not os.path.exists(tmp_path / "none")
