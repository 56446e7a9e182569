"""Builds and installations: deleted when they were not used for long, never while one uses them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from cleaning.stage import Stage, make_old

from snakemake_kochi.artifacts.promises import promise_to_commit
from snakemake_kochi.cleaning import projects
from snakemake_kochi.files import make_directory, note_use, to_json
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.paths import ProjectPaths, WorkingPaths
from snakemake_kochi.phases.make import Install
from snakemake_kochi.phases.products import Build, scratch_directory, write_build, write_manifest
from snakemake_kochi.tickets.ticket import Ticket

RECIPE = ("tool", "fast")


@dataclass
class Made:
    stage: Stage
    project: ProjectPaths

    def build(self, digest: str, size: int = 1) -> Build:
        place = self.project.build("local", digest)
        make_directory(place.tree)
        (place.tree / "program").write_bytes(b"x" * size)
        content = {"version": 1, "snapshot": "0" * 40, "experiment": f"{digest}.yaml"}
        place.manifest.write_bytes(to_json(content))
        make_old(place.directory)
        return Build(digest, place.tree)

    def install(self, digest: str, is_current: bool = False) -> Install:
        place = self.project.install("local", *RECIPE, digest)
        make_directory(place.prefix)
        install = Install(*RECIPE, digest, str(place.prefix), {})
        content = to_json({"version": 1, **vars(install), "depends": []})
        place.manifest.write_bytes(content)
        make_old(place.directory)
        if is_current:
            self.project.current_install("local", *RECIPE).write_text(digest)
        return install

    @property
    def builds(self) -> set[str]:
        return set(os.listdir(self.project.builds("local")))

    @property
    def installs(self) -> set[str]:
        return set(os.listdir(self.project.recipe("local", *RECIPE))) - {"current"}


@pytest.fixture
def made(stage: Stage) -> Made:
    find_lock_settings(stage.machine)
    project = stage.project()
    made = Made(stage, project)
    freeze = project.freeze("f" * 32)
    make_directory(freeze.parent)
    snapshot = {"tree": "0" * 40}
    repository = str(stage.directory / "project")
    data = {"version": 1, "directory": repository, "machine": "local", "snapshot": snapshot}
    freeze.write_bytes(to_json(data))
    return made


def test_a_build_goes_when_no_run_has_used_it_for_long(made: Made) -> None:
    made.build("old")
    note_use(made.project.build("local", made.build("used").digest).manifest)
    report = made.stage.clean()
    assert made.builds == {"used"}
    # The directory, the tree, the program and the manifest.
    assert (report.freed["builds"].count, report.freed["builds"].inodes) == (1, 4)


def test_the_builds_above_a_size_go_and_the_one_not_used_for_longest_goes_first(made: Made) -> None:
    for days, digest in enumerate(("day1", "day2", "day3"), 1):
        made.build(digest, 100_000)
        make_old(made.project.build("local", digest).directory, days)
    made.stage.clean(builds_above=250_000)
    assert made.builds == {"day1", "day2"}
    made.stage.clean(builds_above=0, keep=("builds:day2.yaml",))
    assert made.builds == {"day2"}


def test_a_build_stays_as_long_as_the_workspace_of_a_living_process_names_it(made: Made) -> None:
    build = made.build("used")
    with scratch_directory(made.project.workspaces("local"), [build]):
        made.stage.clean()
        assert made.builds == {"used"}
    made.stage.clean()
    assert made.builds == set()


def test_what_was_prepared_goes_as_builds_do(made: Made) -> None:
    parent = make_directory(made.project.all_prepared("local"))
    for digest in ("old", "used", "kept"):
        os.rename(made.project.build("local", made.build(digest).digest).directory, parent / digest)
    used = Build("used", made.project.prepared("local", "used").tree)
    with scratch_directory(made.project.workspaces("local"), [Build("other", Path()), used]):
        report = made.stage.clean(keep=("prepared:kept.yaml",))
        assert set(os.listdir(parent)) == {"used", "kept"}
    assert {kind: freed.count for kind, freed in report.freed.items()} == {"prepared": 1}
    note_use(made.project.prepared("local", "kept").manifest)
    made.stage.clean()
    assert set(os.listdir(parent)) == {"kept"}


def test_a_build_stays_while_it_is_made(made: Made) -> None:
    made.build("digest")
    made.project.build("local", "digest").manifest.unlink()  # as after a failed build
    make_old(made.project.build("local", "digest").directory)
    locks = find_lock_settings(made.stage.machine)
    with locks.hold(locks.paths.project(made.project.directory).build("digest")):
        made.stage.clean()
        assert made.builds == {"digest"}
    made.stage.clean()
    assert made.builds == set()


def _after_moving_aside(monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]) -> None:
    """Have another process act at the worst moment."""
    move_aside = projects.move_aside

    def move_and_act(path: Path) -> Path | None:
        aside = move_aside(path)
        act(path)
        return aside

    monkeypatch.setattr(projects, "move_aside", move_and_act)


def test_a_build_that_a_run_began_to_use_just_before_goes_back(
    made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build = made.build("used")
    with ExitStack() as stack:
        run = scratch_directory(made.project.workspaces("local"), [build])
        _after_moving_aside(monkeypatch, lambda _: stack.enter_context(run))
        made.stage.clean()
        assert made.builds == {"used"}
        assert (build.tree / "program").exists()


def test_a_build_that_a_run_looked_for_just_before_goes_back(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main process of a run, whatever its executor: it has promised to commit, and then looks
    which of the builds in its working directory exist."""
    build = made.build("named")
    made.build("other")
    install = made.install("named")
    made.install("other")
    working = WorkingPaths(made.stage.directory / "project", "local")
    write_build(working.state / "builds" / "build_sum" / "key" / "build.json", build)
    manifest = working.state / "installs" / "tool" / "fast" / "key" / "manifest.json"
    write_manifest(manifest, "local", [install])
    with promise_to_commit(made.project, "local"):
        made.stage.clean()
        assert (made.builds, made.installs) == ({"named"}, {"named"})
    stack = promise_to_commit(made.project, "local")
    began: list[object] = []
    _after_moving_aside(monkeypatch, lambda _: began or began.append(stack.__enter__()))
    made.stage.clean()
    assert (made.builds, made.installs) == ({"named"}, {"named"})
    stack.__exit__(None, None, None)
    made.stage.clean()
    assert (made.builds, made.installs) == (set(), set())


def test_a_clean_up_that_was_killed_loses_no_build_that_is_used(made: Made) -> None:
    build = made.build("used")
    place = made.project.build("local", "used").directory
    place.rename(place.with_name(".aside-0123-used"))
    with scratch_directory(made.project.workspaces("local"), [build]):
        made.stage.clean()
    assert made.builds == {"used"}


def test_the_current_installation_stays_and_so_does_one_that_a_job_names(made: Made) -> None:
    made.install("used", is_current=True)
    made.install("named")
    made.install("unused")
    words = ("python", "--install", "tool:fast:named", "--", "true")
    environment = {"KOCHI_FREEZE": str(made.project.freeze("f" * 32))}
    made.stage.submit("other")
    made.stage.submit_tickets(Ticket("job", words, "/", environment=environment))
    made.stage.clean()
    assert made.installs == {"used", "named"}


def test_an_installation_stays_while_a_program_has_it_in_its_environment(made: Made) -> None:
    install = made.install("used")
    made.install("unused")
    variables = {**os.environ, "KOCHI_INSTALL_PREFIX_TOOL": install.prefix}
    process = subprocess.Popen(["sleep", "1000"], env=variables)
    try:
        made.stage.clean()
        assert made.installs == {"used"}
    finally:
        process.kill()
        process.wait()
    made.stage.clean(keep=("tool:*",))
    assert made.installs == {"used"}
    made.stage.clean()
    assert made.installs == set()
