"""A worker on a node on which everything fails is set aside; the failures do not count."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import write_exclusively
from snakemake_kochi.next.worker.walltime import Walltime
from snakemake_kochi.queue import Queue, find_worker
from snakemake_kochi.worker.node.health import Health, unmounted_above
from snakemake_kochi.worker.slots import Ends
from tests.worker.conftest import Site, children_of

Mount = Callable[[Path, str], Path]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts an empty filesystem of a size such as "64k" on a directory."""
    mounted: list[Path] = []

    def make(directory: Path, size: str) -> Path:
        directory.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={size},mode=700", "kochi-test"]
        subprocess.run(["mount", *options, str(directory)], check=True)
        mounted.append(directory)
        return directory

    yield make
    for directory in mounted:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Fill a filesystem; return the file that takes the space."""
    path = directory / "fill"
    for size in (1 << 16, 1 << 10, 1):
        with path.open("ab", buffering=0) as stream:
            try:
                while stream.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return path


def ended(site, job, attempt):
    return json.loads(site.machine.job(job).ended(attempt).read_text())


def test_a_node_with_a_full_temporary_directory_is_set_aside(
    site: Site, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = mount(site.directory / "scratch", "64k")
    fill(temporary)
    site.submit("echo x > $TMPDIR/x || exit 3", "echo second")
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert site.start(cores=1, stderr=-3).wait() == 1
    state = find_worker(site.machine, 0)
    cause = f"this node cannot write into {temporary}: No space left on device"
    assert (state.state, state.reason) == ("left", f"set aside: {cause}")
    assert (ended(site, 0, 1)["reason"], ended(site, 0, 1)["detail"]) == ("node failed", cause)
    waiting = Queue(site.machine, "q").waiting()
    assert [(view.job, view.attempt) for view in waiting] == [(0, 2), (1, 1)]
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setenv("TMPDIR", str(site.directory))
    assert site.start().wait() == 0
    assert [site.job(n).result.ok for n in (0, 1)] == [True, True]  # type: ignore[union-attr]


def test_a_node_without_the_filesystem_of_the_jobs_is_set_aside(site: Site, mount: Mount) -> None:
    there = mount(site.directory / "scratch", "1m") / "run"
    there.mkdir()
    site.submit("pwd", directory=there)
    fstab = site.directory / "fstab"
    fstab.write_text(f"# what is mounted where\nserver:/x {there.parent} nfs defaults 0 0\n")
    change = f'umount {there.parent} && mount --bind {fstab} /etc/fstab && exec "$@"'
    without = ["unshare", "--mount", "bash", "-c", change, "-"]
    assert site.start(cores=1, prefix=without, stderr=-3).wait() == 1
    said = (
        f"this node cannot enter {there}: {there.parent} is empty, as if nothing was mounted there"
    )
    assert said in find_worker(site.machine, 0).reason
    assert ended(site, 0, 1)["reason"] == "node failed"
    assert site.start().wait() == 0
    result = site.job(0).result
    assert result is not None and (result.ok, result.attempt) == (True, 2)


def test_a_removed_directory_is_not_the_nodes_fault(site: Site) -> None:
    site.submit("", directory=site.directory / "removed" / "below")
    site.submit("true")
    assert site.start(cores=1).wait() == 0
    assert site.job(0).result.exit_status == 126  # type: ignore[union-attr]
    assert site.job(1).result.ok  # type: ignore[union-attr]


def test_the_removed_last_entry_of_a_directory_is_not_the_nodes_fault(site: Site) -> None:
    place = site.directory / "experiments"
    (place / "one").mkdir(parents=True)
    site.submit("true", directory=place / "one")
    site.submit("true")
    (place / "one").rmdir()
    assert site.start(cores=1).wait() == 0
    assert [site.job(n).result.describe() for n in (0, 1)] == ["exit status 126", "succeeded"]  # type: ignore[union-attr]


def test_an_empty_directory_proves_a_missing_mount_only_if_nobody_could_empty_it(
    tmp_path: Path,
) -> None:
    def unmounted(missing: Path) -> Path | None:
        return unmounted_above(missing, user=1000)

    place = tmp_path / "a place"
    place.mkdir(mode=0o755)
    missing = place / "below" / "run"
    assert unmounted_above(missing) is None, "root may have removed what was there"
    assert unmounted(missing) == place
    (place / "other").mkdir()
    assert unmounted(missing) is None
    (place / "other").rmdir()
    place.chmod(0o1777)
    assert unmounted(missing) is None, "anybody may have removed it, as in /tmp"
    place.chmod(0o755)
    os.chown(place, 1000, -1)
    assert unmounted(missing) is None, "its owner may have removed it"
    fstab = tmp_path / "fstab"
    fstab.write_text(f"/dev/sdb1\t{tmp_path}/a\\040place ext4 noauto 0 0\nproc none\n")
    assert unmounted_above(missing, fstab=fstab) == place


def test_a_shell_that_cannot_be_killed_is_not_waited_for(site: Site, tmp_path: Path) -> None:
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "hanging") as hanging:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(hanging.path)}
        judge = Health(site.machine, 0, environment, patience=0.5)
        # Not even SIGKILL ends a process while its call has no answer.
        with hanging.fault("getattr", 0, "/?*", hangs=True) as met:
            fault = judge.start_failed(OSError(errno.EIO, "Input/output error"), "/")
            assert hanging.count(met)
    assert fault == "this node cannot execute /bin/sh: it takes longer than 0.5 seconds"


def test_a_worker_on_which_all_fails_that_succeeds_elsewhere_is_set_aside(site: Site) -> None:
    # The checks find no fault of the node. Neither has ended a job before both are at work.
    together = "touch at-$KOCHI_WORKER_ID; until [ -e at-0 -a -e at-1 ]; do sleep 0.05; done; "
    site.submit(*[f"{together}sleep 0.15; [ $KOCHI_WORKER_ID != 0 ]"] * 60)
    bad = site.start(cores=1, stderr=-3)
    site.wait_until(lambda: site.machine.worker(0).state.exists())
    good = site.start(cores=1)
    assert (bad.wait(), good.wait()) == (1, 0)
    reason = find_worker(site.machine, 0).reason
    assert (
        reason.startswith("set aside: ") and "jobs in a row failed here, while worker 1" in reason
    )
    results = [site.job(n).result for n in range(60)]
    assert all(result is not None and result.ok == (result.worker == 1) for result in results)
    assert 10 <= sum(not result.ok for result in results if result) <= 40


def test_a_worker_is_not_set_aside_because_jobs_of_another_queue_succeed(site: Site) -> None:
    site.submit(*["sleep 0.1; exit 1"] * 14, queue="b")
    site.submit(*["sleep 0.05"] * 60, queue="q")
    only_q = site.start(cores=1)
    site.wait_until(lambda: site.machine.worker(0).state.exists())
    both = site.start(
        cores=1,
        stay=True,
        queues=(
            "b",
            "q",
        ),
    )
    site.wait_until(lambda: sum(site.job(n).state == "ended" for n in range(14)) == 14)
    assert both.poll() is None
    assert only_q.wait() == 0
    site.wait_until(lambda: find_worker(site.machine, 1).failed == 14)
    state = find_worker(site.machine, 1)
    assert (state.reason, state.by_queue["b"]) == ("", (0, 14))
    assert find_worker(site.machine, 0).by_queue["q"][0] > 0


def test_a_worker_goes_on_while_jobs_fail_everywhere(site: Site) -> None:
    site.submit(*["exit 1"] * 15)
    assert site.start(cores=1).wait() == 0
    assert [site.job(n).result.describe() for n in range(15)] == ["exit status 1"] * 15  # type: ignore[union-attr]
    assert find_worker(site.machine, 0).failed == 15


def test_a_ticket_that_meets_three_broken_nodes_ends_and_names_their_faults(site: Site) -> None:
    site.submit("true")
    queue = Queue(site.machine, "q")
    for worker in range(3):
        (claim,) = queue.claim(worker, lambda ticket: "take")
        assert claim.ticket.attempt == worker + 1
        queue.requeue(claim, "node failed", f"this node cannot do {worker}")
    result = site.job(0).result
    assert result is not None and (result.reason, result.attempt) == ("node failed", 3)
    assert "no node could execute it" in result.describe()
    for worker in range(3):
        assert f"(worker {worker}): this node cannot do {worker}" in result.describe()
    assert queue.waiting() == queue.running() == []


def test_a_full_disk_loses_no_ticket_and_no_result(site: Site, mount: Mount) -> None:
    mount(site.root.directory, "2m")
    # The result has no room in the last block of a small file.
    outputs = tuple(f"{'x' * 200}{number}" for number in range(30))
    site.submit("while [ ! -e go ]; do sleep 0.1; done", outputs=outputs)
    site.submit("echo second")
    for name in outputs:
        (site.directory / name).touch()
    worker = site.start(cores=1, heartbeat=0.4, idle_wait=0.1, stderr=-3)
    site.wait_until(lambda: site.job(0).started is not None)
    # Another user fills the disk.
    taken = fill(site.root.directory)
    with pytest.raises(KochiError, match=r"cannot take a job number.*No space left on device"):
        site.submit("true")
    os.truncate(taken, taken.stat().st_size - (1 << 16))
    with pytest.raises(KochiError, match=r"no ticket was submitted.*No space left on device"):
        site.submit(*["true"] * 300)
    fill(site.root.directory)
    (site.directory / "go").touch()
    state = site.machine.worker(0).state
    signs = set()

    def has_lived_on() -> bool:
        signs.add(state.stat().st_mtime_ns)
        return len(signs) > 15  # after 12 others would give it up, its supervisor after 6

    site.wait_until(has_lived_on)
    assert worker.poll() is None
    assert site.job(0).state == "running"
    assert [view.job for view in Queue(site.machine, "q").waiting()] == [1]
    assert not list(site.root.directory.rglob("*.tmp"))
    taken.unlink()
    assert worker.wait() == 0
    results = [site.job(n).result for n in (0, 1)]
    assert [(r.exit_status, r.attempt, r.worker) for r in results if r] == [(0, 1, 0), (0, 1, 0)]
    (ticket,) = site.submit("true")
    assert site.start().wait() == 0
    assert site.job(ticket.job).result.ok  # type: ignore[union-attr]


def test_a_worker_that_cannot_start_jobs_on_a_full_disk_waits_for_free_space(
    site: Site, mount: Mount
) -> None:
    mount(site.root.directory, "2m")
    supervisor = site.start(stay=True, idle_wait=0.1, stderr=-3)
    site.wait_until(lambda: site.machine.worker(0).state.exists())
    (worker,) = children_of(supervisor.pid)
    os.kill(worker, signal.SIGSTOP)
    site.submit("echo here")
    ticket = site.machine.queue("q").waiting_ticket(0, 1)
    taken = fill(site.root.directory)
    seen = {ticket.stat().st_ctime_ns}
    os.kill(worker, signal.SIGCONT)

    def has_tried() -> bool:
        with contextlib.suppress(FileNotFoundError):  # it has been claimed
            seen.add(ticket.stat().st_ctime_ns)
        return len(seen) > 4  # after 3 it would leave a node that has another fault

    site.wait_until(has_tried)
    assert supervisor.poll() is None
    taken.unlink()
    result = site.ended(0).result
    assert result is not None and (result.ok, result.attempt) == (True, 1)
    assert site.log(0) == "here\n"


def test_a_fault_that_is_over_before_its_ticket_could_be_requeued_still_counts(
    tmp_path: Path,
) -> None:
    faults = iter(["cannot write", None])
    requeued: list[tuple[str, str]] = []

    def requeue(claim: object, reason: str, detail: str) -> None:
        requeued.append((reason, detail))
        if len(requeued) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    health: Any = SimpleNamespace(fault_behind=lambda *_: next(faults), reason="node failed")
    queue: Any = SimpleNamespace(requeue=requeue)
    node = SimpleNamespace(host="n1")
    state: Any = SimpleNamespace(presumed_dead_by=None, state=SimpleNamespace(node=node))
    slot: Any = SimpleNamespace(
        claim=SimpleNamespace(ticket=SimpleNamespace(job=1, directory=str(tmp_path))),
        file=SimpleNamespace(close=lambda: None),
        result=lambda host: None,
        publish_again_in=lambda seconds: None,
        stop=None,
        why_uncounted=None,
        is_held_up=False,
    )
    ends = Ends(state, health, Walltime(None, 0.0), lambda _: queue, lambda: False)
    assert ends.publish([slot]) == [], "to be repeated"
    assert ends.publish([slot]) == [(slot, "requeued")]
    assert requeued == [("node failed", "cannot write")] * 2


def test_the_probe_of_a_healthy_worker_is_gone(site: Site) -> None:
    site.submit("exit 1")
    assert site.start().wait() == 0
    probe = site.machine.worker(0).probe
    assert write_exclusively(probe, b"")
    probe.unlink()
