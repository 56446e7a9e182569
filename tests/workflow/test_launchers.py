"""Launchers and quietness in real runs on this computer, and what makes them stale."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON_PATH, REPOSITORY, git, run, write

pytestmark = pytest.mark.phases

KOCHI = """
machines:
  local:
    # The tests may be root.
    load_env_script: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    launchers:
      gone: kochi-has-no-such-program -n {tasks}
    quiet: {load: 0, governor: any}
"""
EXPERIMENT = """
run:
  launcher: $launcher
  resources: {tasks: $tasks, cpus_per_task: 1}
  script: |
    sleep 1.1
    $KOCHI_LAUNCH grep Cpus_allowed_list /proc/self/status
batches:
  all:
    params: {launcher: [none, mpirun, gone], tasks: 1}
    artifacts:
      - {type: stdout, dest: "out/${launcher}.txt"}
      - {type: stats, dest: "out/${launcher}.json"}
"""
WORKFLOW = ("--snakefile", str(REPOSITORY / "workflow" / "Snakefile"))
EXECUTOR = ("--executor", "kochi", "--jobs", "10", "--keep-going")


def snakemake(directory: Path, *arguments: str) -> Any:
    command = (sys.executable, "-m", "snakemake", *WORKFLOW, *EXECUTOR, *arguments)
    return run(*command, cwd=directory)


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, str, dict[str, str]]]:
    """A project whose batch has run, what Snakemake said, and its KOCHI_ROOT."""
    directory = tmp_path_factory.mktemp("launchers") / "project"
    directory.mkdir()
    write(directory / "kochi.yaml", KOCHI)
    write(directory / "bench.yaml", EXPERIMENT)
    git(directory, "init", "--quiet")
    git(directory, "add", ".")
    git(directory, "commit", "--quiet", "--message", "bench")
    variables = {
        "KOCHI_ROOT": str(directory.parent / "root"),
        "HOME": str(directory.parent),
        "KOCHI_SITE_CONF": "",
        "PYTHONPATH": PYTHON_PATH,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        done = snakemake(directory, "bench_all", "--config", "kochi_batch=bench_all")
    yield directory, done.stdout, variables
    shutil.rmtree(directory.parent)


def record(directory: Path, name: str) -> dict[str, Any]:
    found = json.loads((directory / f"results/local/out/{name}.json").read_text())
    assert isinstance(found, dict)
    return found


def test_a_task_and_a_script_have_the_cpus_that_their_record_says(
    finished: tuple[Path, str, dict[str, str]],
) -> None:
    directory = finished[0]
    for launcher in ("none", "mpirun"):
        printed = (directory / f"results/local/out/{launcher}.txt").read_text()
        binding = record(directory, launcher)["binding"]
        assert f"Cpus_allowed_list:\t{binding['cpus']}\n" in printed
    line = record(directory, "mpirun")["launcher"]["line"]
    assert line == "mpirun -n 1 --host localhost:1 --map-by ppr:1:node --bind-to none"
    assert record(directory, "none")["launcher"] is None


def test_a_launcher_without_a_program_is_told_with_what_to_do(
    finished: tuple[Path, str, dict[str, str]],
) -> None:
    said = finished[1]
    assert "the launcher gone needs a program kochi-has-no-such-program, and there is none" in said
    assert "machines: local: launchers: {gone: ...}" in said
    assert "command not found" not in said


def test_a_node_that_is_not_quiet_is_told_in_the_table(
    finished: tuple[Path, str, dict[str, str]],
) -> None:
    directory = finished[0]
    # Snakemake itself uses the CPUs of this computer.
    noise = record(directory, "none")["noise"]
    assert noise["other_cpus"] > 0
    with (directory / "results/local/bench/all.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert all(row["run_warnings"].startswith("load: other processes used ") for row in rows)
    table = (directory / "results/local/bench/all.md").read_text()
    assert "The node was not quiet in 2 of 2 runs: load in 2 of 2 (other processes used " in table


def test_only_what_a_launcher_does_makes_a_run_stale(
    finished: tuple[Path, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, _, variables = finished
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    results = [f"results/local/out/{name}.txt" for name in ("none", "mpirun")]
    write(directory / "kochi.yaml", KOCHI.replace("load: 0", "load: any"))
    write(directory / "bench.yaml", EXPERIMENT.replace("cpus_per_task: 1", "cpus_per_task: 2"))
    assert "Nothing to be done" in snakemake(directory, "-n", *results).stdout
    # Two tasks are another measurement, for a run that starts them by its launcher.
    write(directory / "bench.yaml", EXPERIMENT.replace("tasks: $tasks", "tasks: 2"))
    planned = snakemake(directory, "-n", *results).stdout
    assert "launcher=mpirun" in planned
    assert "launcher=none" not in planned
