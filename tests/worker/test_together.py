"""Calls of a slow filesystem that are made at the same time, or beside other work."""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from functools import partial

import pytest

from snakemake_kochi.files.together import Background, Together, settle
from snakemake_kochi.queue.result import read_attempt
from tests.worker.conftest import Site
from tests.worker.test_spawner import submit

# Opening files of jobs is slow, so that the worker takes its filesystem for a slow one. A link
# publishes the end of a job: the first two wait until both are being made.
MEETING = """
import os, threading, time
open_file, link = os.open, os.link
meeting = threading.Barrier(2)
def slow_open(path, *arguments, **options):
    if "/jobs/" in os.fspath(path):
        time.sleep(0.01)
    return open_file(path, *arguments, **options)
def meet(source, target, **options):
    if "/jobs/" in os.fspath(target) and not os.path.exists("met"):
        meeting.wait(60)
        open("met", "w").close()
    return link(source, target, **options)
os.open, os.link = slow_open, meet
"""


def test_on_a_slow_filesystem_calls_are_made_at_the_same_time() -> None:
    together, meeting = Together(slow=0.0), threading.Barrier(3)
    before = threading.enumerate()
    assert sorted(map(str, together([partial(meeting.wait, 60)] * 3))) == ["0", "1", "2"]
    assert not {*threading.enumerate()} - {*before}


def test_on_a_fast_filesystem_one_thread_makes_all_calls_in_their_order() -> None:
    seen: list[tuple[int, int]] = []
    together = Together(slow=60.0)
    for _ in range(2):
        together([lambda n=n: seen.append((n, threading.get_ident())) for n in range(20)])  # type: ignore[misc]
    assert seen == [(n, threading.get_ident()) for n in range(20)] * 2


def test_calls_are_made_at_the_same_time_as_soon_as_two_of_them_were_slow() -> None:
    together, meeting = Together(slow=0.01), threading.Barrier(3)

    def call(number: int) -> None:
        if number < 2:
            time.sleep(0.02)
        else:
            meeting.wait(60)

    assert together([partial(call, number) for number in range(5)]) == [None] * 5


def test_the_first_error_of_several_calls_is_raised_when_all_were_made() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        if number in (1, 2):
            raise OSError(number, "fault")
        return number

    together = Together()
    assert together.all([partial(make, 3), partial(make, 4)]) == [3, 4]
    with pytest.raises(OSError, match="1"):
        together.all([partial(make, number) for number in range(4)])
    assert sorted(made) == [0, 1, 2, 3, 3, 4]


def test_a_call_in_the_background_is_made_while_its_owner_goes_on() -> None:
    background: Background[str, int] = Background()
    go = threading.Event()

    def fail() -> int:
        go.wait(60)
        raise OSError(errno.EIO, "fault")

    background.begin("slow", fail)
    background.begin("quick", partial(int, 1))
    taken: dict[str, int | Exception] = {}
    while "quick" not in taken:
        select.select([background], [], [], 60)
        background.attend()
        taken |= dict(background.take())
    assert taken == {"quick": 1}
    go.set()
    settle()
    assert select.select([background], [], [], 60)[0]
    ((key, outcome),) = background.take()
    assert key == "slow" and isinstance(outcome, OSError)
    background.attend()
    assert not select.select([background], [], [], 0)[0]


def test_calls_in_the_background_are_made_a_few_at_a_time() -> None:
    background: Background[int, int] = Background()
    lock, running, most = threading.Lock(), 0, 0

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1
        return number

    for number in range(40):
        background.begin(number, partial(call, number))
    settle()
    assert dict(background.take()) == {number: number for number in range(40)}
    assert 1 < most <= 8
    settle()


def test_the_answers_and_errors_of_calls_are_in_the_order_of_the_calls() -> None:
    def fail() -> int:
        raise OSError(errno.EIO, "fault")

    together = Together(slow=0.0)
    for _ in range(3):
        answers = together([lambda: 1, fail, lambda: 3] * 10)
        assert [answers[0], answers[2]] == [1, 3]
        assert all(isinstance(answer, OSError) for answer in answers[1::3])
        assert answers[::3] == [1] * 10 and answers[2::3] == [3] * 10
    assert together([]) == []


def test_without_more_threads_the_calls_are_made_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert Together(slow=0.0)([lambda: 1, lambda: 2]) == [1, 2]
    background: Background[str, int] = Background()
    background.begin("here", partial(int, 3))
    background.begin("here, too", partial(int, 4))
    assert background.take() == [("here", 3), ("here, too", 4)]


def test_two_jobs_that_end_at_once_are_ended_at_once_where_the_filesystem_is_slow(
    site: Site,
) -> None:
    there, done = "echo > there$KOCHI_JOB_ID", "echo > done$KOCHI_JOB_ID"
    until_go = f"{there}; until [ -e go ]; do sleep 0.1; done; {done}"
    jobs = [ticket.job for ticket in site.submit(until_go, until_go, "true", "true")]
    worker = site.start_changed(MEETING, cores=2, cwd=site.directory)
    for job in jobs[:2]:
        site.wait_for(f"there{job}")
    # Both jobs end while the worker stands still, so it sees both ends with one look.
    pid = site.worker_of(worker)
    os.kill(pid, signal.SIGSTOP)
    (site.directory / "go").touch()
    for job in jobs[:2]:
        site.wait_for(f"done{job}")
        process = read_attempt(site.machine.job(job).attempt(1)).process
        site.wait_until(lambda process=process: not process.is_alive())
    os.kill(pid, signal.SIGCONT)
    assert all(site.ended(job).result.ok for job in jobs)  # type: ignore[union-attr]
    assert worker.wait() == 0


# The end of the first job is published only when the file `go` is there.
HELD_END = """
import os, time
open_file, link = os.open, os.link
def slow_open(path, *arguments, **options):
    if "/jobs/" in os.fspath(path):
        time.sleep(0.01)
    return open_file(path, *arguments, **options)
def held_link(source, target, **options):
    target = os.fspath(target)
    while target.endswith("/0/result.json") and not os.path.exists("go"):
        time.sleep(0.01)
    return link(source, target, **options)
os.open, os.link = slow_open, held_link
"""


@pytest.mark.parametrize("is_told_to_stop", [False, True])
def test_the_next_job_runs_while_the_end_of_the_last_one_is_published(
    site: Site, is_told_to_stop: bool
) -> None:
    rest = "sleep 600" if is_told_to_stop else "sleep 0.5"
    first, second = (each.job for each in submit(site, "true", f"echo > second; {rest}"))
    worker = site.start_changed(HELD_END, cores=1, cwd=site.directory)
    site.wait_for("second")
    assert site.job(first).state == "running"
    if is_told_to_stop:
        # It waits for that end; the job that still runs goes back to the queue.
        os.kill(site.worker_of(worker), signal.SIGTERM)
        site.wait_until(lambda: site.job(second).state == "waiting")
        assert site.job(first).state == "running"
    (site.directory / "go").touch()
    assert site.ended(first).result.ok  # type: ignore[union-attr]
    if not is_told_to_stop:
        assert site.ended(second).result.ok  # type: ignore[union-attr]
    worker.wait()


def test_a_worker_that_is_killed_while_an_end_is_published_loses_nothing(site: Site) -> None:
    first, second = (each.job for each in submit(site, "true", "echo > second; sleep 600"))
    worker = site.start_changed(HELD_END, cores=1, cwd=site.directory)
    site.wait_for("second")
    os.kill(site.worker_of(worker), signal.SIGKILL)
    worker.wait()
    (site.directory / "second").unlink()
    site.start(cores=3)
    assert site.ended(first).result.ok  # type: ignore[union-attr]
    site.wait_for("second")
    views = [site.job(number) for number in (first, second)]
    assert [view.ticket.attempt for view in views if view.ticket is not None] == [2, 2]


def test_a_job_that_forks_the_worker_starts_when_no_end_is_being_published(site: Site) -> None:
    held = (
        HELD_END
        + """
fork = os.fork
import threading
def checked_fork():
    others = [each.name for each in threading.enumerate() if each is not threading.main_thread()]
    with open("threads", "a") as file:
        print(len(others), file=file)
    return fork()
os.fork = checked_fork
"""
    )
    (site.directory / "go").touch()
    jobs = [ticket.job for ticket in site.submit("true", "true", "true", "true")]
    site.start_changed(held, cores=1, cwd=site.directory)
    assert all(site.ended(job).result.ok for job in jobs)  # type: ignore[union-attr]
    assert set(site.wait_for("threads").split()) == {"0"}
