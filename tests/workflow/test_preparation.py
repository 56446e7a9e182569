"""Scripts before and after the runs of a batch, once per batch and once per node, in real runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from full_disk import mounted
from support import git, printed, start, wait_until, worker_command

from snakemake_kochi.artifacts.record import contradictions, todays_form
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import shared_workers

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
    prepare_node:
      sources: []
      script: |
        echo "node" >> "$RAN"
        sleep 1
        cp "$KOCHI_PREPARED/input" "$KOCHI_SCRATCH/copy"
    finish_node:
      script: |
        echo "left $(cat copy)" >> "$KOCHI_RESULTS/use/left"
    finish:
      script: |
        echo "finish $KOCHI_BATCH" >> "$RAN"
        wc -l < "$KOCHI_RESULTS/use/all.csv" > "$KOCHI_RESULTS/use/rows"
    batches:
      all:
        params: {n: [1, 2, 3, 4, 5, 6]}
        artifacts: [{type: stdout, dest: "use/${n}.log"}]
    run:
      exclusive: false
      depend_params: [n]
      script: |
        cat "$KOCHI_SCRATCH/copy"
        echo "run" >> "$RAN"
    """


def make_project(directory: Path) -> ExampleProject:
    scratch = directory / "scratch"
    scratch.mkdir(parents=True)
    return begin_project(
        directory / "project",
        directory / "ran",
        {
            "kochi.yaml": f"machines: {{local: {{scratch_dir: {scratch}}}}}\n",
            "use.yaml": EXPERIMENT,
            "input.txt": "the input\n",
        },
    )


@pytest.fixture
def own_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExampleProject:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    return make_project(tmp_path)


def data_on_node(project: ExampleProject) -> list[Path]:
    top = project.directory.parent / f"scratch/kochi-{os.geteuid()}"
    return [path for path in top.glob("*") if path.name != "lock"]


def records(project: ExampleProject) -> list[dict[str, Any]]:
    top = project.directory / ".snakemake/kochi/local/records"
    return [json.loads(file.read_text()) for file in top.rglob("record.json")]


def failures(project: ExampleProject) -> list[dict[str, Any]]:
    """The records of failed attempts in the artifact branch."""
    branch = "kochi_artifacts_local"
    names = git(project.directory, "ls-tree", "-r", "--name-only", branch).splitlines()
    shown = [git(project.directory, "show", f"{branch}:{n}") for n in names if "/failed/" in n]
    return [json.loads(text) for text in shown]


@contextlib.contextmanager
def workers(directory: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers of the user on this computer, which serve the queue `q`."""
    root = Path(os.environ["KOCHI_ROOT"])
    command = worker_command(root, directory, queues=["q"], cores=2, stay=True)
    root.mkdir(exist_ok=True)
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]
    machine = Root(root).machine("local")
    try:
        # All of them are to have a part of the work.
        wait_until(lambda: len(shared_workers(machine, "q")) == count)
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


@pytest.mark.compatibility
def test_two_workers_share_what_was_prepared_once_per_batch_and_node(
    own_project: ExampleProject, tmp_path: Path
) -> None:
    project = own_project
    # Neither worker does all of them, however long the other one needs.
    project.edit(
        "use.yaml",
        '    echo "run" >> "$RAN"\n',
        '    echo "run" >> "$RAN"; touch "$RAN.$KOCHI_WORKER_ID"\n'
        '    until [ -e "$RAN.0" ] && [ -e "$RAN.1" ]; do sleep .1; done\n',
    )
    with workers(tmp_path, 2) as processes:
        project.snakemake("use_all", "--kochi-queue", "q", executor="kochi")
        ran = project.ran.read_text().splitlines()
        assert ran == ["prepare 7", "node", *["run"] * 6, "finish all"]
        assert (project.directory / "results/local/use/rows").read_text() == "7\n"
        log = project.directory / "results/local/use/1.log"
        assert printed(log.read_text()) == "the input\n"
        found = records(project)
        assert len({record["worker"] for record in found}) == 2
        # Each record says what was prepared for it, when and where.
        for record in found:
            assert contradictions(todays_form(record, "a record")) == []
        made = {json.dumps(record["preparation"], sort_keys=True) for record in found}
        (preparation,) = map(json.loads, made)
        assert preparation["prepare_node"]["seconds"] >= 1
        assert preparation["prepare_node"]["node"] == found[0]["node"]
        assert "cp input.txt" in preparation["prepare"]["script"]
        # The data stay while a worker lives.
        (place,) = data_on_node(project)
        assert Path(preparation["prepare_node"]["directory"]).parent == place
        assert place.parent.stat().st_mode & 0o777 == 0o700
        left = project.directory / "results/local/use/left"
        processes[0].kill()
        processes[0].wait()
        assert not left.exists()
    # The last worker has executed the script at the end, and removed the data.
    assert left.read_text() == "left the input\n"
    assert data_on_node(project) == []

    # What determines a run makes it stale, and nothing else.
    runs = ["run_use_all"] * 6
    after = ["collect_use_all", "finish_use_all", "use_all"]
    assert "Nothing to be done" in project.snakemake("-n", "use_all")
    project.edit("use.yaml", "wc -l", "cat")
    assert project.planned_rules("use_all") == after[1:]
    project.edit("use.yaml", "cat <", "wc -l <")
    project.edit("use.yaml", "sleep 1", "sleep 0")
    assert project.planned_rules("use_all") == sorted(runs + after)
    project.edit("use.yaml", "sleep 0", "sleep 1")
    (project.directory / "input.txt").write_text("another input\n")
    assert project.planned_rules("use_all") == sorted(["build_use", "prepare_use", *runs, *after])
    (project.directory / "input.txt").write_text("the input\n")
    # Finished work does without what was prepared.
    subprocess.run(["rm", "-r", os.environ["KOCHI_ROOT"]], check=True)
    assert "Nothing to be done" in project.snakemake("-n", "use_all")


def test_data_of_a_killed_run_are_not_taken_for_complete(own_project: ExampleProject) -> None:
    project = own_project
    project.edit("use.yaml", "n: [1, 2, 3, 4, 5, 6]", "n: [1, 2]")
    project.edit(
        "use.yaml",
        "    sleep 1\n",
        '    echo half > "$KOCHI_SCRATCH/copy"; echo $PPID > "$RAN.pid"\n'
        '    mkdir "$RAN.once" && sleep 1000\n',
    )
    project.edit("use.yaml", 'mkdir "$RAN.once" &&', '! mkdir "$RAN.once" ||')
    noted = project.ran.with_name("ran.pid")
    command = (sys.executable, "-m", "snakemake", "--executor", "kochi", "-j", "2", "--keep-going")
    running = start(*command, "use_all", cwd=project.directory)
    wait_until(lambda: noted.exists() and noted.read_text(), "a run prepares its node")
    os.kill(int(noted.read_text()), signal.SIGKILL)
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 1, output
    # The other run, which had waited, prepared the node, and found all of it.
    assert project.take_ran() == ["node", "node", "prepare 7", "run"]
    (log,) = (project.directory / "results/local/use").glob("?.log")
    assert printed(log.read_text()) == "the input\n"
    assert data_on_node(project) == []


def test_a_run_whose_node_cannot_be_prepared_says_why_and_the_next_one_tries_again(
    own_project: ExampleProject, tmp_path: Path
) -> None:
    project = own_project
    project.edit("use.yaml", "n: [1, 2, 3, 4, 5, 6]", "n: [1]")
    project.edit("use.yaml", "    sleep 1\n", '    echo "no data"; test -e "$RAN.go"\n')
    with mounted(tmp_path / "scratch") as disk:
        (tmp_path / "scratch").chmod(0o1777)
        disk.fill()
        project.ran.with_name("ran.go").touch()
        done = project.try_snakemake("use_all")
        assert done.returncode == 1
        assert f", where {tmp_path / 'scratch'} is full" in done.stdout
        assert "No space left on device" in done.stdout
        assert "Free some space there, or: set 'scratch_dir' of the machine 'local'" in done.stdout
    assert project.take_ran() == ["node", "prepare 7"]
    project.ran.with_name("ran.go").unlink()
    done = project.try_snakemake("use_all")
    assert done.returncode == 1
    assert "the prepare_node script ended with exit status 1" in done.stdout
    _, record = sorted(failures(project), key=lambda each: each["started"])
    assert record["reason"] == "the prepare_node script ended with exit status 1"
    assert record["last_lines"] == ["no data"]
    assert contradictions(todays_form(record, "a record")) == []
    assert project.take_ran() == ["node"]
    project.ran.with_name("ran.go").touch()
    project.snakemake("use_all")
    assert project.take_ran() == ["finish all", "node", "run"]
    left = project.directory / "results/local/use/left"
    assert left.read_text() == "left the input\n"
    assert data_on_node(project) == []


def test_nothing_runs_when_nothing_could_be_prepared(own_project: ExampleProject) -> None:
    project = own_project
    project.edit("use.yaml", 'cp input.txt "$', 'echo sorry; cp missing.txt "$')
    done = project.try_snakemake("use_all")
    assert done.returncode == 1
    assert "use.yaml: the prepare script ended with exit status 1" in done.stdout
    said = "not run because prepare_use failed: the prepare script ended with exit status 1"
    assert said in done.stdout
    assert "use.yaml: batch all: the finish script was not run" in done.stdout
    assert project.take_ran() == ["prepare 7"]
