"""The same code with the operating system's files and clock, and processes that race."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snakemake_kochi.tickets.claims import Claims, WorkerLife
from snakemake_kochi.tickets.hand import cancel, fold, submit_by_hand
from snakemake_kochi.tickets.names import Layout, Name
from snakemake_kochi.tickets.run import End, Run

QUEUE = "q"
JOBS = 600


def work(directory: str, name: str) -> None:
    layout = Layout(directory)
    claims = Claims(layout, QUEUE, WorkerLife(layout, name))

    def at_most_seven(name: Name, read: Any, claimed: Sequence[Name]) -> bool | None:
        return True if len(claimed) < 7 else None

    while names := claims.claim(at_most_seven):
        for ticket in names:
            claims.finish(ticket, "ok", {"content": claims.read(ticket).decode()})


def collected(run: Run) -> list[End]:
    ends: list[End] = []
    while run.open:
        ends += run.collect()
        time.sleep(0.01)
    return ends


def test_processes_that_race_take_each_ticket_once(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path))
    run = Run.begin(layout, "/work")
    assert not run.adopt()
    run.submit(QUEUE, {f"job {number}": f"job {number}".encode() for number in range(JOBS)})
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(str(tmp_path), f"w{n}")) for n in range(4)]
    for worker in workers:
        worker.start()
    ends = collected(run)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert Counter(end.key for end in ends) == {f"job {n}": 1 for n in range(JOBS)}
    assert all(end.line["details"]["content"].startswith(end.key) for end in ends)
    run.end()
    assert not Run.begin(layout, "/work").adopt()


def test_a_job_by_hand_has_one_end_and_one_number(tmp_path: Path) -> None:
    layout, told = Layout(str(tmp_path)), []
    first = submit_by_hand(layout, QUEUE, b"first", told.append)
    second = submit_by_hand(layout, QUEUE, b"second", told.append)
    assert told == [first, second]
    assert cancel(layout, QUEUE, second, 1)
    work(str(tmp_path), "w")
    states = {}
    for number in (first, second):
        name = fold(layout, number)
        assert name is not None
        states[number] = name.state
        assert fold(layout, number) is None
    assert states == {first: "ok", second: "cancelled"}
    assert len(list((tmp_path / "history").iterdir())) == 2
