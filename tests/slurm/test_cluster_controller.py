"""Runs in allocations of a real Slurm whose `slurmctld` is away, and runs that end early."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cluster_project import ClusterProject
from seen import FIRST_OF_RUN, list_jobs
from support import wait_until


def test_a_run_succeeds_although_slurms_controller_was_away_when_its_jobs_ended(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=2, idle_timeout="30s")
    project.write_jobs(6)
    project.start()
    project.wait_for_beginnings(2)
    project.cluster.stop_controller()
    try:
        project.go()
        wait_until(lambda: len(project.lines("done")) == 6)
    finally:
        project.cluster.start_controller()
    project.end_well()
    assert project.said.count("The scheduler does not answer") <= 1
    wait_until(lambda: project.cluster.jobs() == {})


def test_a_run_that_cannot_reach_slurm_at_its_end_names_the_command_and_its_workers_leave(
    project: ClusterProject,
) -> None:
    project.start()
    project.wait_for_beginnings(2)
    project.cluster.stop_controller()
    try:
        project.go()
        project.end_well(150)
        assert "scancel --name=kochi-" in project.said
        wait_until(lambda: not project.worker_processes())
    finally:
        project.cluster.start_controller()
    wait_until(lambda: project.cluster.jobs() == {})


def test_a_run_that_was_killed_is_adopted_with_its_workers_and_nothing_is_left(
    project: ClusterProject,
) -> None:
    project.configure(max_workers=3, cores=2, idle_timeout="30s")
    project.write_jobs(6)
    project.start()
    project.wait_for_beginnings(4)
    wait_until(lambda: "PENDING" in project.cluster.jobs().values())
    killed = project.runs[-1]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = set(project.cluster.jobs())
    project.start("--nolock")
    wait_until(lambda: "2 of its jobs are cancelled, and start again if this run" in project.said)
    # Waiting allocations are cancelled at once; those with jobs stay.
    wait_until(lambda: len(before & set(project.cluster.jobs())) == 2)
    assert sum(map(len, project.lines("began").values())) == 4
    project.go()
    project.end_well()
    assert set(project.lines("done")) == set(map(str, range(6)))
    assert all(len(began) == 1 for began in project.lines("began").values())
    # Those of the killed run see by themselves that it is over.
    wait_until(lambda: project.cluster.jobs() == {})
    wait_until(lambda: not project.worker_processes())


def test_an_interrupt_ends_jobs_and_allocations(project: ClusterProject) -> None:
    project.configure(max_workers=3, cores=2)
    project.write_jobs(6)
    run = project.start()
    project.wait_for_beginnings(4)
    wait_until(lambda: "PENDING" in project.cluster.jobs().values())
    states = project.cluster.states()
    before = len(project.cluster.calls("scancel"))
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(90) != 0
    assert project.cluster.jobs() == {}
    # Only that which has not begun is cancelled. The others end as their workers do.
    assert len(project.cluster.calls("scancel")) == before + 2
    ends = {"PENDING": "CANCELLED", "RUNNING": "COMPLETED"}
    expected = {id: ends[state] for id, state in states.items()}
    assert sorted(expected.values()) == ["CANCELLED", "COMPLETED", "COMPLETED"]
    assert {id: project.cluster.states("all").get(id) for id in states} == expected
    assert "nothing of this run is left" in project.said
    assert project.worker_processes() == []
    assert project.lines("done") == {}


def test_a_second_interrupt_does_not_wait_for_allocations_and_names_them(
    project: ClusterProject,
) -> None:
    stubborn = """
        rule all:
            input: "out/0"

        rule job:
            output: "out/0"
            shell: "trap '' TERM; echo >> began-0; echo $$ > pid; while true; do sleep 0.1; done"
    """
    project.write_jobs(1, stubborn.replace("echo >>", "echo $SLURM_JOB_ID >>"))
    run = project.start()
    [allocation] = project.wait_for_beginnings(1)
    wait_until((project.directory / "pid").exists)
    os.killpg(run.pid, signal.SIGINT)
    wait_until(lambda: [each for each in list_jobs(project.machine) if each.cancelling])
    run.send_signal(signal.SIGINT)
    assert run.wait(60) != 0
    assert f"Cancelled, but not ended yet: kochi jobs {FIRST_OF_RUN}" in project.said
    assert f"These cancelled allocations have not ended yet: {allocation}" in project.said
    # Slurm ends the rest.
    wait_until(lambda: project.cluster.jobs() == {})
    pid = int((project.directory / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    wait_until(lambda: not project.worker_processes())
