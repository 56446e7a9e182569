"""The script before the runs of a batch, in real runs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from seen import FIRST
from support import printed, run_apart, servers, wait_until, worker_command

from snakemake_kochi.artifacts.record import contradictions
from snakemake_kochi.paths import Root

from .conftest import ExampleProject, begin_project

pytestmark = pytest.mark.phases

EXPERIMENT = """
    default_params: {n: 0, size: 7}
    default_name: use_$n
    prepare:
      depend_params: [size]
      sources: [input.txt]
      script: |
        echo "prepare $KOCHI_PARAM_SIZE" >> "$RAN"
        cp input.txt "$KOCHI_PREPARED/input"
    batches:
      all:
        params: {n: [1, 2, 3, 4, 5, 6]}
        artifacts: [{type: stdout, dest: "use/${n}.log"}]
    run:
      exclusive: false
      depend_params: [n]
      script: |
        cat "$KOCHI_PREPARED/input"
        echo "run" >> "$RAN"
    """


def make_project(directory: Path) -> ExampleProject:
    return begin_project(
        directory / "project",
        directory / "ran",
        {
            "kochi.yaml": "",
            "use.yaml": EXPERIMENT,
            "input.txt": "the input\n",
        },
    )


@pytest.fixture
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExampleProject:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    return make_project(tmp_path)


def records(project: ExampleProject) -> list[dict[str, Any]]:
    top = project.directory / ".snakemake/kochi/local/records"
    return [json.loads(file.read_text()) for file in top.rglob("record.json")]


@contextlib.contextmanager
def workers(directory: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers of the user on this computer, which serve the queue `q`."""
    root = Path(os.environ["KOCHI_ROOT"])
    command = worker_command(root, directory, queues=["q"], cores=2, stay=True)
    Root(root).secure(root / "machines" / "local")
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]
    machine = root / "machines" / "local"
    try:
        # All of them are to have a part of the work.
        wait_until(lambda: len(servers(machine, "q")) == count)
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


@pytest.mark.compatibility
def test_two_workers_share_what_was_prepared_once_per_batch(
    own_project: ExampleProject, tmp_path: Path
) -> None:
    project = own_project
    # Neither worker does all of them, however long the other one needs.
    project.edit(
        "use.yaml",
        '    echo "run" >> "$RAN"\n',
        '    echo "run" >> "$RAN"; touch "$RAN.$KOCHI_WORKER_ID"\n'
        f'    until [ -e "$RAN.{FIRST}" ] && [ -e "$RAN.{FIRST + 1}" ]; do sleep .1; done\n',
    )
    with workers(tmp_path, 2):
        project.snakemake("use_all", "--kochi-queue", "q", executor="kochi")
    assert project.take_ran() == ["prepare 7", *["run"] * 6]
    log = project.directory / "results/local/use/1.log"
    assert printed(log.read_text()) == "the input\n"
    found = records(project)
    assert len({record["worker"] for record in found}) == 2
    # Each record says what was prepared for it, when and where.
    for record in found:
        assert contradictions(record) == []
    made = {json.dumps(record["preparation"], sort_keys=True) for record in found}
    (preparation,) = map(json.loads, made)
    assert "cp input.txt" in preparation["prepare"]["script"]
    assert preparation["prepare"]["node"] == found[0]["node"]

    # What determines a run makes it stale, and nothing else.
    assert "Nothing to be done" in project.snakemake("-n", "use_all")
    (project.directory / "input.txt").write_text("another input\n")
    runs = ["build_use", "prepare_use", *["run_use_all"] * 6, "collect_use_all", "use_all"]
    assert project.planned_rules("use_all") == sorted(runs)
    (project.directory / "input.txt").write_text("the input\n")
    # Finished work does without what was prepared.
    subprocess.run(["rm", "-r", os.environ["KOCHI_ROOT"]], check=True)
    assert "Nothing to be done" in project.snakemake("-n", "use_all")


def test_nothing_runs_when_nothing_could_be_prepared(own_project: ExampleProject) -> None:
    project = own_project
    project.edit("use.yaml", 'cp input.txt "$', 'echo sorry; cp missing.txt "$')
    done = project.try_snakemake("use_all", "--config", "kochi_batch=use_all")
    assert done.returncode == 1
    assert "use.yaml: the prepare script ended with exit status 1" in done.stdout
    said = "not run because prepare_use failed: the prepare script ended with exit status 1"
    words = ("-m", "snakemake_kochi.cli", "show", "batch", "use.yaml", "all", "--json")
    shown = run_apart(sys.executable, "-P", *words, cwd=project.directory).stdout
    assert {point["why"] for point in json.loads(shown)["points"]} == {said}
    assert project.take_ran() == ["prepare 7"]
