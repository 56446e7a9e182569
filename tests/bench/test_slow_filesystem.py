"""The slow filesystem of the benchmarks: what it does, how it overlaps, and what it counts."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY, wait_until

TREE = """
set -e
cd "$1"; umask 077
mkdir -p project/deep/er
echo one > project/a
echo two >> project/a
ln project/a project/b
ln -s a project/link
mkfifo project/fifo
mv project/deep/er project/other
mv project/b project/other/b
touch -d 2001-02-03T04:05:06Z project/a
chmod 640 project/a
mkdir project/gone; rmdir project/gone
seq 1 100000 > project/numbers; : > project/emptied
echo more > project/emptied; : > project/emptied
for i in $(seq 300); do : > project/other/a-rather-long-name-of-a-file-$i; done
"""
LOOK = 'cd "$1"; find . -printf "%p %y %m %n %s %T@ %l\\n" | sort; cat project/a project/numbers'


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(REPOSITORY))
    from bench.slow_filesystem import SlowFilesystem

    with SlowFilesystem(tmp_path / "backing", tmp_path / "mounted") as mounted:
        yield mounted


def shell(script: str, directory: Path) -> str:
    words = ["bash", "-c", script, "bash", str(directory)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def counted(slow: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in slow.count():
        found[each.operation] += each.count
    return found


def test_what_programs_do_there_is_what_they_do_elsewhere(slow, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir(mode=0o700)
    for directory in (plain, slow.path):
        shell(TREE, directory)
    times = r"s/ [0-9]{10}\.[0-9]+ / /"  # of now
    expected, there, beneath = (
        shell(f"({LOOK}) | sed -E '{times}'", each)
        for each in (plain, slow.path, tmp_path / "backing")
    )
    assert there == expected == beneath


def test_a_file_that_is_gone_is_still_open(slow):
    path = slow.path / "file"
    with open(path, "w+") as file:
        file.write("text")
        file.flush()
        path.unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        file.seek(0)
        assert file.read() == "text"
    assert not path.exists()


def test_no_operation_waits_for_the_answer_of_another_one(slow):
    for number in range(8):
        (slow.path / str(number)).write_text("")
    names = [slow.path / f"not {number}" for number in range(8)]
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda path=path: found.append(path.exists())) for path in names
    ]
    slow.count()
    slow.set_delay(3600)
    for thread in threads:
        thread.start()
    asked: Counter[str] = Counter()

    def all_wait() -> bool:
        asked.update(counted(slow))
        return asked["lookup"] == len(names)

    wait_until(all_wait, "all to wait for an answer")
    assert found == []
    slow.set_delay(0)
    for thread in threads:
        thread.join()
    assert found == [False] * len(names)


def test_operations_are_counted_by_area_role_and_type(slow):
    (slow.path / "project").mkdir()
    slow.count()
    write = "import os, sys; os.close(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY))"
    for words in (["snakemake ", str(slow.path / "project" / "a")], [str(slow.path / "b")]):
        subprocess.run([sys.executable, "-c", write, words[-1], *words], check=True)
    os.listdir(slow.path / "project")
    (slow.path / "project" / "a").rename(slow.path / "project" / "c")
    created = {(o.area, o.role): o.count for o in slow.count() if o.operation == "create"}
    assert created == {("project", "Snakemake"): 1, ("", "others"): 1}
    os.listdir(slow.path / "project")
    assert counted(slow)["readdir"] == 1, "a listing is one operation"


def test_a_process_that_waits_for_a_lock_gets_it_across_mounts(slow, tmp_path):
    from bench.slow_filesystem import SlowFilesystem

    order: list[str] = []
    (slow.path / "lock").write_text("")
    with (
        SlowFilesystem(tmp_path / "backing", tmp_path / "other") as other,
        open(slow.path / "lock") as ours,
        open(other.path / "lock") as its,
    ):
        fcntl.flock(ours, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(its, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.count()

        def take() -> None:
            fcntl.flock(its, fcntl.LOCK_EX)
            order.append("taken")

        thread = threading.Thread(target=take)
        thread.start()
        wait_until(lambda: counted(other)["flock"], "the other one to ask for the lock")
        order.append("released")
        fcntl.flock(ours, fcntl.LOCK_UN)
        thread.join()
        assert order == ["released", "taken"]


def test_a_killed_process_does_not_wait_for_a_lock_for_ever(slow):
    (slow.path / "lock").write_text("")
    with open(slow.path / "lock") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        slow.count()
        waiting = subprocess.Popen(["flock", str(slow.path / "lock"), "true"])
        wait_until(lambda: counted(slow)["flock"], "the process to ask for the lock")
        waiting.kill()
        waiting.wait()


def test_another_mount_sees_what_has_changed(slow, tmp_path):
    from bench.slow_filesystem import SlowFilesystem

    with SlowFilesystem(tmp_path / "backing", tmp_path / "other") as other:
        (slow.path / "file").write_text("old")
        assert (other.path / "file").read_text() == "old"
        (slow.path / "new").write_text("new one")
        (slow.path / "new").rename(slow.path / "file")
        wait_until(lambda: (other.path / "file").read_text() == "new one", "the other mount to see")
