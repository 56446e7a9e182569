from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support import result_of, wait_until, waiting_file

from snakemake_kochi.errors import DamagedFileError, KochiError, NameNotFoundError
from snakemake_kochi.files import to_json, write_new
from snakemake_kochi.locks import find_lock_settings
from snakemake_kochi.packing.automatic import removed_controllers
from snakemake_kochi.packing.packer import pack
from snakemake_kochi.queue import (
    Inbox,
    Queue,
    Resources,
    allocate_ids,
    cancel,
    find_job,
    list_jobs,
    list_queues,
    queue_lock,
    recover,
)
from snakemake_kochi.queue.ending import end_ticket, unexecuted_result
from snakemake_kochi.queue.entries import Entry, controller_names, old_ranges, raise_floor
from snakemake_kochi.queue.result import read_result_now


def anything(_):
    return "take"


def all_files(directory):
    return sorted(path for path in directory.rglob("*") if not path.is_dir())


def test_tickets_are_numbered_and_come_out_in_their_order(machine, ticket):
    queue = Queue(machine, "q")
    submitted = queue.submit([ticket(f"n{i}") for i in range(600)])
    assert [t.job for t in submitted] == list(range(600))
    claims = queue.claim(7, anything, limit=1000)
    assert [(c.ticket.job, c.ticket.name) for c in claims] == [(i, f"n{i}") for i in range(600)]
    assert claims[3].ticket == replace(submitted[3], attempt=1)
    assert submitted[0].queue == "q" and submitted[0].machine == "local"
    assert queue.is_empty()
    assert not any(queue.paths.waiting.iterdir()), "emptied shards are removed"


def test_a_thousand_tickets_are_handed_over_at_once(machine, ticket):
    Queue(machine, "other").submit([ticket()])
    queue = Queue(machine, "q")
    assert [t.job for t in queue.submit([ticket()] * 1000)] == list(range(1, 1001))
    assert len(queue.waiting()) == 1000
    assert [(v.name, v.waiting, v.running) for v in list_queues(machine)] == [
        ("other", 1, 0),
        ("q", 1000, 0),
    ]


def test_a_refused_ticket_is_not_overtaken(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket("a"), ticket("wide", resources=Resources(cores=64)), ticket("b")])
    claims = queue.claim(0, lambda t: "take" if t.resources.cores < 64 else "stop", limit=10)
    assert [c.ticket.name for c in claims] == ["a"]
    assert [v.ticket.name for v in queue.waiting()] == ["wide", "b"]


def test_tickets_of_other_controllers_are_skipped(machine, ticket):
    everybody = Queue(machine, "q")
    wide = Resources(cores=64)
    everybody.submit(
        [
            *(ticket("theirs", controller="they") for _ in range(300)),
            ticket("unowned"),
            ticket("mine", controller="me"),
            ticket("theirs", controller="they"),
            ticket("mine too", controller="me"),
            ticket("wide", controller="me", resources=wide),
            ticket("behind", controller="me"),
        ]
    )
    mine = Queue(machine, "q", controller="me")
    asked = []

    def narrow(ticket):
        asked.append(ticket.name)
        return "take" if ticket.resources.cores < 64 else "stop"

    assert [c.ticket.name for c in mine.claim(0, narrow, limit=1)] == ["mine"]
    assert [c.ticket.name for c in mine.claim(0, narrow, limit=9)] == ["mine too"]
    assert asked == ["mine", "mine too", "wide"]
    assert not mine.is_empty()
    assert [c.ticket.name for c in mine.claim(0, anything, limit=9)] == ["wide", "behind"]
    assert mine.is_empty() and mine.claim(0, anything) == []
    assert not everybody.is_empty()
    (late,) = everybody.submit([ticket("late", controller="me")])
    (claim,) = mine.claim(0, anything)
    assert claim.ticket.job == late.job
    assert len(everybody.claim(1, anything, limit=999)) == 302


def test_a_damaged_ticket_is_set_aside_by_a_controllers_worker_too(machine, ticket, caplog):
    queue = Queue(machine, "q", controller="me")
    queue.submit([ticket(), ticket("mine", controller="me")])
    queue.paths.waiting_ticket(0, 1).write_text("{")
    assert [c.ticket.name for c in queue.claim(0, anything, limit=1)] == ["mine"]
    assert find_job(machine, 0).state == "ended"
    assert len(list(queue.paths.damaged.iterdir())) == 1


def test_a_removed_queue_leaves_nothing_and_is_not_made_again_by_a_later_look(machine, ticket):
    queue = Queue(machine, "run-1")
    queue.submit([ticket()])
    assert not queue.remove(), "a ticket waits"
    (claim,) = queue.claim(0, anything)
    assert not queue.remove(), "a ticket runs"
    queue.finish(claim, result_of(claim))
    assert queue.remove()
    assert list(machine.queues.iterdir()) == []
    assert list_queues(machine) == []
    assert queue.remove(), "it is gone"
    assert queue.claim(0, anything) == []
    assert recover(machine, "run-1") == []
    assert cancel(machine, 0) == "ended"
    assert list(machine.queues.iterdir()) == []


def test_a_queue_goes_whose_last_tickets_were_left_by_killed_processes_that_had_ended_them(
    machine, ticket
):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "run-1")
    *_, last = queue.submit([ticket(controller=inbox.identity) for _ in range(4)])
    claims = queue.claim(0, anything, limit=3)
    for claim in claims[:2]:
        assert queue.finish(claim, result_of(claim))
    # Its worker was killed before this rename, and so was the process that cancelled the last one.
    machine.job(0).ticket.rename(claims[0].path)
    path = waiting_file(queue, 3)
    result = unexecuted_result(machine, Entry(path, 3, 1), "cancelled")
    assert end_ticket(machine, path, last, result)
    machine.job(3).ticket.rename(path)
    assert not queue.remove(), "a ticket runs"
    assert not claims[0].path.exists() and not path.exists()
    assert queue.finish(claims[2], result_of(claims[2]))
    machine.job(2).ticket.rename(claims[2].path)
    machine.controller(inbox.identity).delivery(2, claims[2].nonce).unlink()
    assert queue.remove()
    assert machine.job(2).ticket.exists() and list(machine.queues.iterdir()) == []
    assert sorted(result.job for result in inbox.wait(0)) == [0, 1, 2, 3]


def test_a_job_cancelled_while_its_queue_is_removed_has_ended(machine, ticket):
    queue = Queue(machine, "run-1")
    queue.submit([ticket()])
    (claim,) = queue.claim(0, anything)
    lock = str(find_lock_settings(machine).paths.queue("run-1"))
    with ThreadPoolExecutor(1) as pool:
        with queue_lock(machine, "run-1"):
            outcome = pool.submit(cancel, machine, 0)
            # It has found the job, and waits for the lock as soon as it has opened the lock's file.
            while [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()].count(lock) < 2:
                assert not outcome.done()
            end_ticket(machine, claim.path, claim.ticket, result_of(claim))
            shutil.rmtree(queue.paths.directory)
        assert outcome.result() == "ended"
    assert list(machine.queues.iterdir()) == []


def test_a_queue_with_a_ticket_that_was_set_aside_is_kept(machine, ticket, caplog):
    queue = Queue(machine, "run-1")
    queue.submit([ticket()])
    queue.paths.waiting_ticket(0, 1).write_text("{")
    assert queue.claim(0, anything) == []
    assert not queue.remove()
    assert len(list(queue.paths.damaged.iterdir())) == 1


@pytest.mark.parametrize("count", [2, 600])
def test_all_or_no_tickets_are_handed_over(machine, ticket, monkeypatch, count):
    queue = Queue(machine, "q")
    real, calls = os.rename, []

    def full_disk(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    queue.submit([ticket()])
    monkeypatch.setattr(os, "rename", full_disk)
    with pytest.raises(KochiError, match="No space left"):
        queue.submit([ticket()] * count)
    monkeypatch.undo()
    assert len(queue.waiting()) == 1
    assert len(all_files(queue.paths.waiting)) == 1


CLAIM_ALL = """
import sys, pathlib
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import Queue
queue = Queue(Root(pathlib.Path(sys.argv[1])).machine("local"), "q")
print("ready", flush=True)
sys.stdin.readline()
while claims := queue.claim(int(sys.argv[2]), lambda ticket: 'take', limit=3):
    for claim in claims:
        print(claim.ticket.job)
"""


def test_each_ticket_is_claimed_once_by_processes_that_race(machine, ticket, tmp_path):
    Queue(machine, "q").submit([ticket()] * 200)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM_ALL, tmp_path / "root", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in range(4)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    claimed = [int(line) for process in processes for line in process.communicate()[0].split()]
    assert sorted(claimed) == list(range(200))
    assert [process.returncode for process in processes] == [0] * 4
    assert len(Queue(machine, "q").running()) == 200


def test_each_ticket_is_claimed_once_even_where_the_lock_does_nothing(machine, ticket, monkeypatch):
    queue = Queue(machine, "q")
    queue.submit([ticket("a"), ticket("b")])
    rival = Queue(machine, "q")
    # As some filesystems do, it grants the lock to everybody.
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    stolen = []

    def while_another_claims(_):
        if not stolen:
            stolen.extend(rival.claim(2, anything, limit=1))
        return "take"

    mine = queue.claim(1, while_another_claims, limit=2)
    assert [c.ticket.name for c in stolen] == ["a"]
    assert [c.ticket.name for c in mine] == ["b"]


def test_numbers_are_given_once_to_processes_that_race(machine, tmp_path):
    code = (
        "import sys, pathlib\nfrom snakemake_kochi.paths import Root\n"
        "from snakemake_kochi.queue import allocate_ids\n"
        "m = Root(pathlib.Path(sys.argv[1])).machine('local')\n"
        "for _ in range(30): print(*allocate_ids(m, 'job', 2))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path / "root"], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    numbers = [int(n) for process in processes for n in process.communicate()[0].split()]
    assert sorted(numbers) == list(range(180))
    assert allocate_ids(machine, "worker", 1) == range(1)


@pytest.mark.parametrize("is_forgotten", [False, True])
@pytest.mark.parametrize("how", ["killed", "EIO"])
def test_a_range_that_was_made_again_below_the_floor_gives_no_number_twice(
    machine, monkeypatch, how, is_forgotten
):
    def put(path, **keys):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_json({"version": 1, **keys}))

    put(machine.number_floor("job"), next=1000)
    put(machine.number_range("job", 1000), next=1200)
    put(machine.ids, job=990, worker=0)  # after a power failure
    behind = machine.ids.read_bytes()
    made_again, real = machine.number_range("job", 990), Path.unlink

    class Killed(BaseException):
        pass

    def unlink(path, missing_ok=False):
        if path == made_again:
            raise Killed if how == "killed" else OSError(errno.EIO, "Input/output error")
        real(path, missing_ok)

    with monkeypatch.context() as patch, pytest.raises((Killed, KochiError)):
        patch.setattr(Path, "unlink", unlink)
        allocate_ids(machine, "job", 100)
    assert made_again.exists(), "it ends at 1090"
    if is_forgotten:
        old = old_ranges(machine, "job")
        raise_floor(machine, "job", old)
        for path in old:
            path.unlink()
    for expected in (range(1200, 1210), range(1210, 1220)):
        assert allocate_ids(machine, "job", 10) == expected
        machine.ids.write_bytes(behind)


@pytest.mark.parametrize("content", [None, b"", b'{"version": 1}'])
def test_without_the_counter_numbers_go_on_after_the_largest_in_use(machine, ticket, content):
    queue = Queue(machine, "q")
    queue.submit([ticket() for _ in range(300)])
    (claim,) = queue.claim(41, anything)
    queue.finish(claim, result_of(claim))

    def lose_the_counter():
        if content is None:
            machine.ids.unlink()
        else:
            machine.ids.write_bytes(content)

    lose_the_counter()
    assert queue.submit([ticket()])[0].job == 300, "after one that waits"
    for claim in queue.claim(41, anything, limit=999):
        queue.finish(claim, result_of(claim))
    lose_the_counter()
    assert queue.submit([ticket()])[0].job == 301, "after one that ended"
    queue.claim(41, anything)
    lose_the_counter()
    assert allocate_ids(machine, "job", 1) == range(302, 303), "after one that runs"
    assert allocate_ids(machine, "worker", 1) == range(42, 43), "after one that holds a ticket"
    machine.worker(77).directory.mkdir(parents=True)
    lose_the_counter()
    assert allocate_ids(machine, "worker", 1) == range(78, 79)


def test_a_result_reaches_its_controller_and_stays_with_the_job(machine, ticket):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity), ticket("not mine")])
    first, second = queue.claim(4, anything, limit=2)
    failure = result_of(first, reason="failed", exit_status=3)
    assert queue.finish(first, failure)
    assert queue.finish(second, result_of(second))
    assert inbox.wait(60) == [failure]
    assert inbox.wait(0) == [], "each once"
    view = find_job(machine, 0)
    assert (view.state, view.result, view.worker) == ("ended", failure, 4)
    assert view.ticket == first.ticket
    assert queue.running() == []
    inbox.close()
    assert not any(machine.controllers.iterdir())


def test_a_result_for_a_controller_that_is_gone_stays_with_the_job(machine, ticket):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity)])
    inbox.close()
    (claim,) = queue.claim(0, anything)
    assert queue.finish(claim, result_of(claim))
    assert find_job(machine, 0).result.ok


def test_a_controller_can_be_woken_without_a_result(machine):
    inbox = Inbox.create(machine)
    inbox.wake()
    assert inbox.wait(600) == []
    inbox.close()


def test_a_late_result_is_kept_and_ignored(machine, ticket):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity)])
    (lost,) = queue.claim(1, anything)
    machine.job(0).directory.mkdir(parents=True)
    machine.job(0).attempt(1).write_text("{}")
    queue.requeue(lost)
    (again,) = queue.claim(2, anything)
    assert again.ticket.attempt == 2, "an attempt that started has used up its number"
    assert not queue.finish(lost, result_of(lost, reason="failed", exit_status=9))
    assert find_job(machine, 0).state == "running"
    assert queue.finish(again, result_of(again))
    assert not queue.finish(lost, result_of(lost))
    assert [r.nonce for r in inbox.wait(60)] == [again.nonce]
    assert find_job(machine, 0).result.nonce == again.nonce
    late = json.loads(machine.job(0).late_result(lost.nonce).read_text())
    assert late["exit_status"] == 9, "written once"
    inbox.close()


def test_a_claim_requeued_unstarted_keeps_its_number_and_its_place(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket("a"), ticket("b")])
    (claim,) = queue.claim(1, anything)
    queue.requeue(claim)
    claims = queue.claim(1, anything, limit=2)
    assert [(c.ticket.name, c.ticket.attempt) for c in claims] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("left", ["waiting", "running"])
def test_a_finish_that_was_killed_half_way_is_completed(machine, ticket, left, monkeypatch):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity), ticket("next")])
    (claim,) = queue.claim(1, anything)
    machine.job(0).directory.mkdir(parents=True)
    machine.job(0).result.write_bytes(to_json(result_of(claim).to_dict()))
    assert find_job(machine, 0).state == "ended", "the result is what counts"
    if left == "waiting":
        os.rename(claim.path, queue.paths.waiting_ticket(0, 1))
        assert [c.ticket.name for c in queue.claim(1, anything)] == ["next"]
    else:
        queue.requeue(claim)
        assert [v.ticket.name for v in queue.waiting()] == ["next"]
    assert inbox.wait(60) == [result_of(claim)]
    assert machine.job(0).ticket.exists()
    inbox.close()


def test_a_result_delivered_twice_is_returned_once(machine, ticket):
    from snakemake_kochi.queue.ending import deliver

    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity)])
    (claim,) = queue.claim(1, anything)
    queue.finish(claim, result_of(claim))
    assert len(inbox.wait(60)) == 1
    deliver(machine, result_of(claim), inbox.identity)
    assert inbox.wait(60) == []
    inbox.close()


def test_deliveries_are_read_at_the_same_time_where_the_filesystem_is_slow(
    machine, ticket, monkeypatch
):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity) for _ in range(5)])
    for claim in queue.claim(1, anything, limit=5):
        queue.finish(claim, result_of(claim))
    meeting, count = threading.Barrier(3), itertools.count()

    def slow(*arguments):
        # After two slow calls, the others are made at the same time.
        time.sleep(0.01) if next(count) < 2 else meeting.wait(60)
        return read_result_now(*arguments)

    monkeypatch.setattr("snakemake_kochi.queue.inbox.read_result_now", slow)
    assert [result.job for result in inbox.wait(60)] == [0, 1, 2, 3, 4]
    inbox.close()


def test_many_deliveries_are_removed_beside_the_results_and_at_the_end(
    machine, ticket, monkeypatch
):
    monkeypatch.setattr("snakemake_kochi.queue.deliveries.SHARD", 4)
    inbox = Inbox.create(machine)
    paths = machine.controller(inbox.identity)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity) for _ in range(40)])
    claims = queue.claim(1, anything, limit=40)
    for claim in claims[:5]:
        queue.finish(claim, result_of(claim))
    assert len(inbox.wait(60)) == 5
    wait_until(lambda: not list(paths.inbox.iterdir()), "the removal of the deliveries")
    for claim in claims[5:]:
        queue.finish(claim, result_of(claim))
    assert sorted(result.job for result in inbox.wait(60)) == list(range(5, 40))
    inbox.close()
    # Nobody waits for the rest: a packer removes it.
    assert controller_names(machine) == []
    assert len(removed_controllers(machine)) == 1
    pack(machine)
    assert list(machine.controllers.iterdir()) == []


def test_tickets_are_written_at_the_same_time_where_the_filesystem_is_slow(
    machine, ticket, monkeypatch
):
    meeting, count = threading.Barrier(3), itertools.count()

    def slow(path, content):
        time.sleep(0.01) if next(count) < 2 else meeting.wait(60)
        return write_new(path, content)

    monkeypatch.setattr("snakemake_kochi.queue.submitting.write_new", slow)
    queue = Queue(machine, "q")
    queue.submit([ticket(f"n{number}") for number in range(5)])
    claims = queue.claim(1, anything, limit=5)
    assert [claim.ticket.name for claim in claims] == [f"n{number}" for number in range(5)]


def test_no_ticket_is_submitted_if_one_of_many_cannot_be_written(machine, ticket, monkeypatch):
    count = itertools.count()

    def slow(path, content):
        time.sleep(0.01)
        if next(count) == 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_new(path, content)

    monkeypatch.setattr("snakemake_kochi.queue.submitting.write_new", slow)
    queue = Queue(machine, "q")
    with pytest.raises(KochiError, match="no ticket was submitted"):
        queue.submit([ticket() for _ in range(20)])
    assert queue.is_empty() and list(queue.paths.submissions.iterdir()) == []


def test_a_waiting_job_is_cancelled_at_once(machine, ticket):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket("keep"), ticket("drop", controller=inbox.identity)])
    assert cancel(machine, 1) == "cancelled"
    (result,) = inbox.wait(60)
    assert (result.job, result.reason, result.describe()) == (1, "cancelled", "cancelled")
    assert cancel(machine, 1) == "ended"
    assert [c.ticket.name for c in queue.claim(0, anything, limit=5)] == ["keep"]
    inbox.close()


def test_a_cancelled_job_that_is_requeued_ends(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    (claim,) = queue.claim(0, anything)
    assert cancel(machine, 0) == "cancelling"
    assert find_job(machine, 0).cancelling
    queue.requeue(claim)
    assert find_job(machine, 0).result.reason == "cancelled"


def test_an_unknown_job_is_an_error_that_says_which_are_known(machine, ticket):
    for look in (find_job, cancel):
        with pytest.raises(NameNotFoundError, match=r"no job 5.*there are none"):
            look(machine, 5)
    Queue(machine, "q").submit([ticket(), ticket()])
    with pytest.raises(NameNotFoundError, match="jobs 0 to 1"):
        find_job(machine, 5)


def test_jobs_are_listed_newest_first_across_queues_and_states(machine, ticket):
    a, b = Queue(machine, "a"), Queue(machine, "b")
    a.submit([ticket() for _ in range(300)])
    b.submit([ticket("last")])
    for claim in a.claim(0, anything, limit=5)[:4]:
        a.finish(claim, result_of(claim))
    listed = list_jobs(machine, ended=True, limit=1000)
    assert [v.job for v in listed] == list(range(300, -1, -1))
    assert [v.state for v in listed[-6:]] == ["waiting", "running", *["ended"] * 4]
    assert [v.job for v in list_jobs(machine, ended=True, limit=3)] == [300, 299, 298]
    assert len(list_jobs(machine, ended=False, limit=1000)) == 297


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 99}', pickle.dumps(print)]
)
def test_a_damaged_ticket_is_set_aside_and_the_next_one_runs(machine, ticket, content, caplog):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity), ticket("good")])
    queue.paths.waiting_ticket(0, 1).write_bytes(content)
    assert [c.ticket.name for c in queue.claim(0, anything, limit=5)] == ["good"]
    (kept,) = queue.paths.damaged.iterdir()
    assert kept.read_bytes() == content
    assert str(queue.paths.waiting_ticket(0, 1)) in caplog.text
    (result,) = inbox.wait(60)
    assert (result.job, result.ok) == (0, False), "it does not wait for ever"
    assert str(kept) in result.describe()
    assert find_job(machine, 0).state == "ended"
    inbox.close()


def test_a_ticket_renamed_to_another_job_is_damaged(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    os.rename(queue.paths.waiting_ticket(0, 1), queue.paths.waiting_ticket(5, 1))
    assert queue.claim(0, anything) == []
    assert find_job(machine, 5).state == "ended"


def test_a_damaged_counter_is_an_error_and_gives_no_number_twice(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    machine.ids.write_text("{")
    with pytest.raises(DamagedFileError, match=r"ids\.json") as caught:
        queue.submit([ticket()])
    assert len(queue.waiting()) == 1
    assert caught.value.hint == (
        f"To continue with the number after the largest one in use, type: rm {machine.ids}"
    )
    machine.ids.unlink()
    assert queue.submit([ticket()])[0].job == 1


@pytest.mark.parametrize("name", ["../../x", "", ".", "a/b", "a\nb", "-q"])
def test_an_invalid_queue_name_is_refused_and_nothing_is_written(machine, name, tmp_path):
    with pytest.raises(KochiError, match="cannot be used"):
        Queue(machine, name)
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_private_and_plain_json(machine, ticket):
    inbox = Inbox.create(machine)
    queue = Queue(machine, "q")
    queue.submit([ticket(controller=inbox.identity), ticket()])
    (claim,) = queue.claim(0, anything)
    queue.finish(claim, result_of(claim))
    for path in machine.directory.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_dir():
            assert mode == 0o700, path
        else:
            assert mode == 0o600, path
        if path.suffix == ".json":
            assert isinstance(json.loads(path.read_text())["version"], int)
    inbox.close()


def test_the_package_loads_neither_snakemake_nor_git_nor_pandas():
    code = "import snakemake_kochi.queue, snakemake_kochi.worker, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "snakemake_kochi.worker" in loaded.stdout.split()
    assert not {"snakemake", "git", "pandas", "pickle"} & set(loaded.stdout.split())


def test_results_are_described_in_words(machine, ticket):
    queue = Queue(machine, "q")
    queue.submit([ticket()])
    (claim,) = queue.claim(0, anything)
    words = {
        "succeeded": {},
        "exit status 2": {"reason": "failed", "exit_status": 2},
        "killed by SIGKILL": {"reason": "signal", "exit_status": None, "signal": 9},
        "killed by signal 99": {"reason": "signal", "exit_status": None, "signal": 99},
        "lost: x": {"reason": "lost", "detail": "x"},
    }
    for text, fields in words.items():
        assert result_of(claim, **fields).describe() == text
