"""Each submission has directories of its own: it is one rename, and the order is kept."""

from __future__ import annotations

import errno
import itertools
import os
import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from file_calls import Calls
from hypothesis import given
from hypothesis import strategies as st
from support import waiting_file

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import to_json
from snakemake_kochi.paths import SHARD, MachinePaths, QueuePaths
from snakemake_kochi.queue import Queue, Ticket, cancel, cancel_all, list_jobs
from snakemake_kochi.queue.claiming import Answer, Claim
from snakemake_kochi.queue.entries import count_before, find_entries, find_entry, waiting_entries
from snakemake_kochi.queue.skipped import ClaimSettings
from snakemake_kochi.queue.waiting import in_order, in_reverse_order, span_of
from snakemake_kochi.queue.wakeup import subscribe

MakeTicket = Callable[..., Ticket]


def take(_: Ticket) -> Answer:
    return "take"


def jobs(claims: list[Claim]) -> list[int]:
    return [claim.ticket.job for claim in claims]


def directories(queue: Queue) -> list[str]:
    return sorted(path.name for path in queue.paths.waiting.iterdir())


@pytest.fixture
def queue(machine: MachinePaths) -> Queue:
    return Queue(machine, "q")


@pytest.fixture
def renames(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources of all renames."""
    real, found = os.rename, list[Path]()

    def rename(source: Path | str, target: Path | str) -> None:
        found.append(Path(source))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    return found


def start_at(machine: MachinePaths, job: int) -> None:
    machine.ids.write_bytes(to_json({"version": 1, "job": job, "worker": 0}))


def test_a_submission_is_one_rename_for_each_shard_whatever_waits_there(
    machine: MachinePaths, queue: Queue, ticket: MakeTicket, renames: list[Path]
) -> None:
    queue.submit([ticket()])
    start_at(machine, 10)
    for count, expected in ((80, 1), (100, 1), (100, 2), (300, 2)):
        renames.clear()
        queue.submit([ticket()] * count)
        assert len(renames) == expected
    assert [view.job for view in queue.waiting()] == [0, *range(10, 590)]
    assert list(queue.paths.submissions.iterdir()) == []


def test_submissions_are_claimed_in_their_order_with_what_came_back(
    queue: Queue, ticket: MakeTicket
) -> None:
    queue.submit([ticket()] * 5)
    queue.submit([ticket()] * 4)
    claims = queue.claim(1, take, 9)
    assert jobs(claims) == [*range(9)]
    for job in (7, 2):
        # Its worker is lost, and the attempt's number is used up.
        queue.requeue(claims[job], "lost")
    queue.submit([ticket()] * 3)
    queue.requeue(claims[8])
    again = Queue(queue.machine, "q").claim(1, take, 9)
    assert [(claim.ticket.job, claim.ticket.attempt) for claim in again] == [
        (2, 2),
        (7, 2),
        (8, 1),
        (9, 1),
        (10, 1),
        (11, 1),
    ]


@pytest.mark.parametrize("has_taken_some", [False, True])
def test_a_ticket_that_came_back_overtakes_none_that_was_submitted_before_it(
    queue: Queue, ticket: MakeTicket, has_taken_some: bool
) -> None:
    queue.submit([ticket("others")] * 4)
    queue.submit([ticket("mine")] * 6)
    settings = ClaimSettings(settling=0.0)
    mine = Queue(queue.machine, "q", settings=settings)
    claims = mine.claim(1, lambda each: "take" if each.name == "mine" else "skip", 9)
    assert jobs(claims) == [4, 5, 6, 7, 8, 9]
    for job in (9, 6):
        queue.requeue(claims[job - 4])
    other = Queue(queue.machine, "q")
    if not has_taken_some:
        assert jobs(other.claim(2, take, 9)) == [0, 1, 2, 3, 6, 9]
        return
    assert jobs(other.claim(2, take, 2)) == [0, 1], "now it claims before it reads"
    assert jobs(other.claim(2, take, 9, unread=(9, 0))) == [2, 3, 6, 9]


def test_tickets_of_a_root_of_an_earlier_state_are_claimed_and_found(
    queue: Queue, ticket: MakeTicket
) -> None:
    """It had all tickets of a shard in one directory."""
    queue.submit([ticket()] * 300)
    for name in directories(queue):
        (queue.paths.waiting / name).rename(queue.paths.waiting / name.partition("-")[0])
    assert directories(queue) == ["00000000", "00000001"]
    queue.submit([ticket()] * 50)
    assert len(directories(queue)) == 3
    assert count_before(queue.paths, 310) == 310
    assert cancel(queue.machine, 17) == cancel(queue.machine, 317) == "cancelled"
    left = [job for job in range(350) if job not in (17, 317)]
    assert sorted(find_entries(queue.paths)) == left
    assert jobs(queue.claim(1, take, 400)) == left
    assert directories(queue) == []


@pytest.mark.parametrize("count", [1, 2])
def test_many_small_submissions_share_a_directory_and_leave_none(
    queue: Queue, ticket: MakeTicket, count: int
) -> None:
    for _ in range(300 // count):
        queue.submit([ticket()] * count)
    assert directories(queue) == ["00000000", "00000001"]
    assert list(queue.paths.submissions.iterdir()) == []
    assert jobs(queue.claim(1, take, 400)) == [*range(300)]
    assert directories(queue) == []


@pytest.mark.parametrize("how", ["claim", "claim unread", "claim one by one", "cancel"])
def test_no_directory_is_left_of_submissions_that_are_over(
    queue: Queue, ticket: MakeTicket, how: str
) -> None:
    for _ in range(60):
        queue.submit([ticket()] * 5)
    assert len(directories(queue)) == 60 + 1, "one goes over the end of a shard"
    if how == "cancel":
        assert len(cancel_all(queue.machine, [*range(150)])) == 150
        for job in range(150, 300):
            cancel(queue.machine, job)
    claimed: list[int] = []
    limit, unread = (2, (9, 20)) if how == "claim unread" else (1, (0, 0))
    limit = 400 if how == "claim" else limit
    while claims := queue.claim(1, take, limit, unread=unread):
        claimed += jobs(claims)
    assert claimed == ([] if how == "cancel" else [*range(300)])
    assert directories(queue) == []


def kill_after_claims(queue: Queue, count: int) -> None:
    """A worker claims the first tickets and is killed then."""
    for job in range(count):
        os.rename(waiting_file(queue, job), queue.paths.running_ticket(job, 1, 3))


@pytest.mark.parametrize("count", [1, 3])
def test_a_directory_that_a_killed_worker_has_emptied_goes_with_the_next_claims(
    machine: MachinePaths, queue: Queue, ticket: MakeTicket, count: int
) -> None:
    queue.submit([ticket()] * count)
    other = Queue(machine, "q")
    skipping = Queue(machine, "q", settings=ClaimSettings(trust=0.0))
    assert skipping.claim(1, lambda _: "skip") == []
    kill_after_claims(queue, count)
    assert len(directories(queue)) == 1
    start_at(machine, 2 * SHARD)
    queue.submit([ticket()] * 2)
    assert [jobs(skipping.claim(1, take)) for _ in range(2)] == [[2 * SHARD], [2 * SHARD + 1]]
    assert directories(queue) == []
    assert other.claim(2, take) == []


def test_the_empty_directory_of_a_submission_goes_with_the_next_look_also_if_nothing_waits(
    queue: Queue, ticket: MakeTicket, calls: Calls
) -> None:
    queue.submit([ticket()] * 3)
    kill_after_claims(queue, 3)
    calls.clear()
    assert queue.claim(1, take) == []
    assert directories(queue) == [] and len(calls.locks()) == 0


def test_a_job_is_found_by_listing_two_directories_of_tickets(
    queue: Queue, ticket: MakeTicket, calls: Calls
) -> None:
    queue.submit([ticket()])
    for _ in range(40):
        queue.submit([ticket()] * 3)
    for job in (0, 1, 77, 120):
        calls.clear()
        entry = find_entry(queue.paths, job)
        assert entry is not None and entry.job == job
        assert len(calls.shards()) <= 2
    calls.clear()
    assert find_entry(queue.paths, 100_000) is None
    assert calls.shards() == []
    assert sorted(find_entries(queue.paths, (5, 6, 90, 7000))) == [5, 6, 90]


def test_submissions_of_others_are_neither_listed_nor_asked_about_again(
    queue: Queue,
    machine: MachinePaths,
    ticket: MakeTicket,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(30):
        queue.submit([ticket(controller="they")] * 20)
    mine = Queue(machine, "q", "me")
    assert mine.claim(1, take) == mine.claim(1, take) == []
    calls.clear()
    asked, real = list[str](), os.stat

    def noted(path: str, *rest: object, **options: object) -> os.stat_result:
        asked.append(os.fspath(path))
        return real(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", noted)
    assert mine.claim(1, take) == []
    assert [path for path in asked if "/waiting/" in path] == []
    assert calls.shards() == []
    queue.submit([ticket(controller="me")])
    assert jobs(mine.claim(1, take)) == [600]


def test_tickets_of_others_that_came_back_are_not_listed_with_each_claim(
    machine: MachinePaths, queue: Queue, ticket: MakeTicket, calls: Calls
) -> None:
    for _ in range(4):
        queue.submit([ticket(controller="they")] * SHARD)
    mine = Queue(machine, "q", "me", settings=ClaimSettings(settling=0.0))
    assert mine.claim(1, take) == []
    for claim in queue.claim(2, take, 2000):
        queue.requeue(claim)
    assert directories(queue) == [f"{shard:08d}" for shard in range(4)]
    for _ in range(3):
        assert mine.claim(1, take) == []
    calls.clear()
    assert mine.claim(1, take) == []
    assert calls.shards() == []


def test_the_last_tickets_of_many_submissions_are_shared_without_a_look_into_all(
    queue: Queue, ticket: MakeTicket, calls: Calls
) -> None:
    queue.submit([ticket()] * 4)
    assert len(queue.claim(1, take, limit=4)) == 4, "the next ones are like these"
    for worker in range(1, 5):
        subscribe(queue.paths, worker)
    for _ in range(3):
        queue.submit([ticket()] * 8)
    calls.clear()
    assert jobs(queue.claim(1, take, 40, unread=(1, 7))) == [4, 5, 6, 7, 8, 9]
    assert len(calls.shards()) == 1


def test_where_directories_cannot_be_renamed_tickets_come_one_by_one_all_or_none(
    machine: MachinePaths, queue: Queue, ticket: MakeTicket, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.submit([ticket()])
    start_at(machine, 250)
    real, fails_at = os.rename, 257

    def rename(source: Path | str, target: Path | str) -> None:
        if stat.S_ISDIR(os.lstat(source).st_mode):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        if os.path.basename(source) == f"{fails_at:010d}-1.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(KochiError, match="No space left"):
        queue.submit([ticket()] * 10)
    assert [view.job for view in queue.waiting()] == [0]
    assert list(queue.paths.submissions.iterdir()) == []
    fails_at = -1
    queue.submit([ticket()] * 10)
    assert list(queue.paths.submissions.iterdir()) == []
    assert jobs(queue.claim(1, take, 20)) == [0, *range(260, 270)]


def test_a_submission_that_got_there_although_that_was_an_error_is_not_there_twice(
    queue: Queue, ticket: MakeTicket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file server makes its rename long after it has answered with an error, and just after the
    look for what is missing."""
    numbered = queue.number([ticket()] * 5)
    queue.hand_over(numbered)
    find_missing, looked = queue.find_missing, list[int]()

    def find_before(tickets: list[Ticket]) -> list[Ticket]:
        looked.append(len(tickets))
        return tickets if len(looked) == 1 else find_missing(tickets)

    with monkeypatch.context() as patched:
        patched.setattr(queue, "find_missing", find_before)
        queue.hand_over(numbered, again=True)
    assert looked == [5, 5]
    assert [entry.job for entry in waiting_entries(queue.paths)] == [*range(5)]
    assert list(queue.paths.submissions.iterdir()) == []


def test_the_newest_jobs_come_first_in_a_list_also_those_that_came_back(
    queue: Queue, ticket: MakeTicket
) -> None:
    for _ in range(60):
        queue.submit([ticket()] * 5)
    claims = queue.claim(1, take, 290)
    for claim in random.Random(1).sample(claims, 40):
        queue.requeue(claim)
    waiting = [entry.job for entry in waiting_entries(queue.paths)]
    assert len(waiting) == 50 and waiting == sorted(waiting)
    newest = [entry.job for entry in waiting_entries(queue.paths, newest_first=True)]
    assert newest == waiting[::-1]
    listed = [view.job for view in list_jobs(queue.machine, limit=300)]
    assert listed == [*range(299, -1, -1)]


@dataclass(frozen=True)
class Numbered:
    job: int


@given(
    ends=st.sets(st.integers(1, 3 * SHARD), min_size=1, max_size=30),
    back=st.sets(st.integers(0, 3 * SHARD - 1), max_size=30),
    gone=st.sets(st.integers(0, 3 * SHARD - 1), max_size=30),
)
def test_tickets_of_all_directories_come_in_order_and_no_directory_is_listed_too_soon(
    ends: set[int], back: set[int], gone: set[int]
) -> None:
    content: dict[str, list[int]] = {}
    bounds = sorted({0, *ends, *range(0, max(ends), SHARD)})
    for first, end in itertools.pairwise(bounds):
        own = [job for job in range(first, end) if job not in back and job not in gone]
        content[QueuePaths.submitted_shard(first, end - 1)] = own
    for job in sorted(back):
        content.setdefault(QueuePaths.shard_name(job), []).append(job)
    spans = {name: span for name in content if (span := span_of(name)) is not None}
    every = sorted(job for own in content.values() for job in own)

    def look_into(name: str) -> Iterator[Numbered]:
        listed.append(name)
        return iter([Numbered(job) for job in sorted(content[name], reverse=is_reverse)])

    listed, is_reverse = list[str](), False
    for entry, job in zip(in_order(sorted(content), look_into), every, strict=True):
        assert entry.job == job
        assert all(spans[name].first <= job for name in listed)
    listed, is_reverse = [], True
    assert [entry.job for entry in in_reverse_order(content, look_into)] == every[::-1]
