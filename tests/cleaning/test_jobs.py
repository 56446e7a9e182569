"""Which jobs are deleted, and what must hold for the others."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cleaning.stage import Stage, make_old
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.queue import Inbox, allocate_ids, find_job
from snakemake_kochi.queue.adoption import Orphans
from snakemake_kochi.queue.entries import find_entry
from snakemake_kochi.queue.jobs import jobs_with_tickets
from snakemake_kochi.queue.result import Result
from snakemake_kochi.queue.ticket import now


def test_an_old_job_goes_with_its_log_and_a_younger_one_stays(stage: Stage) -> None:
    worker = stage.worker()
    stage.submit("old", "young", "waiting")
    stage.end(2, worker)
    make_old(stage.machine.job(0).directory)
    report = stage.clean()
    assert stage.jobs() == [1]
    # The directory, the ticket, the log and the result.
    assert (report.freed["jobs"].count, report.freed["jobs"].inodes) == (1, 4)
    assert report.freed["jobs"].bytes >= 3 * 512
    assert find_job(stage.machine, 1).state == "ended"
    assert find_job(stage.machine, 2).state == "waiting"
    with pytest.raises(KochiError, match="kochi clean"):
        find_job(stage.machine, 0)


def test_a_dry_run_says_the_same_and_deletes_nothing(stage: Stage) -> None:
    stage.submit(*map(str, range(5)))
    stage.end(5, stage.worker())
    make_old(stage.machine.directory)
    before = stage.names()
    plan = stage.clean(is_dry=True)
    assert stage.names() == before
    done = stage.clean()
    assert stage.jobs() == []
    assert plan.freed == done.freed
    assert stage.clean().freed == {}


def test_a_job_stays_while_a_queue_has_its_ticket(stage: Stage) -> None:
    # As after a kill between the link of the result and the end of the claim.
    stage.submit("job")
    worker = stage.worker()
    (claim,) = stage.queue.claim(worker, lambda _: "take")
    make_directory(stage.machine.job(0).directory)
    stage.machine.job(0).result.write_text("{}")
    make_old(stage.machine.jobs)
    stage.clean()
    assert stage.jobs() == [0]
    assert find_entry(stage.queue.paths, claim.ticket.job) is not None
    # Recovery needs what the worker said of itself.
    assert stage.machine.worker(worker).state.exists()


@pytest.fixture(params=["here", "on another node"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stage, Stage]]:
    """A stage, and the same as seen where a job ends. Another node's client, like one of NFS, has
    cached which names are missing, for up to a minute."""
    if request.param == "here":
        stage = Stage(tmp_path)
        yield stage, stage
        return
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "there", cache_seconds=60) as there:
        yield Stage(there.path), Stage(tmp_path / "backing")


def test_a_job_that_ends_after_a_long_time_during_the_clean_up_stays(
    elsewhere: tuple[Stage, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, other = elsewhere
    stage.submit("job")
    worker = stage.worker()
    (claim,) = stage.queue.claim(worker, lambda _: "take")
    paths = stage.machine.job(0)
    make_directory(paths.directory)
    make_old(paths.directory)

    def end_and_look(*arguments: Any) -> Collection[int]:
        times = (now(), now(), str(paths.log))
        result = Result(0, 1, claim.nonce, worker, "node", "success", 0, None, *times)
        there = other.machine.queue("q").running / claim.path.name
        assert other.queue.finish(replace(claim, path=there), result)
        return jobs_with_tickets(*arguments)

    monkeypatch.setattr("snakemake_kochi.cleaning.jobs.jobs_with_tickets", end_and_look)
    stage.clean()
    assert stage.jobs() == [0]
    make_old(paths.directory)
    monkeypatch.undo()
    stage.clean()
    assert stage.jobs() == []


def test_a_job_stays_while_its_controller_or_the_next_one_may_ask_for_it(stage: Stage) -> None:
    inbox = Inbox.create(stage.machine, str(stage.directory))
    inbox.note_queue("q")
    stage.submit("job", controller=inbox.identity, identity="same", outputs=("out",))
    (stage.directory / "out").touch()
    stage.end(1, stage.worker())
    make_old(stage.machine.jobs)
    stage.clean()
    assert stage.jobs() == [0]
    inbox.leave()  # as if it had been killed
    stage.clean()
    orphans = Orphans.find(stage.machine, str(stage.directory), "next")
    assert orphans.unread() == 1
    orphans.forget()
    stage.clean()
    assert stage.jobs() == []


def test_a_controller_that_was_killed_long_ago_goes_with_its_jobs_unless_one_waits(
    stage: Stage,
) -> None:
    inboxes = [Inbox.create(stage.machine, str(stage.directory)) for _ in range(2)]
    for inbox in inboxes:
        inbox.note_queue("q")
        stage.submit("job", controller=inbox.identity)
    stage.end(1, stage.worker())
    for inbox in inboxes:
        inbox.leave()
        make_old(stage.machine.controller(inbox.identity).directory)
    make_old(stage.machine.jobs)
    plan = stage.clean(is_dry=True)
    assert (plan.freed["runs"].count, plan.freed["jobs"].count) == (1, 1)
    stage.clean()
    assert os.listdir(stage.machine.controllers) == [inboxes[1].identity]
    assert stage.jobs() == []
    assert find_job(stage.machine, 1).state == "waiting"


def test_a_living_controller_stays_however_old_its_files_are(stage: Stage) -> None:
    inbox = Inbox.create(stage.machine, str(stage.directory))
    make_old(stage.machine.directory)
    stage.clean()
    assert stage.machine.controller(inbox.identity).state.exists()


def test_a_job_of_a_result_that_is_not_committed_yet_stays(stage: Stage) -> None:
    stage.submit("job", "other")
    stage.end(2, stage.worker())
    entry = make_directory(stage.project().journal("local") / "sum.first.1")
    record = {"job": "0", "attempt": "1", "nonce": "x"}
    (entry / "entry.json").write_bytes(to_json({"version": 1, "record": record}))
    make_old(stage.machine.directory)
    stage.clean()
    assert stage.jobs() == [0]


def test_a_rule_keeps_jobs_by_name_or_number(stage: Stage) -> None:
    stage.submit("fib_1", "fib_2", "sum", "last")
    stage.end(4, stage.worker())
    make_old(stage.machine.jobs)
    stage.clean(keep=("jobs:fib_*", "3", "builds:sum"))
    assert stage.jobs() == [0, 1, 3]


def test_a_job_that_cannot_be_looked_at_stays_and_is_named(stage: Stage) -> None:
    stage.submit("job")
    stage.end(1, stage.worker())
    result = stage.machine.job(0).result
    result.unlink()
    result.symlink_to(result)  # stat(2) fails: ELOOP
    make_old(stage.machine.job(0).directory)
    report = stage.clean()
    assert stage.jobs() == [0]
    assert any(str(result) in fault for fault in report.faults)


def test_numbers_are_not_given_again_after_a_clean_up(stage: Stage) -> None:
    for _ in range(3):
        stage.submit("job")
    stage.end(3, stage.worker())
    make_old(stage.machine.directory)
    stage.clean()
    assert stage.jobs() == []
    ranges = sorted(path.name for path in stage.machine.number_ranges("job").glob("*/*"))
    assert ranges == ["2.json"]
    # The counter of an old backup, and none at all.
    stage.machine.ids.write_text(json.dumps({"version": 1, "job": 1, "worker": 0}))
    assert allocate_ids(stage.machine, "job", 1) == range(3, 4)
    stage.machine.ids.unlink()
    assert allocate_ids(stage.machine, "job", 1) == range(4, 5)
    assert allocate_ids(stage.machine, "worker", 1) == range(1, 2)


def test_a_directory_that_vanishes_because_it_is_empty_is_made_again(tmp_path: Path) -> None:
    above, removed = tmp_path / "jobs" / "0", []

    class Watched(type(above)):  # type: ignore[misc]
        def mkdir(self, *arguments: object, **options: object) -> None:
            if self.name == "7" and not removed:
                removed.append(self.parent)
                os.rmdir(self.parent)
            super().mkdir(*arguments, **options)

    made = make_directory(Watched(above / "7"))
    assert made.is_dir() and removed == [above]
