"""What is deleted of workers, launches, runs and workspaces: never what belongs to a living one."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from cleaning.stage import Stage, make_old

from snakemake_kochi.detached.launches import look_at, make_launch, write_end
from snakemake_kochi.files import make_directory
from snakemake_kochi.phases.products import scratch_directory
from snakemake_kochi.processes import ProcessIdentity, host_key, this_node
from snakemake_kochi.queue import Queue, RunFile, list_runs
from snakemake_kochi.queue.heartbeat import time_awake_or_asleep
from snakemake_kochi.queue.paused import PausedBatch, list_paused, pause
from snakemake_kochi.queue.queue import private_queue
from snakemake_kochi.queue.workers import read_worker
from snakemake_kochi.worker import state
from snakemake_kochi.worker.state import StateFile


def test_a_worker_goes_when_it_has_left_or_died_and_holds_no_ticket(stage: Stage) -> None:
    own = ProcessIdentity.of(os.getpid())
    elsewhere = replace(this_node(), host="elsewhere", machine="m", boot="b")
    stage.submit("job")
    alive = stage.worker(process=own)
    died, left = stage.worker(), stage.worker(state="left", process=own)
    holder = stage.worker()
    stage.queue.claim(holder, lambda _: "take")
    silent, beating = stage.worker(node=elsewhere), stage.worker(node=elsewhere)
    young = stage.worker()
    make_old(stage.machine.workers)
    for worker, days in ((beating, 6.0), (young, 0.0)):
        make_old(stage.machine.worker(worker).directory, days)
    report = stage.clean(runs=10 * 86400.0)
    there = {int(name) for name in os.listdir(stage.machine.workers)}
    assert there == {alive, holder, beating, young}
    assert {died, left, silent}.isdisjoint(there)
    assert report.freed["workers"].count == 3
    # On another host, a heartbeat of a moment ago counts, whatever the age.
    stage.clean(runs=0.0)
    assert {int(name) for name in os.listdir(stage.machine.workers)} == {alive, holder, beating}


def test_a_run_is_forgotten_when_it_is_old_and_its_controller_has_ended(stage: Stage) -> None:
    for name in ("old", "young"):
        record = RunFile(stage.machine, f"host-1-{name}", str(stage.directory))
        record.begin()
        record.end()
    make_old(stage.machine.run("host-1-old"))
    stage.clean()
    assert [run.controller for run in list_runs(stage.machine)] == ["host-1-young"]
    stage.clean(runs=0.0, keep=("runs:*/" + stage.directory.name,))
    assert len(list_runs(stage.machine)) == 1


def test_a_pause_goes_with_the_directory_of_the_batch_and_not_before(stage: Stage) -> None:
    for directory in (stage.directory, stage.directory / "gone"):
        pause(stage.machine, PausedBatch(str(directory), "fib.yaml", "scaling"))
    make_old(stage.machine.paused)
    stage.clean(runs=0.0)
    assert [each.directory for each in list_paused(stage.machine)] == [str(stage.directory)]


def test_old_outputs_of_facts_go(stage: Stage) -> None:
    for digest in ("old", "young"):
        make_directory(stage.machine.facts("node1", digest).parent)
        stage.machine.facts("node1", digest).write_text("{}")
    make_old(stage.machine.facts("node1", "old"))
    stage.clean()
    assert os.listdir(stage.machine.all_facts / "node1") == ["young.json"]


def test_the_queue_of_a_run_that_is_gone_goes_unless_a_ticket_waits_in_it(stage: Stage) -> None:
    empty, full = (Queue(stage.machine, private_queue(name)) for name in ("a-1", "b-2"))
    empty.paths.make()
    stage.queue = full
    stage.submit("job")
    stage.clean()
    assert os.listdir(stage.machine.queues) == [full.name]


def test_a_launch_goes_only_when_it_has_ended(stage: Stage) -> None:
    launches = [make_launch(stage.machine, "batch", ["true"], is_job=True) for _ in range(2)]
    write_end(launches[0][1], 0)
    make_old(stage.machine.launches)
    stage.clean()
    assert stage.machine.launch_names() == [launches[1][0].identity]
    assert look_at(launches[1][1]).state == "launched"


def test_workspaces_of_dead_processes_go_at_once_and_of_others_when_they_are_silent(
    stage: Stage,
) -> None:
    workspaces = stage.project().workspaces("local")
    with scratch_directory(workspaces) as own:
        host, *rest = own.name.split("-")
        dead = workspaces / "-".join((host, *rest[:2], "4194303", "1", "deadbeef"))
        other = host_key(replace(this_node(), host="elsewhere"))
        silent, used = (
            workspaces / "-".join((other, *rest[:2], "1", "1", f"deadbee{n}")) for n in range(2)
        )
        for directory in (dead, silent, used):
            make_directory(directory / "workspace")
        make_old(workspaces)
        (used / "workspace" / "out").touch()
        os.utime(used / "workspace", (0, 0))
        stage.clean()
        assert set(os.listdir(workspaces)) == {own.name, used.name}


def test_what_a_killed_clean_up_and_killed_writers_left_goes_too(stage: Stage) -> None:
    stage.submit("job")
    stage.end(1, stage.worker())
    aside = stage.machine.jobs / "00000000" / ".removed-0123-0"
    stage.machine.job(0).directory.rename(aside)
    for name, days in ((".ids.json.12345678.tmp", 2.0), (".ids.json.87654321.tmp", 0.0)):
        (stage.machine.directory / name).touch()
        make_old(stage.machine.directory / name, days)
    stage.clean()
    assert not aside.exists()
    left = [name for name in os.listdir(stage.machine.directory) if name.startswith(".")]
    assert left == [".ids.json.87654321.tmp"]


def test_a_worker_that_slept_until_its_files_were_deleted_takes_nothing_any_more(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ProcessIdentity.of(os.getpid())
    elsewhere = replace(this_node(), host="elsewhere", machine="m", boot="b")
    number = stage.worker(process=own, node=elsewhere)
    file = StateFile(stage.machine, read_worker(stage.machine, number))
    awake = time_awake_or_asleep()
    monkeypatch.setattr(state, "time_awake_or_asleep", lambda: awake + 8 * 86400)
    assert file.presumed_dead_by is None
    make_old(stage.machine.workers)
    stage.clean()
    assert os.listdir(stage.machine.workers) == []
    monkeypatch.setattr(state, "time_awake_or_asleep", lambda: awake + 16 * 86400)
    assert file.presumed_dead_by == "another host"
