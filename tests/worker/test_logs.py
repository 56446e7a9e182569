"""Directories and logs of held tickets, which are made while other jobs run."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from snakemake_kochi.files import create_directory, to_json
from snakemake_kochi.files.together import Together, settle
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue import Queue
from snakemake_kochi.queue.claiming import Claim
from snakemake_kochi.worker.logs import AlreadyCancelledError, Log, Logs
from snakemake_kochi.worker.node.capacity import find_gpus
from snakemake_kochi.worker.node.devices import Devices
from snakemake_kochi.worker.runners.interface import Runners
from snakemake_kochi.worker.starts import AlreadyBegunError, Starts
from tests.worker.conftest import AHEAD, Site

HEADER = "-- attempt 2: worker 0 on "


def claim_all(site: Site, count: int) -> list[Claim]:
    return Queue(site.machine, "q").claim(0, lambda _: "take", limit=count)


def prepared(site: Site, claims: Sequence[Claim]) -> Logs:
    logs = Logs(site.machine, Together(), slow=0.0)
    logs.prepare(claims)
    settle()
    return logs


def opened(logs: Logs, claim: Claim) -> Log:
    (log,) = logs.open([claim])
    assert isinstance(log, Log)
    os.close(log.descriptor)
    return log


def descriptors_of(path: object) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}") == str(path):
                found.append(name)
    return found


def test_the_log_of_a_held_ticket_is_made_before_its_start_where_the_filesystem_is_slow(
    site: Site,
) -> None:
    site.submit("true")
    (claim,) = claim_all(site, 1)
    logs = prepared(site, [claim])
    paths = site.machine.job(claim.ticket.job)
    assert [path.name for path in paths.directory.iterdir()] == ["log"]
    inode = paths.log.stat().st_ino
    log = opened(logs, claim)
    assert (log.path, log.offset, log.is_new) == (paths.log, 0, False)
    assert (paths.log.stat().st_ino, site.log(claim.ticket.job)) == (inode, "")


def test_on_a_fast_filesystem_nothing_is_made_before_the_start(site: Site) -> None:
    site.submit("true")
    (claim,) = claim_all(site, 1)
    logs = Logs(site.machine, Together(), slow=60.0)
    logs.prepare([claim])
    settle()
    assert not site.machine.job(claim.ticket.job).directory.exists()
    assert opened(logs, claim).is_new


def test_the_header_of_an_attempt_is_written_when_it_begins(site: Site) -> None:
    site.submit("true")
    queue = Queue(site.machine, "q")
    (first,) = claim_all(site, 1)
    opened(prepared(site, [first]), first)
    site.machine.job(0).log.write_text("output\n")
    queue.requeue(first, "node failed")
    (second,) = claim_all(site, 1)
    assert second.ticket.attempt == 2
    logs = prepared(site, [second])
    assert site.log(0) == "output\n"
    log = opened(logs, second)
    assert site.log(0).startswith(f"output\n{HEADER}")
    assert log.offset == len(site.log(0))


def test_the_logs_of_requeued_tickets_are_closed(site: Site) -> None:
    site.submit("true", "true")
    first, second = claim_all(site, 2)
    logs = prepared(site, [first, second])
    logs.prepare([second])
    assert not descriptors_of(site.machine.job(0).log)
    assert len(descriptors_of(site.machine.job(1).log)) == 1
    logs.prepare([])
    assert not descriptors_of(site.machine.job(1).log)


def test_no_log_is_made_for_a_ticket_that_was_requeued_while_calls_before_its_own_hung(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have ended the job meanwhile, and its log may be in a pack."""
    site.submit(*["true"] * 12)
    claims = claim_all(site, 12)
    is_answered = threading.Event()

    def create(path: Path) -> bool:
        is_answered.wait()
        return create_directory(path)

    monkeypatch.setattr("snakemake_kochi.worker.logs.create_directory", create)
    logs = Logs(site.machine, Together(), slow=0.0)
    logs.prepare(claims)
    logs.prepare(claims[:1])
    is_answered.set()
    settle()
    made = [site.machine.job(claim.ticket.job).log.exists() for claim in claims]
    assert (made[0], made[8:]) == (True, [False] * 4)
    assert opened(logs, claims[0]).offset == 0
    # One that comes into reach again is opened when it starts.
    logs.prepare(claims[11:])
    assert opened(logs, claims[11]).is_new
    logs.prepare([])
    assert not any(descriptors_of(site.machine.job(claim.ticket.job).log) for claim in claims)


def test_a_log_of_unknown_size_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that fails is tried again and again."""
    site.submit("true")
    (claim,) = claim_all(site, 1)
    logs = Logs(site.machine, Together(slow=60.0))

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "lseek", fail)
        (error,) = logs.open([claim])
    assert isinstance(error, OSError) and error.errno == errno.EIO
    assert not descriptors_of(site.machine.job(0).log)
    assert opened(logs, claim).offset == 0


def test_a_log_that_could_not_be_made_before_is_opened_at_the_start(site: Site) -> None:
    site.submit("true")
    (claim,) = claim_all(site, 1)
    directory = site.machine.job(0).directory
    directory.parent.mkdir(mode=0o700, parents=True)
    directory.write_text("in the way\n")
    logs = prepared(site, [claim])
    directory.unlink()
    assert opened(logs, claim).is_new


@pytest.fixture
def starts(site: Site) -> Callable[..., list[Any]]:
    """Starts a claim after its log was made and something was left beside it.

    Returns what came of the start, and what was done with the process of the job.
    """

    def start(claim: Claim, leave: Callable[[], object]) -> list[Any]:
        done: list[Any] = []
        child = SimpleNamespace(
            process=ProcessIdentity.of(os.getpid()),
            runner="command",
            release=lambda: done.append("released"),
            abandon=lambda: done.append("abandoned"),
        )
        runners = cast(Runners, SimpleNamespace(start=lambda *_: (child, "")))
        devices = Devices(1, [(0,)], find_gpus("0", {}), None)
        starts = Starts(site.machine, {}, runners, devices, Together(slow=0.0), lambda: False)
        starts.logs = prepared(site, [claim])
        leave()
        return [*starts.start([claim]), *done]

    return start


def test_a_job_whose_log_was_made_before_begins(
    site: Site, starts: Callable[..., list[Any]]
) -> None:
    site.submit("true")
    (claim,) = claim_all(site, 1)
    slot, done = starts(claim, lambda: None)
    assert (slot.claim, done) == (claim, "released")
    assert site.machine.job(0).attempt(1).exists()


def test_a_job_that_was_cancelled_since_its_log_was_made_does_not_begin(
    site: Site, starts: Callable[..., list[Any]]
) -> None:
    site.submit("true")
    (claim,) = claim_all(site, 1)
    error, done = starts(claim, site.machine.job(0).cancel.touch)
    assert (type(error), done) == (AlreadyCancelledError, "abandoned")
    Queue(site.machine, "q").requeue(claim)
    result = site.job(0).result
    assert result is not None and result.reason == "cancelled"
    assert not site.machine.job(0).attempt(1).exists()


@pytest.mark.parametrize("name", ["ended-1.json", "result.json"])
def test_a_job_that_others_took_since_its_log_was_made_does_not_begin(
    site: Site, starts: Callable[..., list[Any]], name: str
) -> None:
    site.submit("true")
    (claim,) = claim_all(site, 1)
    path = site.machine.job(0).directory / name
    error, done = starts(claim, lambda: path.write_bytes(to_json({"version": 1})))
    assert (type(error), done) == (AlreadyBegunError, "abandoned")


# Opening files of jobs takes so long that the worker makes what it can before.
SLOW_OPEN = """
import os, time
open_file = os.open
def slow_open(path, *arguments, **options):
    if "/jobs/" in os.fspath(path):
        time.sleep(0.02)
    return open_file(path, *arguments, **options)
os.open = slow_open
"""
SHORT = ["true"] * 8
UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


def start_with_one_prepared(site: Site) -> tuple[Any, int]:
    """A worker that runs a long job, and has made the log of the one behind it."""
    *_, long, held = [each.job for each in site.submit(*SHORT, UNTIL_GO, "echo begun")]
    worker = site.start_changed(AHEAD + SLOW_OPEN, cores=1, stay=True, cwd=site.directory)
    site.wait_until(site.machine.job(held).log.exists, "the log of the job behind")
    assert site.job(long).state == "running"
    return worker, held


def test_the_log_of_the_next_job_is_made_while_a_job_runs(site: Site) -> None:
    _, held = start_with_one_prepared(site)
    assert [path.name for path in site.machine.job(held).directory.iterdir()] == ["log"]
    (site.directory / "go").touch()
    assert site.ended(held).result.attempt == 1  # type: ignore[union-attr]
    assert site.log(held) == "begun\n"


def test_a_ticket_whose_log_was_made_goes_to_another_worker_after_a_kill(site: Site) -> None:
    worker, held = start_with_one_prepared(site)
    site.kill_worker(worker)
    assert site.log(held) == ""
    (site.directory / "go").touch()
    site.start(cores=1)
    assert site.ended(held).result.attempt == 2  # type: ignore[union-attr]
    header, output = site.log(held).splitlines()
    assert (header.startswith("-- attempt 2: worker 1 "), output) == (True, "begun")


def test_a_ticket_whose_log_was_made_is_requeued_as_before_its_first_attempt(site: Site) -> None:
    worker, held = start_with_one_prepared(site)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    view = site.job(held)
    assert view.ticket is not None
    assert (view.state, view.ticket.attempt, site.log(held)) == ("waiting", 1, "")
    (site.directory / "go").touch()
    site.start(cores=1)
    assert site.ended(held).result.attempt == 1  # type: ignore[union-attr]
    assert site.log(held) == "begun\n"
