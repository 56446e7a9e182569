"""The cost of a queue does not grow with its content, and the savings lose no ticket."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import to_json
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import Inbox, Queue, Resources, cancel_all, find_job
from snakemake_kochi.queue.ending import unexecuted_result
from snakemake_kochi.queue.skipped import ClaimSettings

# Directories' times are relied upon at once.
AT_ONCE = ClaimSettings(settling=0.0)


def take(_):
    return "take"


def only_narrow(ticket):
    return "take" if ticket.resources.cores == 1 else "skip"


def result_of(machine, claim):
    return unexecuted_result(machine, claim.entry, "failed", "made up")


def left_aside(queue):
    return [path for path in queue.paths.submissions.rglob("*") if not path.is_dir()]


def test_tickets_are_written_while_others_have_the_lock(machine, ticket, calls):
    queue, rival = Queue(machine, "q"), Queue(machine, "q")
    queue.submit([ticket("first")])
    claimed = []

    def claim(path):
        if "/submissions/" in path and not claimed:
            claimed.extend(rival.claim(1, take))

    calls.before_open = claim
    queue.submit([ticket("second")])
    assert [claim.ticket.name for claim in claimed] == ["first"]


class Full:
    """Calls that make or move files of queues; the `failing`-th of them (from 1) fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.failing = 0
        for name in ("open", "rename", "replace", "mkdir"):
            monkeypatch.setattr(os, name, self._before(name, getattr(os, name)))

    def _before(self, name, real):
        def call(path, *rest, **options):
            if "queues" in str(path):
                self.made.append(name)
                if len(self.made) == self.failing:
                    raise OSError(28, "No space left on device")
            return real(path, *rest, **options)

        return call


@pytest.mark.parametrize(("first", "count"), [(253, 6), (255, 2), (300, 3), (300, 2)])
def test_all_or_no_tickets_wait_whatever_step_fails(tmp_path, ticket, monkeypatch, first, count):
    def submit(failing):
        """The calls until the end, or until the one that fails."""
        machine = Root(tmp_path / str(failing)).machine("local")
        queue = Queue(machine, "q")
        queue.submit([ticket("before")])
        machine.ids.write_bytes(to_json({"version": 1, "job": first, "worker": 0}))
        expected = ["before"]
        with monkeypatch.context() as patch:
            full = Full(patch)
            full.failing = failing
            with contextlib.suppress(KochiError):
                # Of the first shard, in which there is one already, and of the next.
                queue.submit([ticket(f"n{i}") for i in range(count)])
                expected += [f"n{i}" for i in range(count)]
        assert [view.ticket.name for view in queue.waiting()] == expected, full.made
        assert left_aside(queue) == [], full.made
        assert [c.ticket.name for c in queue.claim(0, take, limit=99)] == expected, full.made
        return full.made

    steps = submit(failing=0)
    assert len(steps) > 4
    for failing in range(1, len(steps) + 1):
        assert len(submit(failing)) >= failing, "the fault was reached"


def test_a_full_filesystem_refuses_all_tickets_and_keeps_none_of_them(tmp_path, ticket):
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", disk], check=True)
    try:
        queue = Queue(Root(disk).machine("local"), "q")
        queue.submit([ticket("before")])
        with pytest.raises(KochiError, match=r"no ticket was submitted.*No space left"):
            queue.submit([ticket(command=("echo", "x" * 5000)) for _ in range(1000)])
        assert left_aside(queue) == []
        queue.submit([ticket("after")])
        assert [view.ticket.name for view in queue.waiting()] == ["before", "after"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_a_killed_submission_left_is_removed_a_day_later(machine, ticket):
    queue = Queue(machine, "q")
    for name in ("old", "new"):
        left = queue.paths.submission(name)
        (left / "00000000").mkdir(parents=True, mode=0o700)
        (left / "00000000" / "0000000000-1.json").write_text("{")
    two_days = time.time() - 2 * 24 * 3600
    os.utime(queue.paths.submission("old"), (two_days, two_days))
    queue.submit([ticket("a")])
    assert [path.name for path in queue.paths.submissions.iterdir()] == ["new"]
    assert [c.ticket.name for c in queue.claim(0, take, limit=9)] == ["a"]


def test_a_submission_that_is_just_handed_over_keeps_no_other_one_from_being_removed(
    machine, ticket, monkeypatch
):
    queue = Queue(machine, "q")
    queue.submit([ticket("a")])
    two_days = time.time() - 2 * 24 * 3600
    for name in ("old", "older"):
        queue.paths.submission(name).touch()
        os.utime(queue.paths.submission(name), (two_days, two_days))
    real, handed_over = Path.lstat, []

    def lstat(path):
        if path.name in ("old", "older") and not handed_over:
            handed_over.append(path)
            path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    Queue(machine, "q").submit([ticket("b")])
    assert len(handed_over) == 1 and left_aside(queue) == []


def test_a_ticket_skipped_is_opened_once_by_each_worker(machine, ticket, calls):
    queue = Queue(machine, "q")
    queue.submit([*(ticket("wide", resources=Resources(cores=8)) for _ in range(20)), ticket("a")])
    assert [c.ticket.name for c in queue.claim(1, only_narrow)] == ["a"]
    assert len(calls.tickets()) == 21
    assert queue.claim(1, only_narrow) == [] and queue.is_empty(), "nothing for this worker"
    assert len(calls.tickets()) == 21
    assert len(queue.claim(2, take, limit=99)) == 20, "another one is asked anew"


def test_a_ticket_behind_many_skipped_is_found_and_the_lock_given_up_meanwhile(
    machine, ticket, calls
):
    queue = Queue(machine, "q", settings=ClaimSettings(looks_per_lock=50))
    wide = ticket("wide", resources=Resources(cores=8))
    queue.submit([*[wide] * 600, ticket("narrow")])
    calls.clear()
    assert [c.ticket.name for c in queue.claim(1, only_narrow)] == ["narrow"]
    assert len(calls.locks()) > 600 // 51
    assert len(queue.waiting()) == 600


def test_shards_with_nothing_for_a_worker_are_not_listed_again(machine, ticket, calls):
    everybody, mine = Queue(machine, "q"), Queue(machine, "q", "me", settings=AT_ONCE)
    everybody.submit([ticket("theirs", controller="they") for _ in range(700)])
    for _ in range(2):
        assert mine.claim(1, take) == []
    calls.clear()
    for _ in range(5):
        assert mine.claim(1, take) == [] and mine.is_empty()
    assert calls.shards() == []
    everybody.submit([ticket("mine", controller="me")])
    assert [c.ticket.name for c in mine.claim(1, take)] == ["mine"]
    assert set(calls.shards()) == {"00000002"}


def test_a_ticket_requeued_among_foreign_ones_is_found(machine, ticket):
    everybody, mine = Queue(machine, "q"), Queue(machine, "q", "me", settings=AT_ONCE)
    everybody.submit([ticket("mine", controller="me"), ticket("theirs"), ticket("theirs")])
    (claim,) = mine.claim(1, take)
    for _ in range(3):
        assert mine.claim(1, take) == []
    everybody.requeue(claim)
    assert [c.ticket.name for c in mine.claim(1, take)] == ["mine"]


def test_a_change_that_leaves_a_directorys_time_as_it_was_is_seen(machine, ticket):
    # As on filesystems on which times have whole seconds.
    everybody, mine = Queue(machine, "q"), Queue(machine, "q", controller="me")
    everybody.submit([ticket("theirs")])
    shard = machine.queue("q").waiting_shard(0)
    for _ in range(3):
        assert mine.claim(1, take) == []
    before = shard.stat().st_mtime_ns
    everybody.submit([ticket("mine", controller="me")])
    os.utime(shard, ns=(before, before))
    assert [c.ticket.name for c in mine.claim(1, take)] == ["mine"]


def test_a_directorys_time_is_not_relied_upon_for_ever(machine, ticket):
    everybody, mine = Queue(machine, "q"), Queue(machine, "q", "me", settings=AT_ONCE)
    later = Queue(machine, "q", "me", settings=ClaimSettings(settling=0.0, trust=0.0))
    everybody.submit([ticket("theirs")])
    shard = machine.queue("q").waiting_shard(0)
    for _ in range(3):
        assert mine.claim(1, take) == [] and later.claim(1, take) == []
    before = shard.stat().st_mtime_ns
    everybody.submit([ticket("mine", controller="me")])
    os.utime(shard, ns=(before, before))
    assert mine.claim(1, take) == [], "the attributes a network filesystem shows may be old"
    assert [c.ticket.name for c in later.claim(1, take)] == ["mine"]


def test_a_result_that_cannot_be_written_does_not_hold_up_the_next_one(machine, ticket):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity) for _ in range(3)])
    claims = queue.claim(1, take, limit=3)
    blocked = machine.job(1).directory
    blocked.parent.mkdir(parents=True, mode=0o700)
    blocked.write_text("")
    assert queue.finish(claims[0], result_of(machine, claims[0]))
    with pytest.raises(OSError, match="Not a directory"):
        queue.finish(claims[1], result_of(machine, claims[1]))
    assert queue.finish(claims[2], result_of(machine, claims[2]))
    assert [result.job for result in inbox.wait(60)] == [0, 2]
    blocked.unlink()
    assert queue.finish(claims[1], result_of(machine, claims[1]))
    assert [result.job for result in inbox.wait(60)] == [1]
    inbox.close()


def test_a_result_that_was_half_published_is_completed_by_the_next_try(
    machine, ticket, monkeypatch
):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity)])
    (claim,) = queue.claim(1, take)
    result = result_of(machine, claim)
    real = os.rename

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        queue.finish(claim, result)
    monkeypatch.setattr(os, "rename", real)
    assert queue.finish(claim, result)
    assert inbox.wait(60) == [result]
    assert queue.running() == []
    assert not machine.job(0).late_result(result.nonce).exists()
    inbox.close()


def test_many_jobs_of_several_queues_are_cancelled_at_once(machine, ticket, calls):
    a, b = Queue(machine, "a"), Queue(machine, "b")
    a.submit([ticket() for _ in range(300)])
    b.submit([ticket() for _ in range(3)])
    running, ended = a.claim(1, take, limit=2)
    a.finish(ended, result_of(machine, ended))
    calls.clear()
    outcomes = cancel_all(machine, [*range(302), 999])
    assert outcomes.pop(running.ticket.job) == "cancelling"
    assert outcomes.pop(ended.ticket.job) == "ended"
    assert "no job 999" in str(outcomes.pop(999))
    assert outcomes == dict.fromkeys(range(2, 302), "cancelled")
    assert len(calls.locks()) == 3 + 2, (
        "one for 256 jobs, and one in each queue for the unknown job"
    )
    assert find_job(machine, 0).cancelling
    assert [view.job for view in b.waiting()] == [302]


def test_what_is_written_has_a_line_for_each_key(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket("größe", labels={"rule": "a", "sample": "b"})])
    text = queue.paths.waiting_ticket(0, 1).read_text()
    assert len(text.splitlines()) == len(json.loads(text)) + 2
    assert ' "name": "größe",\n' in text
    assert ' "labels": {"rule": "a", "sample": "b"},\n' in text
