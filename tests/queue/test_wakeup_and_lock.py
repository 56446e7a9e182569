from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import stat
import subprocess
import sys
import threading

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.locks.lock import hold, pause_after
from snakemake_kochi.queue import WakeUp, notify, queue_lock
from snakemake_kochi.queue.entries import QueueRemovedError


def test_a_notification_before_the_wait_is_not_lost(tmp_path):
    wakeup = WakeUp(tmp_path / "wakeup")
    assert notify(wakeup.path)
    assert wakeup.wait(60)
    assert not wakeup.wait(0), "all notifications so far are consumed at once"
    wakeup.close()


def test_another_process_wakes_a_waiting_one(tmp_path):
    wakeup = WakeUp(tmp_path / "wakeup")
    code = "import sys, pathlib, time; from snakemake_kochi.queue import notify; time.sleep(0.1);"
    code += "notify(pathlib.Path(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", code, wakeup.path]):
        assert wakeup.wait(600)
    wakeup.close()


def test_notifying_never_blocks_and_never_fails(tmp_path):
    assert not notify(tmp_path / "nothing")
    wakeup = WakeUp(tmp_path / "wakeup")
    for _ in range(70_000):  # more than a pipe holds
        assert notify(wakeup.path)
    wakeup.close()
    assert not notify(wakeup.path), "no process listens any more"
    file = tmp_path / "file"
    file.write_text("")
    assert not notify(file)
    assert file.read_text() == ""


def test_a_wakeup_fifo_is_private(tmp_path):
    wakeup = WakeUp(tmp_path / "wakeup")
    assert stat.S_IMODE(wakeup.path.stat().st_mode) == 0o600
    wakeup.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(KochiError, match="FIFO"):
        WakeUp(tmp_path / "file")


def test_the_lock_file_stays_the_same_and_private(machine):
    machine.queue("q").make()
    path = machine.locks.queue("q")
    with queue_lock(machine, "q"):
        first = path.stat()
    with queue_lock(machine, "q"):
        pass
    assert path.stat().st_ino == first.st_ino
    assert stat.S_IMODE(first.st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


HOLD = """\
import pathlib, sys
from snakemake_kochi.locks.lock import hold, pause_after
with hold(pathlib.Path(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_a_busy_lock_is_waited_for_and_that_is_said(tmp_path, caplog, kind):
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"

    class LetGo(logging.Handler):
        def emit(self, record):
            holder.stdin.close()

    logger = logging.getLogger("snakemake_kochi.locks.lock")
    handler = LetGo()
    logger.addHandler(handler)
    try:
        with hold(path, kind, complain_after=0.05):
            assert "still waiting" in caplog.text
    finally:
        logger.removeHandler(handler)
        holder.stdout.close()
        holder.wait()


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path, kind):
    path = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path, kind], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.communicate()
    with hold(path, kind):
        pass


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_processes_that_race_for_a_lock_have_it_one_after_the_other(tmp_path, kind):
    code = (
        "import pathlib, sys\nfrom snakemake_kochi.locks.lock import hold, pause_after\n"
        "count = pathlib.Path(sys.argv[3])\n"
        "for _ in range(20):\n"
        "    with hold(pathlib.Path(sys.argv[1]), sys.argv[2]):\n"
        "        count.write_text(str(int(count.read_text()) + 1))\n"
    )
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", code, tmp_path / "lock", kind, tmp_path / "count"]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "60"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_filesystem_without_locks_is_refused_and_no_other_lock_is_used(
    machine, monkeypatch, number
):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    machine.queue("q").make()
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(KochiError, match="does not support") as caught, queue_lock(machine, "q"):
        pytest.fail("it was locked by other means")
    assert "lock_dir" in caught.value.hint


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_a_lock_that_cannot_be_opened_is_an_error_for_people(tmp_path, kind):
    with pytest.raises(KochiError, match="cannot be opened"), hold(tmp_path / "no" / "lock", kind):
        pytest.fail("something was locked")
    assert not (tmp_path / "no").exists()


def test_locking_a_missing_queue_makes_nothing(machine, tmp_path):
    with pytest.raises(QueueRemovedError), queue_lock(machine, "q"):
        pytest.fail("nothing was locked")
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_waits_for_the_lock_of_a_removed_queue_gets_an_error(machine):
    directory = machine.queue("q").make().directory
    waiting, said = threading.Event(), []

    class Waiting(logging.Handler):
        def emit(self, record):
            waiting.set()

    def wait():
        try:
            with queue_lock(machine, "q", complain_after=0.05):
                said.append("locked")
        except QueueRemovedError:
            said.append("removed")

    logger = logging.getLogger("snakemake_kochi.locks.lock")
    handler = Waiting()
    logger.addHandler(handler)
    thread = threading.Thread(target=wait)
    try:
        with queue_lock(machine, "q"):
            thread.start()
            assert waiting.wait(60)
            directory.rename(directory.with_name(".removed"))
    finally:
        logger.removeHandler(handler)
        thread.join()
    assert said == ["removed"]
    assert not directory.exists()


def test_queues_share_a_few_locks_always_the_same_ones(machine):
    names = {machine.locks.queue(f"run-{number}").name for number in range(3000)}
    assert names == {f"queue-{number:02d}" for number in range(64)}
    # Another choice would let two versions of the project use different locks for one queue.
    assert machine.locks.queue("default").name == "queue-31"


def test_a_wakeup_fifo_is_closed_once(tmp_path):
    wakeup = WakeUp(tmp_path / "wakeup")
    wakeup.close()
    other = os.open(tmp_path, os.O_RDONLY)
    wakeup.close()
    os.fstat(other)
    os.close(other)


def test_who_waits_long_for_a_lock_asks_less_often_and_at_random():
    def asked(seconds):
        waited, number = 0.0, 0
        while waited < seconds:
            waited += pause_after(waited)
            number += 1
        return number

    assert 0.001 < pause_after(0.0) < 0.005, "a free moment of a busy queue is found at once"
    assert asked(5.0) < 200
    assert max(pause_after(1.0) for _ in range(100)) < 0.1
    assert len({pause_after(1.0) for _ in range(10)}) == 10
    assert pause_after(60.0) == 0.25


def test_who_waits_for_a_lock_asks_a_slow_file_server_less_often():
    """With 10 ms for each look, its holder needs a tenth of a second or more."""
    assert min(pause_after(0.0, cost=0.01) for _ in range(100)) >= 0.02
    assert max(pause_after(0.0, cost=10.0) for _ in range(100)) < 0.4


SHARED_BY_A_CHILD = """
import os, pathlib, sys, time
from snakemake_kochi.locks.lock import hold
path = pathlib.Path(sys.argv[1])
with hold(path, "flock"):
    pass
if os.fork() == 0:
    time.sleep(600)
with hold(path, "flock"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_free_although_a_child_that_it_forked_lives(tmp_path):
    """A file that stayed open between two takes would keep the lock with the child."""
    path = tmp_path / "lock"
    code = [sys.executable, "-c", SHARED_BY_A_CHILD, path]
    holder = subprocess.Popen(code, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        holder.wait()
        with hold(path, "flock", patience=0.0):
            os.killpg(holder.pid, 0)  # the child lives
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()
