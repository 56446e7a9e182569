"""Calls of a slow filesystem that a worker makes at the same time."""

from __future__ import annotations

import errno
import os
import signal
import threading
from functools import partial

import pytest

from snakemake_kochi.files.together import Together
from snakemake_kochi.queue.result import read_attempt
from tests.worker.conftest import Site

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


def test_two_jobs_that_end_at_once_are_ended_at_once_where_the_filesystem_is_slow(
    site: Site,
) -> None:
    there, done = "echo > there$KOCHI_JOB_ID", "echo > done$KOCHI_JOB_ID"
    until_go = f"{there}; until [ -e go ]; do sleep 0.01; done; {done}"
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
