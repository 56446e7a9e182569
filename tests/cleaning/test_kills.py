"""A clean-up that is killed, at any step, and one beside workers that go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from cleaning.stage import Stage, dead_process, make_old
from faults.injection import Scene, deaths, run_scene
from support import git, worker_command, write

from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.phases.freeze import take_freeze
from snakemake_kochi.phases.products import Build, scratch_directory
from snakemake_kochi.queue.views import find_job
from snakemake_kochi.snapshot.pruning import is_whole
from snakemake_kochi.tickets.run import make_run
from snakemake_kochi.tickets.ticket import Ticket

_TICKET = Ticket(name="awaited", command=("true",), directory="/")
_HIDDEN = (".removed-", ".aside-", "unused-")
_STRIDE = 19  # of some 200 steps; another one each time is not reproducible


def _prepare(stage: Stage, stack: ExitStack) -> tuple[str, Build]:
    """What goes: two jobs, a worker, a dead controller, a build, a snapshot. What stays: the same
    once more, in use."""
    worker = stage.worker()
    stage.submit("old", "old too")
    stage.run().submit("q", {"awaited": json.dumps(_TICKET.to_dict()).encode()})
    stage.end(3, worker)
    stage.run(dead_process())
    stage.worker()
    stage.submit("waiting")
    directory = stage.directory / "project"
    if not (directory / ".git").exists():
        write(directory / "kochi.yaml", "dependencies:\n")
        git(directory, "init", "-q")
    newest = ""
    for text in ("old\n", "newest\n"):
        (directory / "code.txt").write_text(text)
        newest = take_freeze(directory, "local").snapshot.commit
    project = stage.root.project(directory)
    builds = [project.build("local", name) for name in ("unused", "used")]
    for place in builds:
        make_directory(place.tree)
        place.manifest.write_bytes(to_json({"version": 1}))
    # This process uses one of them.
    used = Build("used", builds[1].tree)
    stack.enter_context(scratch_directory(project.workspaces("local"), [used]))
    make_old(stage.root.directory)
    for path in project.freezes():
        is_newest = json.loads(path.read_text())["snapshot"]["commit"] == newest
        make_old(path, 39 if is_newest else 41)
    return newest, used


def test_a_clean_up_may_be_killed_before_any_step_twice_and_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Stage] = []
    kept: list[tuple[str, Build]] = []

    def scene() -> Scene:
        stage = Stage(tmp_path / str(len(made)))
        monkeypatch.setenv("KOCHI_ROOT", str(stage.root.directory))
        made.append(stage)
        kept.append(_prepare(stage, stack))
        return stage.clean

    tried, stack = 0, ExitStack()
    for ending in deaths(scene, _STRIDE):
        tried += 1
        stage, (newest, build) = made[-1], kept[-1]
        assert ending.error == ""
        assert run_scene(stage.clean, at=1 + 7 * tried % 60).error == ""
        project = stage.root.project(stage.directory / "project")
        assert stage.clean().faults == ()
        assert stage.clean().freed == {}
        assert stage.jobs() == [2]
        assert find_job(stage.machine, 5).state == "waiting"
        assert is_whole(project.store, newest)
        assert len(project.freezes()) == 1
        assert os.listdir(project.builds("local")) == [build.digest]
        assert not [name for name in stage.names() if any(map(name.count, _HIDDEN))]
        assert make_run(stage.layout, "", "hand") == 6
    stack.close()
    assert tried > 5


def test_jobs_are_executed_once_while_clean_ups_run_and_are_killed_beside_their_workers(
    stage: Stage,
) -> None:
    """Two workers, and clean-ups that delete each job as soon as it has ended."""
    count = 60
    out = make_directory(stage.directory / "out")
    tickets = [
        Ticket(
            name=f"job{number}",
            command=("sh", "-c", f"sleep 0.02; echo done >> {out}/{number}"),
            directory=str(stage.directory),
        )
        for number in range(count)
    ]
    stage.submit_tickets(*tickets)
    environment = {**os.environ, "KOCHI_ROOT": str(stage.root.directory)}
    words = ("--jobs", "0", "--runs", "0", "-y", "-m", "local")
    cleaning = [sys.executable, "-P", "-m", "snakemake_kochi.cli", "clean", *words]
    command = worker_command(
        stage.root.directory, stage.directory, queues=["q"], cores=2, idle_wait=0.2
    )
    workers = [subprocess.Popen(command, cwd=stage.directory) for _ in range(2)]
    deaths_of_cleaners = 0
    try:
        while any(worker.poll() is None for worker in workers):
            cleaner = subprocess.Popen(
                cleaning, cwd=stage.directory, env=environment, stdout=subprocess.DEVNULL
            )
            time.sleep(0.35 + 0.02 * (deaths_of_cleaners % 10))
            cleaner.send_signal(signal.SIGKILL)
            deaths_of_cleaners += cleaner.wait() == -signal.SIGKILL
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0]
    lines = {int(path.name): path.read_text() for path in out.iterdir()}
    assert lines == dict.fromkeys(range(count), "done\n")
    subprocess.run(cleaning, cwd=stage.directory, env=environment, check=True)
    assert stage.jobs() == []
    # Of the next queue, the highest number stays.
    assert len(os.listdir(stage.machine.workers)) == 1
    assert deaths_of_cleaners > 0
