"""Locks are tested before use: real ones, and real ones with replaced answers of the kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support import wait_until, write

from snakemake_kochi.errors import KochiError
from snakemake_kochi.locks import settle_locks
from snakemake_kochi.locks.lock import hold
from snakemake_kochi.locks.probe import probe_locks
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import this_node
from snakemake_kochi.queue import Queue, Ticket

KOCHI = ("-m", "snakemake_kochi.cli")
SNAKEMAKE = ("-m", "snakemake", "--executor", "kochi", "--jobs", "1")

FAULTS = [
    ("flock:error=ENOSYS", "does not support file locks (flock: Function not implemented, ENOSYS)"),
    ("flock:retval=0", "locks do not exclude in "),
]


def under_strace(
    inject: str, *words: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with `strace -e inject=...` for it and for all it starts."""
    return subprocess.run(
        [
            *("strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=flock"),
            *("-e", f"inject={inject}", sys.executable, *words),
        ],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )


@contextlib.contextmanager
def child_that(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A shell script in the place of the probe's Python."""
    program = write(tmp_path / "python", f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        yield


@pytest.mark.parametrize("may_fork", [False, True])
@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_locks_that_work_are_told_from_others_and_nothing_is_left(
    machine: MachinePaths, kind: str, may_fork: bool
) -> None:
    settle_locks(machine, kind=kind)
    probe_locks(machine, may_fork=may_fork)
    left = list(machine.locks.directory.iterdir())
    if kind == "lease":
        assert left == []
    else:
        assert left == [machine.locks.probe(this_node().host)]
        assert stat.S_IMODE(left[0].stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_probes_at_the_same_time_do_not_take_each_other_for_a_fault(
    machine: MachinePaths, kind: str
) -> None:
    settle_locks(machine, kind=kind)
    failed: list[KochiError] = []

    def probe() -> None:
        try:
            probe_locks(machine)
        except KochiError as error:
            failed.append(error)

    threads = [threading.Thread(target=probe) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.parametrize("kind", ["flock", "lease"])
def test_a_lock_that_other_processes_hold_all_the_time_excludes(
    machine: MachinePaths, kind: str
) -> None:
    settings = settle_locks(machine, kind=kind)
    with hold(machine.locks.probe(this_node().host), settings.kind):
        probe_locks(machine, deadline=6)


@pytest.mark.parametrize(("inject", "said"), FAULTS)
def test_a_worker_does_not_start_without_locks_and_its_queue_stays_as_it_is(
    tmp_path: Path, inject: str, said: str
) -> None:
    machine = Root.find().machine("local")
    queue = Queue(machine, "q")
    tickets = [Ticket(name=name, command=("true",), directory=str(tmp_path)) for name in "ab"]
    queue.submit(tickets)
    before = queue.waiting()
    done = under_strace(inject, *KOCHI, "work", "-q", "q", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("kochi: ") and done.stdout.count(said) == 1, done.stdout
    assert "Traceback" not in done.stdout
    for advice in ("lock_dir", "lock_kind: lease", "kochi doctor", f"rm {machine.lock_settings}"):
        assert advice in done.stdout
    assert queue.waiting() == before and queue.running() == []
    assert not machine.workers.exists()
    work = [sys.executable, *KOCHI, "work", "-q", "q"]
    assert subprocess.run(work, cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 0
    assert queue.is_empty()


@pytest.mark.parametrize(("inject", "said"), FAULTS)
def test_a_run_does_not_start_without_locks_and_leaves_nothing(
    tmp_path: Path, inject: str, said: str
) -> None:
    write(tmp_path / "Snakefile", 'rule one:\n    output: "out"\n    shell: "echo > {output}"')
    done = under_strace(inject, *SNAKEMAKE, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.count(said) == 1, done.stdout
    assert "lock_dir" in done.stdout and "Traceback" not in done.stdout
    machine = Root.find().machine("local")
    assert sorted(path.name for path in machine.directory.iterdir()) == ["locks", "locks.json"]
    again = subprocess.run([sys.executable, *SNAKEMAKE], cwd=tmp_path, capture_output=True)
    assert again.returncode == 0, again.stderr.decode()
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize("may_fork", [False, True])
def test_a_lock_that_hangs_is_given_up_and_named(tmp_path: Path, may_fork: bool) -> None:
    code = (
        "import pathlib, sys, time\n"
        "from snakemake_kochi.paths import Root\n"
        "from snakemake_kochi.errors import KochiError\n"
        "from snakemake_kochi.locks.probe import probe_locks\n"
        "machine = Root.find().machine('local')\n"
        f"try:\n    probe_locks(machine, deadline=0.3, may_fork={may_fork})\n"
        "except KochiError as error:\n    print(error)\n"
    )
    done = under_strace("flock:delay_enter=2s", "-c", code, cwd=tmp_path)
    path = Root.find().machine("local").locks.probe(this_node().host)
    said = f"locking hangs: flock did not return within 0.3 seconds on {path}\n"
    assert said in done.stdout, done.stdout
    assert "lock_dir" in done.stdout


def test_a_forked_child_that_is_killed_is_no_verdict_and_leaves_the_caller_alone(
    machine: MachinePaths,
) -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    others = set(psutil.Process().children())

    def kill() -> None:
        (child,) = wait_until(lambda: set(psutil.Process().children()) - others)
        child.kill()

    settings = settle_locks(machine, kind="flock")
    with hold(machine.locks.probe(this_node().host), settings.kind):
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(KochiError, match=r"could not be tested: .* ended with status -9"):
            probe_locks(machine, may_fork=True)
        killer.join()
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_a_child_that_cannot_be_killed_is_not_waited_for(
    machine: MachinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []

    def kill_in_vain(group: int, number: int) -> None:
        assert number == signal.SIGKILL
        groups.append(group)

    hanging = child_that("echo ready; exec sleep 1000", tmp_path, monkeypatch)
    with hanging, monkeypatch.context() as patch:
        patch.setattr(os, "killpg", kill_in_vain)
        with pytest.raises(KochiError, match="locking hangs"):
            probe_locks(machine, deadline=0.2)
    (group,) = groups
    assert os.waitpid(group, os.WNOHANG) == (0, 0), "it lives"
    os.killpg(group, signal.SIGKILL)
    os.waitpid(group, 0)


def test_a_python_that_does_not_begin_is_not_reported_as_a_lock_that_hangs(
    machine: MachinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        child_that("exec sleep 1000", tmp_path, monkeypatch),
        pytest.raises(
            KochiError, match=r"could not be tested: .* did not begin to run within 0.2 seconds"
        ),
    ):
        probe_locks(machine, start_patience=0.2)


def test_a_fork_that_does_not_begin_is_called_the_test_process(machine: MachinePaths) -> None:
    settle_locks(machine)
    with pytest.raises(KochiError, match="the test process did not begin to run within 0 seconds"):
        probe_locks(machine, start_patience=0.0, may_fork=True)


def test_a_child_that_fails_otherwise_is_no_verdict_on_the_locks(
    machine: MachinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"could not be tested: .* ended with status 7 \(no memory\)"
    with (
        child_that("echo ready; echo no memory >&2; exit 7", tmp_path, monkeypatch),
        pytest.raises(KochiError, match=said),
    ):
        probe_locks(machine)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(KochiError, match="no process can be started"):
        probe_locks(machine)


def test_a_probe_that_is_interrupted_leaves_no_process(
    machine: MachinePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = tmp_path / "pid"
    found: list[psutil.Process] = []

    def interrupt() -> None:
        wait_until(lambda: noted.exists() and noted.read_text().endswith("\n"))
        found.append(psutil.Process(int(noted.read_text())))
        # Before, the child is not known yet: it would end by itself, minutes later.
        main = threading.main_thread().ident
        wait_until(lambda: sys._current_frames()[main].f_code.co_name == "_listen")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with (
        child_that(f"echo $$ > '{noted}'; exec sleep 1000", tmp_path, monkeypatch),
        pytest.raises(KeyboardInterrupt),
    ):
        probe_locks(machine)
    interrupter.join()
    (child,) = found
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
