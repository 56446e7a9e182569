"""What a batch costs grows with its points and no faster. Counted, not timed: calls of functions,
of git, files that are opened, modules that are loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import git

from snakemake_kochi.artifacts.journal import note_commit, pending
from snakemake_kochi.artifacts.promises import promise_to_commit
from snakemake_kochi.paths import ProjectPaths, Root

# Counts what Python calls in a dry run.
COUNT_CALLS = """
import cProfile, pstats, sys
from snakemake.cli import main
profile = cProfile.Profile()
try:
    profile.runcall(main, sys.argv[1:])
except SystemExit as end:
    assert not end.code, end
print("calls:", pstats.Stats(profile).total_calls)
"""
# One run of a batch, which says what it opened and loaded.
RUN = """
import json, sys
opened = []
sys.addaudithook(lambda event, given: event == "open" and opened.append(str(given[0])))
from snakemake_kochi.phases.__main__ import main
status = main(sys.argv[1:])
print("seen:", json.dumps({"opened": opened, "loaded": list(sys.modules)}))
sys.exit(status)
"""


def calls_of_a_dry_run(project: Any, points: int) -> int:
    words = ["-n", "--quiet", "all", "--executor", "local", "--cores", "2", "sum_first"]
    text = (project.directory / "sum.yaml").read_text()
    (project.directory / "sum.yaml").write_text(
        text.replace("params: {n: [1, 2]}", f"params: {{n: {list(range(points))}}}")
    )
    command = [sys.executable, "-c", COUNT_CALLS, *words]
    done = subprocess.run(
        command, cwd=project.directory, capture_output=True, text=True, check=True
    )
    (project.directory / "sum.yaml").write_text(text)
    return int(done.stdout.rpartition("calls:")[2])


def test_the_work_of_a_dry_run_per_point_does_not_grow_with_the_batch(project: Any) -> None:
    small, medium, large = (calls_of_a_dry_run(project, points) for points in (20, 80, 260))
    first, second = (medium - small) / 60, (large - medium) / 180
    print(f"{first:.0f} calls per point, then {second:.0f}")
    assert second <= 1.1 * first


@pytest.fixture
def git_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list that each call of git adds a line to."""
    real = subprocess.run(
        ["which", "git"], capture_output=True, text=True, check=True
    ).stdout.strip()
    calls, directory = tmp_path / "calls", tmp_path / "bin"
    directory.mkdir()
    calls.write_text("")
    (directory / "git").write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {real} "$@"\n')
    (directory / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)
    return calls


def project_paths(project: Any) -> ProjectPaths:
    return Root.find().project(project.directory)


@contextmanager
def burst(paths: ProjectPaths) -> Iterator[None]:
    """Other runs commit again and again, however slow this computer is, and one has promised to."""
    is_over = threading.Event()

    def commit() -> None:
        while not is_over.wait(0.2):
            note_commit(paths, "local")

    note_commit(paths, "local")
    others = threading.Thread(target=commit)
    others.start()
    try:
        with promise_to_commit(paths, "local"):
            yield
    finally:
        is_over.set()
        others.join()


def run_point(project: Any, number: int) -> dict[str, Any]:
    """Do one point of the finished project's batch again, as its rule does."""
    directory: Path = project.directory
    state = directory / ".snakemake/kochi/local"
    (build,) = state.glob("builds/**/build.json")
    installs = sorted(state.glob("installs/*/*/*/manifest.json"))
    installs = [path for path in installs if path.parent.parent.name in ("one", "fast")]
    (freeze,) = Path(os.environ["KOCHI_ROOT"]).glob("projects/*/freezes/*.json")
    words = ["run", "sum.yaml", "--batch=first", "--parameters", f"n={number}", "debug=0"]
    words += ["--duplicate", "0", "--build", str(build), "--installs", *map(str, installs)]
    stem = f"results/local/sum/first/{number}_0"
    words += ["--output", str(state / "record.json"), "--artifacts"]
    words += [f"{stem}.log", f"{stem}.txt", f"{stem}.json"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN, *words],
        cwd=directory,
        env={**os.environ, "KOCHI_FREEZE": str(freeze)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    seen: dict[str, Any] = json.loads(done.stdout.rpartition("seen:")[2])
    return seen


def test_runs_of_a_burst_call_no_git_and_the_next_run_of_snakemake_commits_them_at_once(
    finished_project: Any, git_calls: Path
) -> None:
    git_calls.write_text("")
    with burst(project_paths(finished_project)):
        for number in (1, 2):
            run_point(finished_project, number)
    assert git_calls.read_text() == ""
    journal = Path(os.environ["KOCHI_ROOT"]).glob("projects/*/artifacts/local/journal/*")
    assert len(list(journal)) == 2

    finished_project.snakemake("install_base_one", "-n")
    journal = Path(os.environ["KOCHI_ROOT"]).glob("projects/*/artifacts/local/journal/*")
    assert len(list(journal)) == 2, "a dry run commits nothing"

    finished_project.snakemake("install_base_one")
    log = git(finished_project.directory, "log", "--format=%s", "kochi_artifacts_local")
    assert log.splitlines()[0] == "sum.first: 2 results from local"


def test_a_run_that_outlives_the_snakemake_that_started_it_commits_at_once(
    finished_project: Any,
) -> None:
    for number in (1, 2):
        run_point(finished_project, number)
        assert pending(project_paths(finished_project), "local") == ()
    log = git(finished_project.directory, "log", "--format=%s", "kochi_artifacts_local")
    assert log.splitlines()[:2] == ["sum.first: 1 result from local"] * 2


def test_a_run_loads_no_library_and_reads_no_grid(finished_project: Any) -> None:
    with burst(project_paths(finished_project)):
        seen = run_point(finished_project, 1)
    libraries = {"git", "yaml", "jsonschema", "pandas", "matplotlib", "snakemake", "psutil"}
    libraries |= {"filelock", "humanfriendly", "numpy", "scipy"}
    assert libraries.intersection(seen["loaded"]) == set()
    read = [path for path in seen["opened"] if "/freezes/" in path]
    assert read, "what the batch was frozen to"
    assert not any(Path(path).parent.name == "freezes" for path in read)
    # Those of the build are copied.
    own = [path for path in seen["opened"] if not {"tree", "workspace"} & {*Path(path).parts}]
    assert not any(path.endswith(".yaml") for path in own)


def test_what_a_run_reads_of_its_batch_is_as_large_for_a_large_grid(project: Any) -> None:
    sizes = []
    values = "[1, 2]"
    for count in (2, 300):
        project.edit("sum.yaml", f"n: {values}", f"n: {(new := list(range(1, count + 1)))}")
        values = str(new)
        project.commit()
        project.snakemake("results/local/sum/first/1_0.log")
        newest = max(
            Path(os.environ["KOCHI_ROOT"]).glob("projects/*/freezes/*/*.json"),
            key=lambda path: path.stat().st_mtime_ns,
        )
        text = newest.read_text()
        sizes.append(len(text.replace(str(json.loads(text)["seed"]), "")))  # of 1 to 10 digits
        (project.directory / "results/local/sum/first/1_0.log").unlink()
    assert sizes[0] == sizes[1]
