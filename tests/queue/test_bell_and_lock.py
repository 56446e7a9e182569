from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
import subprocess
import sys
import threading

import pytest

from snakemake_kochi.errors import KochiError
from snakemake_kochi.queue import Bell, queue_lock, ring
from snakemake_kochi.queue.lock import LockRemovedError


def test_a_ring_before_the_wait_is_not_lost(tmp_path):
    bell = Bell(tmp_path / "bell")
    assert ring(bell.path)
    assert bell.wait(60)
    assert not bell.wait(0), "all rings so far are taken in at once"
    bell.close()


def test_another_process_wakes_who_waits(tmp_path):
    bell = Bell(tmp_path / "bell")
    code = "import sys, pathlib, time; from snakemake_kochi.queue import ring; time.sleep(0.1);"
    code += "ring(pathlib.Path(sys.argv[1]))"
    with subprocess.Popen([sys.executable, "-c", code, bell.path]):
        assert bell.wait(600)
    bell.close()


def test_ringing_never_blocks_and_never_fails(tmp_path):
    assert not ring(tmp_path / "nothing")
    bell = Bell(tmp_path / "bell")
    for _ in range(70_000):  # more than a pipe holds
        assert ring(bell.path)
    bell.close()
    assert not ring(bell.path), "nobody listens any more"
    file = tmp_path / "file"
    file.write_text("")
    assert not ring(file)
    assert file.read_text() == ""


def test_a_bell_is_private(tmp_path):
    bell = Bell(tmp_path / "bell")
    assert stat.S_IMODE(bell.path.stat().st_mode) == 0o600
    bell.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(KochiError, match="FIFO"):
        Bell(tmp_path / "file")


def test_the_lock_file_stays_the_same_and_private(tmp_path):
    path = tmp_path / "lock"
    with queue_lock(path):
        first = path.stat()
    with queue_lock(path):
        pass
    assert path.stat().st_ino == first.st_ino
    assert stat.S_IMODE(first.st_mode) == 0o600


def test_a_busy_lock_is_waited_for_and_that_is_said(tmp_path, caplog):
    path = tmp_path / "lock"
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
    code += "print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"held\n"

    class LetGo(logging.Handler):
        def emit(self, record):
            holder.stdin.close()

    logger = logging.getLogger("snakemake_kochi.queue.lock")
    handler = LetGo()
    logger.addHandler(handler)
    try:
        with queue_lock(path, complain_after=0.05):
            assert "still waiting" in caplog.text
    finally:
        logger.removeHandler(handler)
        holder.stdout.close()
        holder.wait()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_filesystem_without_locks_is_refused_and_no_other_lock_is_used(
    tmp_path, monkeypatch, number
):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(KochiError, match="does not support"), queue_lock(tmp_path / "lock"):
        pytest.fail("it was locked by other means")


def test_a_lock_that_cannot_be_opened_is_an_error_for_people(tmp_path):
    with pytest.raises(KochiError, match="cannot be opened"), queue_lock(tmp_path):
        pytest.fail("a directory was locked")


def test_a_lock_without_a_directory_is_not_made(tmp_path):
    with pytest.raises(LockRemovedError), queue_lock(tmp_path / "queue" / "lock"):
        pytest.fail("nothing was locked")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [0, 1])
def test_who_waits_for_a_lock_that_is_removed_learns_it(tmp_path, links):
    path = tmp_path / "queue" / "lock"
    path.parent.mkdir()
    waiting, said = threading.Event(), []

    class Waiting(logging.Handler):
        def emit(self, record):
            waiting.set()

    def wait():
        try:
            with queue_lock(path, complain_after=0.05):
                said.append("locked")
        except LockRemovedError:
            said.append("removed")

    logger = logging.getLogger("snakemake_kochi.queue.lock")
    handler = Waiting()
    logger.addHandler(handler)
    thread = threading.Thread(target=wait)
    try:
        with queue_lock(path):
            thread.start()
            assert waiting.wait(60)
            if links:  # what NFS makes of an open file that is unlinked
                os.link(path, tmp_path / "still-there")
            os.rename(path.parent, tmp_path / "removed")
            shutil.rmtree(tmp_path / "removed")
    finally:
        logger.removeHandler(handler)
        thread.join()
    assert said == ["removed"]
    assert not path.parent.exists()


def test_a_bell_is_closed_once(tmp_path):
    bell = Bell(tmp_path / "bell")
    bell.close()
    other = os.open(tmp_path, os.O_RDONLY)
    bell.close()
    os.fstat(other)
    os.close(other)
