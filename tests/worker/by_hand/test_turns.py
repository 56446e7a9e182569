"""Exclusive jobs are alone on their computer, whoever started the workers."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import wait_until, worker_command

from snakemake_kochi import node_lock
from snakemake_kochi.node_lock import (
    NodeLockError,
    acquire,
    count_others,
    held,
    holder,
    lock_directory,
    release,
)
from snakemake_kochi.queue.by_hand import cancel
from tests.worker.by_hand.conftest import Site

ALONE = 'date +%s%N > "start-$KOCHI_JOB_ID"; sleep 0.05; date +%s%N > "end-$KOCHI_JOB_ID"'


def spans(sites: Sequence[Site], jobs: int) -> list[tuple[int, int, bool]]:
    """Start and end of each job of `sites`, and whether it is of the first one, by time."""
    return sorted(
        (
            int((site.directory / f"start-{job}").read_text()),
            int((site.directory / f"end-{job}").read_text()),
            site is sites[0],
        )
        for site in sites
        for job in range(1, jobs + 1)
    )


@pytest.fixture
def other(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site with a KOCHI_ROOT of its own, whose workers end with those of `site`."""
    made = Site(tmp_path_factory.mktemp("other"))
    made.workers = site.workers
    return made


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(node_lock.VARIABLE, str(tmp_path))
    return lock_directory()


def test_exclusive_jobs_of_two_roots_run_one_at_a_time_and_in_turns(
    site: Site, other: Site
) -> None:
    workers = []
    for each in (site, other):
        each.submit(*[ALONE] * 8, exclusive=True)
        workers.append(each.start())
    assert [worker.wait(60) for worker in workers] == [0, 0]
    found = spans((site, other), 8)
    assert all(end <= start for (_, end, _), (start, _, _) in itertools.pairwise(found))
    # From the start of the second worker on, none waits for two jobs of the other.
    owners = [is_first for _, _, is_first in found]
    both = owners[owners.index(not owners[0]) :]
    last = len(both) - next(n for n, each in enumerate(reversed(both)) if each != both[-1])
    assert all(a != b for a, b in itertools.pairwise(both[:last])), owners


def test_ordinary_jobs_of_two_roots_run_beside_each_other(site: Site, other: Site) -> None:
    for mine, theirs in ((site, other), (other, site)):
        mine.submit(f"touch here; until [ -e {theirs.directory}/here ]; do sleep 0.01; done")
        mine.start()
    assert site.ended(0).result.ok
    assert other.ended(0).result.ok


def test_a_job_that_is_cancelled_while_it_waits_lets_others_pass(site: Site, other: Site) -> None:
    site.submit("echo > here; until [ -e go ]; do sleep 0.01; done")
    site.start()
    site.wait_for("here")
    other.submit("true", exclusive=True)
    other.start(stay=True)
    waits = Path(other.machine.layout.worker(1).waits)
    wait_until(lambda: waits.exists() and "waits: other jobs" in waits.read_text())
    cancel(other.machine, other.jobs[0])
    assert other.ended(0).result.reason == "cancelled"  # type: ignore[union-attr]
    other.submit("true")
    assert other.ended(1).result.ok  # type: ignore[union-attr]
    (site.directory / "go").touch()


def test_a_worker_inside_of_a_job_does_not_wait_for_that_job(site: Site, other: Site) -> None:
    other.submit("true", exclusive=True)
    aside = site.directory.with_name("aside")
    aside.mkdir()
    command = worker_command(other.root.directory, aside, queues=("q",))
    site.submit("", command=tuple(command), exclusive=True)
    site.start()
    assert site.ended(0).result.ok
    assert other.ended(0).result.ok


def test_no_job_passes_an_exclusive_one_that_waits(directory: Path) -> None:
    first = acquire(directory, False, "first")
    assert first is not None
    taken: list[int | None] = []
    waiting = threading.Thread(target=lambda: taken.append(acquire(directory, True, "second")))
    waiting.start()
    wait_until(lambda: _passes(directory) is None, "the second waits")
    release(first)
    waiting.join(60)
    assert holder(directory) == "second runs alone on this computer"
    assert taken[0] is not None
    release(taken[0])
    third = _passes(directory)
    assert third is not None


def _is_taken(file: Path) -> bool:
    with file.open() as lock, contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


def _passes(directory: Path) -> int | None:
    if (descriptor := acquire(directory, False, "third", wait=False)) is not None:
        release(descriptor)
    return descriptor


def test_a_killed_process_gives_way_and_its_name_is_forgotten(directory: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from snakemake_kochi.node_lock import acquire\n"
        "acquire(Path(sys.argv[1]), True, 'killed'); print(flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", code, str(directory)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert acquire(directory, False, "ordinary", wait=False) is None
        assert holder(directory).startswith("killed runs alone")
        process.kill()
    descriptor = acquire(directory, False, "ordinary", wait=False)
    assert descriptor is not None
    assert holder(directory) == (
        f"other jobs of yours run on this computer (processes {os.getpid()})"
    )
    assert count_others() == 0
    second = acquire(directory, False, "ordinary", wait=False)
    assert second is not None
    assert count_others() == 1
    release(second)
    release(descriptor)


def test_a_fork_does_not_keep_the_lock(directory: Path) -> None:
    descriptor = acquire(directory, True, "parent")
    assert descriptor is not None
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    release(descriptor)
    again = acquire(directory, True, "parent", wait=False)
    os.close(write)
    os.waitpid(child, 0)
    assert again is not None
    release(again)


def test_a_run_without_a_worker_waits_and_says_so(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    descriptor = acquire(directory, False, "ordinary")
    assert descriptor is not None
    seen: list[str] = []

    def measure() -> None:
        with held(True, "fib_1"):
            seen.append(holder(directory))

    waiting = threading.Thread(target=measure)
    waiting.start()
    wait_until(lambda: _passes(directory) is None, "it waits")
    assert not seen
    release(descriptor)
    waiting.join(60)
    assert seen == ["fib_1 runs alone on this computer"]
    assert "kochi: fib_1 waits: other jobs of yours run on this computer" in capsys.readouterr().out


def test_a_directory_that_others_could_open_is_refused(directory: Path) -> None:
    directory.chmod(0o755)
    with pytest.raises(NodeLockError, match="a directory of yours with mode 0700") as caught:
        lock_directory()
    assert f"export {node_lock.VARIABLE}=" in str(caught.value.hint)


def test_a_directory_that_was_deleted_is_made_again_and_what_was_deleted_is_not_the_lock(
    directory: Path,
) -> None:
    first = acquire(directory, True, "first")
    assert first is not None
    shutil.rmtree(directory)
    second = acquire(directory, True, "second", wait=False)
    assert second is not None
    taken: list[int | None] = []
    waiting = threading.Thread(target=lambda: taken.append(acquire(directory, True, "third")))
    waiting.start()
    wait_until(lambda: _is_taken(directory / "turn"), "the third waits")
    shutil.rmtree(directory)
    release(second)
    waiting.join(60)
    assert holder(directory) == "third runs alone on this computer"
    assert taken[0] is not None
    for descriptor in (first, taken[0]):
        release(descriptor)
