"""Concurrent changes: tickets that move during a look, and locks that do not exclude."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem
from support import wait_until

from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import Inbox, Queue, Ticket, cancel_all
from snakemake_kochi.queue.deliveries import ReadDeliveries, jobs_read
from snakemake_kochi.queue.entries import Entry
from snakemake_kochi.queue.job_set import JobSet
from snakemake_kochi.queue.jobs import jobs_of
from snakemake_kochi.queue.skipped import SkippedTickets

Make = Callable[..., Ticket]

JOBS = 10

# Claims a ticket and requeues it, for ever.
RESTLESS = """
import pathlib, sys
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import Queue
queue = Queue(Root(pathlib.Path(sys.argv[1])).machine("local"), "q")
while True:
    for claim in queue.claim(1, lambda ticket: "take"):
        queue.requeue(claim)
    print(flush=True)
"""


@pytest.fixture
def inbox(machine: MachinePaths) -> Iterator[Inbox]:
    inbox = Inbox.create(machine)
    yield inbox
    inbox.close()


@pytest.fixture
def restless(machine: MachinePaths, ticket: Make, inbox: Inbox, tmp_path: Path) -> Iterator[None]:
    """The first of the jobs is claimed and requeued all the time."""
    Queue(machine, "q").submit([ticket(controller=inbox.identity)] * JOBS)
    worker = subprocess.Popen(
        [sys.executable, "-c", RESTLESS, str(tmp_path / "root")], stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    try:
        worker.stdout.readline()
        yield
    finally:
        worker.stdout.close()
        worker.kill()
        worker.wait()


def test_a_ticket_that_moves_all_the_time_is_never_missed(
    machine: MachinePaths, inbox: Inbox, restless: None
) -> None:
    seen = [[view.job for view in jobs_of(machine, [inbox.identity])] for _ in range(300)]
    assert Counter(map(tuple, seen)) == {tuple(range(JOBS)): 300}


def test_a_ticket_that_moves_all_the_time_can_be_cancelled(
    machine: MachinePaths, inbox: Inbox, restless: None
) -> None:
    for job in range(JOBS):
        (outcome,) = cancel_all(machine, [job]).values()
        assert outcome in ("cancelled", "cancelling")


TAKE_NUMBERS = """
import pathlib, sys
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import allocate_ids
machine = Root(pathlib.Path(sys.argv[1])).machine("local")
for count in (1, 3) * 20:
    workers = (-1 - number for number in allocate_ids(machine, "worker", 1))
    print(*allocate_ids(machine, "job", count), *workers)
"""


def test_numbers_are_given_once_where_locks_are_of_one_node_alone(tmp_path: Path) -> None:
    backing = tmp_path / "backing"
    with (
        FaultyFilesystem(backing, tmp_path / "node1") as first,
        FaultyFilesystem(backing, tmp_path / "node2") as second,
    ):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", TAKE_NUMBERS, str(node.path / "root")],
                stdout=subprocess.PIPE,
            )
            for node in (first, second, first, second)
        ]
        given = [number for each in processes for number in each.communicate()[0].split()]
    assert [process.returncode for process in processes] == [0] * 4
    assert len(given) == len(set(given)) == 4 * (80 + 40)


def test_a_counter_that_is_behind_gives_no_number_twice(
    machine: MachinePaths, ticket: Make
) -> None:
    queue = Queue(machine, "q")
    queue.submit([ticket()] * 3)
    behind = machine.ids.read_bytes()
    queue.submit([ticket()] * 300)
    queue.submit([ticket()])
    machine.ids.write_bytes(behind)
    (next_one,) = queue.submit([ticket()])
    assert next_one.job == 304


def bytes_for_each(count: int, note: Callable[[int], object]) -> float:
    """Of memory that stays, in `count` calls."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            note(number)
        return (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()


def test_a_million_jobs_are_remembered_in_little_memory(tmp_path: Path) -> None:
    queue = Root(tmp_path).machine("local").queue("q")
    overlooked, jobs = SkippedTickets(), JobSet()
    places = [queue.waiting_ticket(job, 1) for job in range(20_000)]
    assert bytes_for_each(20_000, lambda job: overlooked.add(Entry(places[job], job, 1))) < 4
    assert bytes_for_each(20_000, jobs.add) < 4
    assert list(jobs) == list(range(20_000)) and 20_000 not in jobs
    assert len(jobs) == 20_000


def test_an_inbox_has_few_deliveries_however_many_were_read(
    machine: MachinePaths, ticket: Make, inbox: Inbox
) -> None:
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity) for _ in range(600)])
    paths = machine.controller(inbox.identity)
    for count in (100, 600):
        cancel_all(machine, range(count))
        inbox.wait(0)
        assert inbox.wait(0) == []
        assert jobs_read(paths) == set(range(count))
        # Those that were read are removed together, by a thread.
        left = count if count < 256 else 0
        wait_until(lambda left=left: len(list(paths.inbox.iterdir())) == left)  # type: ignore[misc]


def test_a_line_that_a_killed_controller_began_is_no_job_that_was_read(
    machine: MachinePaths, inbox: Inbox
) -> None:
    paths = machine.controller(inbox.identity)
    assert jobs_read(paths) == set()
    paths.read_jobs.write_bytes(b"7\n12\n1")
    assert jobs_read(paths) == {7, 12}


def failing_stat(name: str) -> Callable[..., os.stat_result]:
    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith(name):
            raise OSError(errno.EIO, "Input/output error")
        return real(path, **options)

    return stat


@pytest.mark.parametrize("has_ended", [False, True])
def test_what_was_handed_over_in_spite_of_an_error_is_not_handed_over_again(
    tmp_path: Path, ticket: Make, has_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        queue = Queue(Root(filesystem.path / "root").machine("local"), "q")
        queue.submit([ticket()])
        numbered = queue.number([ticket()] * 300)
        with (
            filesystem.fault("rename", errno.EIO, "*/submissions/*-00000001-*", done=True),
            monkeypatch.context() as patch,
        ):
            # Nor does it tell what has become of it, except in a listing.
            patch.setattr(os, "stat", failing_stat("/waiting/00000001-0000000256-0000000300"))
            queue.hand_over(numbered)
        there = [view.job for view in queue.jobs()]
        assert sorted(there) == list(range(301))
        if has_ended:
            cancel_all(queue.machine, there)
        queue.hand_over(numbered, again=True)
        queue.hand_over(numbered, again=True)
        left = () if has_ended else range(301)
        assert Counter(view.job for view in queue.jobs()) == dict.fromkeys(left, 1)


def test_a_number_that_did_not_fit_on_the_disk_makes_no_other_one(
    machine: MachinePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = machine.controller("c")
    make_directory(paths.inbox)
    make_directory(paths.read_jobs.parent)
    deliveries, write = ReadDeliveries(paths), os.write
    deliveries.note("11-a.json", 11)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda file, line: write(file, line[:2]))
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                deliveries.note("1234-a.json", 1234)
    deliveries.note("56-a.json", 56)
    deliveries.close()
    assert jobs_read(paths) == {11, 56}
    with paths.read_jobs.open("ab") as file:
        file.write(b"78")  # all that its controller had written when it was killed
    adopted = ReadDeliveries(paths)
    adopted.note("9-a.json", 9)
    adopted.close()
    assert jobs_read(paths) == {11, 56, 9}
