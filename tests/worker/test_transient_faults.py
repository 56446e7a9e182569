"""Transient faults and lost answers end no worker and no job of it, and hold up no ticket."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.files import make_directory, to_json, write_atomically, write_exclusively
from snakemake_kochi.processes import ProcessIdentity, this_node
from snakemake_kochi.queue import Queue, find_worker
from snakemake_kochi.queue.heartbeat import PresumedDead
from snakemake_kochi.queue.result import Attempt
from snakemake_kochi.queue.ticket import now
from tests.worker.conftest import COUNT_WAKE_UPS, Site, is_running

UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"
SOON = {"idle_wait": 0.1}


def log_of(site: Site, worker: int = 0) -> str:
    return site.machine.worker(worker).log.read_text()


@pytest.fixture
def few_files(site: Site) -> Iterator[Callable[[], list[Path]]]:
    """Puts the site's root on a filesystem with few inodes; a call uses up the free ones."""
    directory = site.root.directory
    directory.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m,nr_inodes=60,mode=700", "kochi-test"]
    subprocess.run(["mount", *options, str(directory)], check=True)

    def take() -> list[Path]:
        taken: list[Path] = []
        try:
            while True:
                path = directory / f"taken{len(taken)}"
                path.touch()
                taken.append(path)
        except OSError:
            return taken

    yield take
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.mark.parametrize("is_told_to_stop", [False, True])
def test_a_ticket_that_can_neither_start_nor_be_requeued_waits_for_free_space(
    site: Site, few_files: Callable[[], list[Path]], is_told_to_stop: bool
) -> None:
    site.submit("echo here")
    waiting = site.machine.queue("q").waiting_ticket(0, 1)
    # The worker has claimed the ticket when the last inode is used; the empty shard is removed.
    site.start_changed(
        f"""
        import os, time
        from pathlib import Path
        real_open = os.open
        def open_later(path, *arguments, **options):
            if str(path) == {str(site.machine.job(0).log)!r}:
                shard = Path({str(waiting.parent)!r})
                if shard.exists():
                    shard.rmdir()
                Path("claimed").touch()
                while not Path("full").exists():
                    time.sleep(0.01)
            return real_open(path, *arguments, **options)
        os.open = open_later
        """,
        cores=1,
        stay=True,
        cwd=site.directory,
        stderr=-3,
        **SOON,
    )
    (worker,) = site.workers
    site.wait_until((site.directory / "claimed").exists)
    taken = few_files()
    (site.directory / "full").touch()
    site.wait_until(lambda: "cannot be requeued yet" in log_of(site), "both failed")
    assert not waiting.exists()
    if is_told_to_stop:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        for path in taken:
            path.unlink()
        assert site.start(cores=1).wait() == 0
    else:
        for path in taken:
            path.unlink()
    assert site.ended(0).result.ok  # type: ignore[union-attr]
    assert site.log(0).endswith("here\n")
    assert log_of(site).count("WARNING job 0 cannot be requeued yet") == 1


def test_a_lock_that_fails_for_a_while_ends_no_job(site: Site) -> None:
    site.submit("until [ -e end ]; do sleep 0.1; done", UNTIL_GO)
    worker = site.start(cores=2, stderr=-3, **SOON)
    site.wait_until(site.machine.job(1).attempt(1).exists)
    site.submit("echo third")
    locks = site.machine.locks.directory
    away = locks.with_name("away")
    locks.rename(away)
    (site.directory / "end").touch()
    assert site.ended(0).result.ok, "the end of a job needs no lock"  # type: ignore[union-attr]
    site.wait_until(lambda: "q cannot be used now" in log_of(site))
    assert worker.poll() is None
    assert site.job(2).state == "waiting"
    away.rename(locks)
    assert site.ended(2).result.ok  # type: ignore[union-attr]
    (site.directory / "go").touch()
    assert worker.wait() == 0
    result = site.job(1).result
    assert result is not None and (result.ok, result.attempt) == (True, 1)


def test_an_idle_worker_that_cannot_reach_its_queue_says_so_and_goes_on_with_others(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit("true", queue="ill")
    site.submit("true")
    with faulty.fault("readdir", errno.EIO, "*/queues/ill/waiting*") as fault:
        worker = site.start(cores=1, stay=True, queues=("ill", "q"), stderr=-3, **SOON)
        site.wait_until(site.machine.job(1).result.exists)
        site.wait_until(lambda: faulty.count(fault) >= 3, "it is tried again")
        said = "ill cannot be used now: [Errno 5] Input/output error"
        assert log_of(site).count(said) == 1
        assert worker.poll() is None
    assert site.ended(0).result.ok  # type: ignore[union-attr]
    assert site.job(1).result.ok  # type: ignore[union-attr]
    assert "no longer: ill cannot be used now" in log_of(site)


def test_a_worker_of_a_dead_controller_sleeps_while_it_cannot_see_whether_to_leave(
    site: Site, faulty: FaultyFilesystem
) -> None:
    state = site.machine.controller("c").state
    make_directory(state.parent)
    node = {"host": "login", "machine": "m", "boot": "b", "namespace": "pid:[1]"}
    fields = {"version": 1, "node": node, "process": {"pid": 5, "start": 5}, "left": True}
    write_atomically(state, to_json(fields))
    with faulty.fault("readdir", errno.EIO, "*/queues/q/waiting*", times=3) as fault:
        worker = site.start_changed(
            COUNT_WAKE_UPS,
            controller="c",
            allocation="7",
            cores=1,
            stay=True,
            idle_timeout=0.1,
            cwd=site.directory,
            stderr=-3,
            **SOON,
        )
        assert worker.wait(60) == 0
        assert faulty.count(fault) == 3
    assert site.wake_ups() < 500


def test_a_worker_that_leaves_when_all_is_done_does_not_while_that_cannot_be_seen(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit("true")
    with faulty.fault("readdir", errno.EIO, "*/queues/q/running*") as fault:
        worker = site.start(cores=1, stderr=-3, **SOON)
        site.wait_until(lambda: faulty.count(fault) >= 3)
        assert worker.poll() is None
    assert worker.wait() == 0
    assert site.job(0).result.ok  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [errno.EEXIST, errno.EIO])
def test_a_job_whose_attempt_was_made_though_the_answer_was_lost_is_executed(
    site: Site, faulty: FaultyFilesystem, error: int
) -> None:
    site.submit("echo ran >> ran")
    with faulty.fault("create", error, "*/attempt-1*", done=True) as fault:
        assert site.start(cores=1, stderr=-3, **SOON).wait() == 0
        assert faulty.count(fault) == 1
    # The empty file shows that nothing was executed, and uses the number up.
    result = site.job(0).result
    assert result is not None and (result.ok, result.attempt) == (True, 2)
    assert (site.directory / "ran").read_text() == "ran\n"


def test_a_second_file_with_the_same_content_does_not_count_as_the_first(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_exclusively(path, b"same")
    assert not write_exclusively(path, b"same")
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("stays", [True, False])
def test_a_claim_unknown_to_its_worker_is_requeued(site: Site, stays: bool) -> None:
    site.submit("echo ran >> ran")
    # This is the state after a rename whose answer was lost.
    assert Queue(site.machine, "q").claim(0, lambda ticket: "take")
    site.start(worker=0, queues=("q",), stay=stays, stderr=-3, **SOON)
    result = site.ended(0).result
    assert result is not None and (result.ok, result.attempt, result.worker) == (True, 1, 0)


def test_a_claim_whose_attempt_another_worker_began_is_not_requeued(site: Site) -> None:
    site.submit("echo ran >> ran")
    assert Queue(site.machine, "q").claim(0, lambda ticket: "take")
    own = ProcessIdentity.of(os.getpid())
    assert own is not None
    attempt = Attempt(0, 1, "nonce", 7, this_node(), own, now())
    site.machine.job(0).directory.mkdir(parents=True, mode=0o700)
    site.machine.job(0).attempt(1).write_bytes(to_json(attempt.to_dict()))
    worker = site.start(worker=0, stay=True, queues=("q",), stderr=-3, **SOON)
    log = site.machine.worker(0).log
    site.wait_until(lambda: log.exists() and "begun by worker 7" in log.read_text())
    assert [view.worker for view in Queue(site.machine, "q").running()] == [0]
    worker.terminate()
    assert worker.wait() == 0
    assert not (site.directory / "ran").exists()


def test_a_worker_that_ends_while_jobs_may_run_does_not_say_that_it_left(
    site: Site, tmp_path: Path
) -> None:
    backing = tmp_path / "hanging.backing"
    make_directory(backing)
    (backing / "file").write_text("content")
    with FaultyFilesystem(backing, tmp_path / "hanging") as hanging:
        # Not even SIGKILL ends a process while its call has no answer.
        with hanging.fault("open", 0, "/file", hangs=True) as fault:
            site.submit(f"exec cat {hanging.path}/file")
            worker = site.start(cores=1, heartbeat=0.5, leave_patience=0.3, stderr=-3)
            site.wait_until(lambda: hanging.count(fault))
            own = site.worker_of(worker)
            presumed = PresumedDead(0, "elsewhere", 60.0, now())
            site.machine.worker(0).presumed_dead.write_bytes(to_json(presumed.to_dict()))
            site.wait_until(lambda: not is_running(own))
            state = find_worker(site.machine, 0)
            assert (state.state, state.reason) == ("draining", "presumed dead by elsewhere")
        assert worker.wait() == 1


def test_a_worker_that_cannot_publish_an_end_while_it_leaves_tries_it_each_second(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit("exit 3")
    with faulty.fault("link", errno.ENOSPC, "*/jobs/*/result*") as fault:
        worker = site.start_changed(
            f"""
            import errno, os, select
            supervisor = os.getpid()
            real_poll = select.poll
            class Poll:
                def __init__(self):
                    self.real = real_poll()
                    self.register, self.unregister = self.real.register, self.real.unregister
                def poll(self, *arguments):
                    if os.getpid() != supervisor and os.path.exists({str(faulty.met)!r}):
                        raise OSError(errno.ENOMEM, "Cannot allocate memory")
                    return self.real.poll(*arguments)
            select.poll = Poll
            """,
            cores=1,
            leave_patience=2.5,
            cwd=site.directory,
            stderr=-3,
        )
        assert worker.wait() == 1
        assert 2 <= faulty.count(fault) <= 4
    assert log_of(site).count("WARNING the end of job 0 cannot be written yet") == 1
    assert find_worker(site.machine, 0).state == "draining"
