"""Workers that watch each other: how often, how soon they notice a loss, and what it costs."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from support import REPOSITORY

from snakemake_kochi.files import to_json, write_atomically
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import Queue, WorkerState, find_worker, recover
from snakemake_kochi.queue.observer import Observer


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY))


def crowd(machine: MachinePaths, count: int) -> Any:
    from bench.watching import Crowd

    return Crowd(machine, count)


def write_state(machine: MachinePaths, state: WorkerState, **changes: object) -> None:
    content = {**state.to_dict(), **changes}
    write_atomically(machine.worker(state.worker).state, to_json(content))


def requeued(machine: MachinePaths) -> set[int]:
    """The jobs that wait for their second attempt; job n was that of worker n."""
    return {view.job for view in Queue(machine, "q").waiting()}


def test_a_hundred_busy_workers_make_at_most_a_hundred_metadata_calls_a_second(
    tmp_path: Path,
) -> None:
    from bench.watching import MOST_CALLS_OF_A_HUNDRED, calls_per_second

    found = {}
    for count in (50, 100, 200):
        directory = tmp_path / str(count)
        directory.mkdir(mode=0o700)
        found[count] = calls_per_second(directory, count)
    assert 0 < found[100] <= MOST_CALLS_OF_A_HUNDRED
    # Linear: with their square, they would be four times as many.
    assert found[200] <= 2 * found[100] <= 4 * found[50]


def test_each_of_a_hundred_workers_is_watched_by_two_and_by_every_controller() -> None:
    workers = range(0, 300, 3)
    watched = Counter(
        other for worker in workers for other in Observer(worker=worker).share_of(workers)
    )
    assert watched == dict.fromkeys(workers, 2)
    assert Observer().share_of(workers) == list(workers)
    assert 21 not in Observer(worker=21).share_of(workers)


@pytest.mark.parametrize("count", [3, 30])
def test_the_loss_of_a_worker_is_noticed_after_twelve_heartbeats(
    machine: MachinePaths, count: int
) -> None:
    workers = crowd(machine, count)
    assert workers.watch(100) == []
    workers.beating.remove(1)
    # Its last heartbeat may have been 5 s ago, and each look comes up to 5 s late.
    assert workers.watch(54) == []
    assert not find_worker(machine, 1).presumed_dead
    assert len(workers.watch(31)) == 1
    assert requeued(machine) == {1}
    assert [worker for worker in workers.beating if find_worker(machine, worker).is_lost] == []


def test_of_many_workers_that_die_together_each_one_is_noticed_and_no_other(
    machine: MachinePaths,
) -> None:
    workers = crowd(machine, 60)
    assert workers.watch(60) == []
    dead = set(range(10, 50))
    workers.beating -= dead
    # Those whom only dead ones watched are found by doubling: 2, 4, 8, 16 and 32 of them.
    workers.watch(85 + 4 * 15)
    assert requeued(machine) == dead
    assert [worker for worker in workers.beating if find_worker(machine, worker).is_lost] == []


def test_a_death_on_the_node_of_the_watching_worker_is_seen_at_once_and_costs_no_calls_before(
    machine: MachinePaths, calls: Any
) -> None:
    workers = crowd(machine, 3)
    here = subprocess.Popen(["sleep", "1000"])
    try:
        process = ProcessIdentity.of(here.pid)
        assert process is not None
        state = find_worker(machine, 1)
        own = {"process": vars(process), "node": vars(this_node())}
        write_state(machine, state, **own)
        assert workers.watch(1) == []
        calls.clear()
        workers.time += 4
        assert recover(machine, "q", workers.observers[0]) == []
        used = [*calls.opened, *calls.listed]
        assert [path for path in used if path.startswith(str(machine.directory))] == []
    finally:
        here.kill()
        here.wait()
    assert len(recover(machine, "q", workers.observers[0])) == 1
    assert requeued(machine) == {1}


def test_a_worker_that_began_later_is_watched_soon(machine: MachinePaths) -> None:
    workers = crowd(machine, 3)
    assert workers.watch(20) == []
    workers.add()
    assert workers.watch(10) == []
    workers.beating.remove(3)
    assert len(workers.watch(85)) == 1
    assert requeued(machine) == {3}


def beat(machine: MachinePaths, workers: Iterable[int], number: int) -> None:
    """As workers do: every fourth heartbeat is written, the others are the time of the file."""
    for worker in workers:
        if number % 4 == 1:
            write_state(machine, find_worker(machine, worker), heartbeat=number)
        else:
            os.utime(machine.worker(worker).state)


@pytest.mark.parametrize("count", [2, 12])
def test_attributes_in_the_cache_of_a_filesystem_do_not_make_a_living_worker_seem_dead(
    tmp_path: Path, count: int
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared", 600.0) as shared:
        there = Root(tmp_path / "backing" / "root").machine("local")
        here = Root(shared.path / "root").machine("local")
        workers = crowd(there, count)
        observer = Observer(lambda: workers.time, worker=0)
        before = os.stat(here.worker(1).state).st_mtime_ns
        beat(there, range(count), 1)
        assert os.stat(here.worker(1).state).st_mtime_ns == before, "it was not cached"
        for number in range(2, 60):
            beat(there, range(count), number)
            workers.time += 5
            assert recover(here, "q", observer) == []
        for number in range(60, 80):
            beat(there, range(2, count), number)
            workers.time += 5
            recover(here, "q", observer)
    assert requeued(there) == {1}
