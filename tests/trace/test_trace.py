"""`kochi trace`: the traces of runs of every kind, read as a viewer reads them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support import wait_until, write

from snakemake_kochi.allocation.notes import AllocationNote
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue.runs import RunView, list_runs
from snakemake_kochi.queue.views import Attempt, WorkerView, list_jobs
from snakemake_kochi.tickets.capacity import Capacity
from snakemake_kochi.tickets.run import ENDED
from snakemake_kochi.tickets.ticket import Ticket
from snakemake_kochi.trace.events import trace_of
from snakemake_kochi.trace.history import JobHistory, RunHistory

SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(12)), "slow"

    rule short:
        output: "out/{i}"
        shell: "sleep 0.05; touch {output}"

    rule slow:
        output: "slow"
        shell: "touch begun; SECONDS_OF_SLOW; touch {output}"
"""
# Where two workers are, each of them gets a job, however late it begins.
_ALL_MET = "[ $(ls met | wc -l) -ge 2 ]"
MEET = f"mkdir -p met; touch met/$KOCHI_WORKER_ID; until {_ALL_MET}; do sleep 0.05; done"
COMMAND = [sys.executable, "-P", "-m", "snakemake"]


@pytest.fixture(autouse=True)
def nothing_runs_on(isolated_environment: Path) -> Any:
    yield
    for process in psutil.process_iter():
        try:
            root = process.environ().get("KOCHI_ROOT")
            if root == str(isolated_environment) and process.pid != os.getpid():
                process.kill()
        except psutil.Error:
            continue


def machine() -> MachinePaths:
    return Root.find().machine("local")


class Trace:
    """A trace, checked by the rules of the format."""

    def __init__(self, text: str) -> None:
        self.events = json.loads(text)["traceEvents"]
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.instants = [event for event in self.events if event["ph"] == "i"]
        names = [event for event in self.events if event["name"] == "process_name"]
        self.processes = {event["pid"]: event["args"]["name"] for event in names}
        self.tracks = {
            (event["pid"], event["tid"]): event["args"]["name"]
            for event in self.events
            if event["name"] == "thread_name"
        }
        self._check()

    def _check(self) -> None:
        assert {event["ph"] for event in self.events} <= {"M", "X", "i"}
        timed = [*self.slices, *self.instants]
        assert all(isinstance(event["ts"], int) and event["ts"] >= 0 for event in timed)
        assert all(event["dur"] >= 0 for event in self.slices)
        assert min(event["ts"] for event in timed) == 0
        assert {(event["pid"], event["tid"]) for event in timed} <= set(self.tracks)
        by_track = defaultdict(list)
        for event in self.slices:
            by_track[event["pid"], event["tid"]].append(event)
        for events in by_track.values():
            for one, next_one in itertools.pairwise(events):
                assert one["ts"] + one["dur"] <= next_one["ts"]

    @property
    def jobs(self) -> dict[int, list[dict[str, Any]]]:
        """The attempts of each job."""
        found = defaultdict(list)
        for event in self.slices:
            if "job" in event["args"]:
                found[number_of(event)].append(event)
        return found


def number_of(event: dict[str, Any]) -> int:
    """Of its job: from 0 in the first run."""
    job = str(event["args"]["job"])
    return int(job.rpartition(".")[2]) - 1 if "." in job else int(job)


def trace(kochi: Any, *arguments: str, cwd: Path) -> Trace:
    done = kochi("trace", *arguments, "-o", "trace.json", cwd=cwd)
    assert done.returncode == 0
    return Trace((cwd / "trace.json").read_text())


def test_each_job_of_a_run_of_two_workers_is_a_slice_in_a_slot(
    tmp_path: Path, snakemake: Any, kochi: Any
) -> None:
    text = SNAKEFILE.replace("SECONDS_OF_SLOW", "sleep 0.2").replace("sleep 0.05", MEET)
    write(tmp_path / "Snakefile", text)
    options = ("--executor", "kochi", "--jobs", "4", "--cores", "2", "--kochi-workers", "2")
    options += ("--kochi-cores", "2")
    assert snakemake(*options, cwd=tmp_path).returncode == 0
    (tmp_path / "out" / "3").unlink()
    assert snakemake(*options, cwd=tmp_path).returncode == 0
    newest, first = list(list_runs(machine(), str(tmp_path)))

    found = trace(kochi, first.controller, cwd=tmp_path)
    assert sorted(found.jobs) == list(range(13))
    assert all(len(attempts) == 1 for attempts in found.jobs.values())
    assert found.instants == []
    workers = {found.processes[event[0]["pid"]].split(" (")[0] for event in found.jobs.values()}
    assert workers == ({"worker 1", "worker 2"})
    for (event,) in found.jobs.values():
        assert found.tracks[event["pid"], event["tid"]].startswith("slot ")
        assert event["args"]["outcome"] == "succeeded"
    rules = [event["name"] for (event,) in found.jobs.values()]
    assert (rules.count("short"), rules.count("slow")) == (12, 1)
    wildcards = {event["args"].get("wildcards") for (event,) in found.jobs.values()}
    assert wildcards == {None, *(f"i={i}" for i in range(12))}

    # The default is the last run, without the jobs of the run before.
    assert newest.started > first.started
    assert list(trace(kochi, cwd=tmp_path).jobs) == [0]


def test_a_run_that_goes_on_has_slices_up_to_now(tmp_path: Path, kochi: Any) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE.replace("SECONDS_OF_SLOW", "sleep 600"))
    process = psutil.Popen(
        [*COMMAND, "--executor", "kochi", "--jobs", "20", "--cores", "1", "--quiet"],
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        wait_until((tmp_path / "begun").exists)
        # Many jobs are submitted in several batches.
        wait_until(lambda: len(list_jobs(machine(), ended=True)) == 13)
        found = trace(kochi, cwd=tmp_path)
        listed = json.loads(kochi("trace", "--list", "--json", cwd=tmp_path).stdout)
        assert [run["state"] for run in listed] == ["running"]
        # The waiting jobs have a track of their own.
        waiting = set(map(number_of, found.instants))
        assert waiting | set(found.jobs) == set(range(13))
        assert {event["args"]["state"] for event in found.instants} <= {"waiting", "running"}
        slow = next(job for (job,) in found.jobs.values() if job["name"] == "slow")
        assert slow["args"]["outcome"] == "running"
        # A killed run still has a trace; the ends of its jobs are unknown.
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        found = trace(kochi, cwd=tmp_path)
        instants = {number_of(event) for event in found.instants if "job" in event["args"]}
        assert instants | set(found.jobs) == set(range(13))
        listed = json.loads(kochi("trace", "--list", "--json", cwd=tmp_path).stdout)
        assert [run["state"] for run in listed] == ["killed"]
    finally:
        if process.is_running():
            process.kill()
            process.wait()


def test_an_attempt_that_a_worker_took_with_it_is_marked(
    tmp_path: Path, snakemake: Any, kochi: Any
) -> None:
    # Kill the worker, not the supervisor, which is its parent.
    kill = "test -e again || {{ touch again; kill -9 $PPID; sleep 30; }}"
    write(tmp_path / "Snakefile", SNAKEFILE.replace("SECONDS_OF_SLOW", kill))
    options = ("--executor", "kochi", "--jobs", "4", "--cores", "1")
    assert snakemake(*options, "slow", cwd=tmp_path).returncode == 0
    found = trace(kochi, cwd=tmp_path)
    lost, succeeded = found.jobs[0]
    assert [lost["cat"], succeeded["cat"]] == ["lost", "success"]
    assert lost["cname"] != succeeded.get("cname")
    assert lost["pid"] != succeeded["pid"]
    marks = [e for e in found.instants if "job" in e["args"] and number_of(e) == 0]
    assert [(mark["name"], mark["pid"], mark["tid"]) for mark in marks] == [
        ("lost", lost["pid"], lost["tid"])
    ]


def test_without_a_run_here_it_says_how_to_find_one(tmp_path: Path, kochi: Any) -> None:
    done = kochi("trace", cwd=tmp_path)
    assert done.returncode == 1
    assert f"no run in {tmp_path} has handed jobs over to machine local" in done.stdout
    assert (
        "To trace a run, type: kochi trace RUN; to list the runs: kochi trace --list" in done.stdout
    )
    done = kochi("trace", "nosuch", cwd=tmp_path)
    assert done.returncode == 1
    assert "there is no run nosuch on machine local" in done.stdout


# ---- cases that no short run has


def at(seconds: float) -> str:
    return f"2026-01-01T00:{int(seconds) // 60:02}:{seconds % 60:09.6f}+00:00"


def a_worker(number: int, allocation: str | None, start: float, end: float) -> WorkerView:
    return WorkerView(
        worker=number,
        state="left",
        reason="told by SIGUSR1",
        process=ProcessIdentity(1, 1),
        node=this_node(),
        queues=("q",),
        capacity=Capacity(4, 1000),
        started=at(start + 2),
        updated=at(end),
        until=None,
        controller="1",
        allocation=allocation,
        running={},
        began=at(start),
    )


def a_job(number: int, *spans: tuple[int, float, float, str]) -> JobHistory:
    """`spans`: worker, start, end and cause of each attempt, of which none is the last."""
    ticket = Ticket("name", ("true",), "/", labels={"rule": "r"}, job=number)
    attempts = tuple(
        Attempt(i + 1, worker, "lost", "node", at(start), at(end), cause=said)
        for i, (worker, start, end, said) in enumerate(spans)
    )
    view: Any = SimpleNamespace(job=number, ticket=ticket, result=None, log=Path("/log"))
    return JobHistory(view, attempts)


def traced(**parts: Any) -> Trace:
    run = RunView(*(1, ENDED, "/d", at(0), this_node(), ProcessIdentity(1, 1)), ended=at(600))
    given = {"jobs": (), "workers": (), "allocations": (), **parts}
    events = trace_of(RunHistory(run=run, moment=at(700), goes_on=False, **given))
    return Trace(json.dumps({"traceEvents": events}))


def test_jobs_that_overlap_are_in_different_slots_and_a_free_one_is_used_again() -> None:
    spans = [(0, 10, "lost"), (5, 15, "lost"), (10, 12, "lost"), (11, 20, "lost"), (15, 16, "lost")]
    jobs = tuple(a_job(i, (3, *span)) for i, span in enumerate(spans))
    found = traced(jobs=jobs, workers=(a_worker(3, None, 0, 30),))
    slots = [found.tracks[e["pid"], e["tid"]] for _, (e,) in sorted(found.jobs.items())]
    assert slots == ["slot 1", "slot 2", "slot 1", "slot 3", "slot 1"]


def test_an_allocation_is_a_track_from_its_submission_to_its_worker_s_end() -> None:
    notes = (AllocationNote("12_1", at(0), "4 cores"), AllocationNote("13", at(1), "1 core"))
    # The scheduler requeued the allocation, so it got a second worker.
    workers = (a_worker(0, "12_1", 60, 120), a_worker(1, "12_1", 300, 400))
    jobs = (a_job(0, (0, 70, 119, "drained (told by SIGUSR1)")),)
    found = traced(jobs=jobs, workers=workers, allocations=notes)
    node = this_node().host
    assert f"worker 0 ({node}, allocation 12_1)" in found.processes.values()
    tracks = {name: place for place, name in found.tracks.items() if name.startswith("alloc")}

    def on(name: str) -> list[tuple[str, int, int]]:
        events = [e for e in found.slices if (e["pid"], e["tid"]) == tracks[name]]
        return [(e["name"], e["ts"] // 10**6, e["dur"] // 10**6) for e in events]

    assert on("allocation 12_1") == [
        ("waits", 0, 60),
        ("allocation", 60, 60),
        ("allocation", 300, 100),
    ]
    assert on("allocation 13") == [("waits", 1, 599)]  # no worker came
    (drain,) = (e for e in found.instants if e["name"] == "drain")
    assert found.tracks[drain["pid"], drain["tid"]] == "worker"
    assert drain["args"] == {"why": "told by SIGUSR1"}
    assert found.jobs[0][0]["cname"] == "yellow"


def test_a_worker_that_serves_everybody_is_shown_for_the_time_of_the_run() -> None:
    worker = replace(a_worker(2, None, 0, 3000), controller=None, started="2025-12-01T00:00:00Z")
    found = traced(jobs=(a_job(0, (2, 50, 60, "lost")),), workers=(worker,))
    (life,) = (event for event in found.slices if event["name"] == "worker 2")
    assert (life["ts"], life["dur"]) == (0, 600 * 10**6)


def test_clocks_of_two_nodes_that_differ_make_no_negative_time() -> None:
    found = traced(jobs=(a_job(0, (0, 50, 49, "lost")),), workers=(a_worker(0, "1", 0, 60),))
    assert found.jobs[0][0]["dur"] == 0
