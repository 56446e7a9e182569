"""`kochi batch` where another run has locked the directory: it lives, or was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from support import wait_until

from snakemake_kochi.cli.unlock import unlock_dead_run
from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import make_directory, to_json
from snakemake_kochi.heartbeat import HeartbeatFile
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.processes import Node, ProcessIdentity, this_node
from snakemake_kochi.queue.controllers import LockFile

from .conftest import COMMAND, Outcome

Kochi = Callable[..., Outcome]
ELSEWHERE = Node("elsewhere", "some-id", "some-boot", "pid:[1]")


@contextmanager
def running_batch(project: Path, line: str = "    sh program") -> Iterator[subprocess.Popen[bytes]]:
    """A batch that goes on before a line of its scripts until there is a file `go` beside the
    project."""
    text = (project / "fib.yaml").read_text()
    script = f"    touch {project.parent}/begun\n"
    script += f"    until [ -e {project.parent}/go ]; do sleep 0.1; done\n"
    (project / "fib.yaml").write_text(text.replace(line, f"{script}{line}"))
    command = [*COMMAND, "batch", "fib.yaml", "test"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as batch:
        try:
            wait_until((project.parent / "begun").exists)
            yield batch
        finally:
            batch.kill()


def answer(text: str, *words: str) -> tuple[int, str]:
    """Type a command on a terminal, and an answer."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, text.encode())
        done = subprocess.run(
            [*COMMAND, *words], stdin=theirs, capture_output=True, text=True, timeout=240
        )
    finally:
        os.close(ours)
        os.close(theirs)
    return done.returncode, done.stderr


def test_a_batch_that_was_killed_is_unlocked_when_a_person_says_so(
    project: Path, shell: Kochi
) -> None:
    locks = project / ".snakemake" / "locks"
    with running_batch(project) as batch:
        other = shell("batch", "fib.yaml", "test")
        assert other.status == 1
        assert f"another run in this directory is alive on this host (process {batch.pid}" in (
            other.err
        )
        assert "unlock" not in other.err + other.out
        assert shell("batch", "fib.yaml", "test", "--unlock").status == 1
        assert list(locks.iterdir())
    dead = f"he run that locked this directory is dead (process {batch.pid} on "
    assert shell("batch", "fib.yaml", "test", "--dry-run").status == 0
    told = shell("batch", "fib.yaml", "test")
    assert told.status == 1
    assert f"kochi: t{dead}" in told.err
    assert told.err.endswith("type: kochi batch --unlock fib.yaml test\n")
    status, said = answer("n\n", "batch", "fib.yaml", "test")
    assert (status, said.count(f"T{dead}")) == (1, 1)
    assert list(locks.iterdir())
    (project.parent / "go").touch()
    status, said = answer("y\n", "batch", "fib.yaml", "test")
    assert status == 0, said
    assert "Unlock the directory, and continue the run? [y/N]" in said
    assert (project / "results/local/fib/2_0.log").exists()


def test_a_batch_waits_for_another_one_with_the_same_build(project: Path) -> None:
    text = (project / "fib.yaml").read_text()
    more = """\
  more:
    params: {n: 3}
    artifacts: [{type: stdout, dest: "fib/more_${n}.log"}]
build:
"""
    (project / "fib.yaml").write_text(text.replace("build:\n", more))
    said = project.parent / "said"
    with running_batch(project, "    cat code") as first, said.open("wb") as stream:
        command = [*COMMAND, "batch", "fib.yaml", "more"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stream) as second:
            waiting = "Waiting for the end of a run that makes some of these files (process "
            wait_until(lambda: f"{waiting}{first.pid} on " in said.read_text())
            (project.parent / "go").touch()
            assert (first.wait(), second.wait()) == (0, 0), said.read_text()
    assert "locked" not in said.read_text()
    assert (project / "results/local/fib/more_3.log").exists()


def test_what_another_program_locked_is_left_to_snakemake(project: Path, shell: Kochi) -> None:
    lock = project / ".snakemake" / "locks" / "0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("results/local/fib/test.csv\n")
    outcome = shell("batch", "fib.yaml", "test", "--unlock")
    assert outcome.status == 1
    assert "is dead" not in outcome.err
    assert lock.exists()


@pytest.fixture
def locked(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[MachinePaths, HeartbeatFile, Path]:
    """A directory that a controller on another host has locked, its file and the lock."""
    monkeypatch.setenv("KOCHI_HEARTBEAT", getattr(request, "param", "0.1"))
    lock = tmp_path / "0.output.lock"
    lock.touch()
    machine = Root(tmp_path / "root").machine("local")
    paths = machine.controller("theirs")
    make_directory(paths.state.parent)
    state = {
        "version": 1,
        "controller": "theirs",
        "node": asdict(ELSEWHERE),
        "process": asdict(ProcessIdentity(1, 1)),
        "directory": str(tmp_path),
        "started": "2026-11-22T10:00:00+00:00",
        "locks": [asdict(found) for found in [LockFile.of(str(lock))] if found is not None],
    }
    paths.outputs.write_bytes(to_json({"version": 1, "outputs": ["mine.csv"]}))
    file = HeartbeatFile(paths.state, state)
    file.write()
    return machine, file, lock


def test_a_run_on_another_host_is_dead_when_it_gives_no_sign_of_life(
    locked: tuple[MachinePaths, HeartbeatFile, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    machine, _, lock = locked
    unlock_dead_run(machine, lock.parent, "mine.csv", True, "this")
    assert "waiting for a sign of its life" in capfd.readouterr().err
    assert not lock.exists()


# With shorter heartbeats, a filesystem that is busy for a second would be its death.
@pytest.mark.parametrize("locked", ["1"], indirect=True)
def test_a_run_that_lives_on_another_host_keeps_its_lock(
    locked: tuple[MachinePaths, HeartbeatFile, Path],
) -> None:
    machine, file, lock = locked
    file.start(lambda: True)
    try:
        with pytest.raises(KochiError, match="is alive on elsewhere") as error:
            unlock_dead_run(machine, lock.parent, "mine.csv", True, "this")
        assert "unlock" not in str(error.value)
        unlock_dead_run(machine, lock.parent, "other.csv", True, "this")  # makes other files
    finally:
        file.stop()
    assert lock.exists()


def test_a_lock_that_was_made_anew_is_not_that_of_the_dead(
    locked: tuple[MachinePaths, HeartbeatFile, Path],
) -> None:
    machine, _, lock = locked
    lock.with_suffix(".new").touch()
    lock.with_suffix(".new").rename(lock)
    unlock_dead_run(machine, lock.parent, "mine.csv", True, "this")
    assert lock.exists()


@pytest.mark.parametrize("how", ["ended", "damaged"])
def test_a_run_that_ends_while_it_is_watched_removes_its_lock_itself(
    locked: tuple[MachinePaths, HeartbeatFile, Path], how: str
) -> None:
    machine, _, lock = locked
    paths = machine.controller("theirs")

    def end(_: float) -> None:
        # Snakemake tidies up, with its lock, when its executor has gone.
        shutil.rmtree(paths.directory) if how == "ended" else paths.state.write_text("{")

    unlock_dead_run(machine, lock.parent, "mine.csv", True, "this", sleep=end)
    assert lock.exists()


def test_a_run_that_was_interrupted_keeps_its_lock_until_its_process_has_ended(
    locked: tuple[MachinePaths, HeartbeatFile, Path],
) -> None:
    machine, file, lock = locked
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            own = ProcessIdentity.of(process.pid)
            assert own is not None
            file.write(left=True, node=asdict(this_node()), process=asdict(own))
            with pytest.raises(
                KochiError, match=rf"is still ending .*process {process.pid} on"
            ) as error:
                unlock_dead_run(machine, lock.parent, "mine.csv", True, "this")
            assert "try again" in error.value.sentences
            unlock_dead_run(machine, lock.parent, "other.csv", True, "this")
            assert lock.exists()
        finally:
            process.kill()
    unlock_dead_run(machine, lock.parent, "mine.csv", True, "this")
    assert not lock.exists()


def test_of_a_run_that_was_interrupted_elsewhere_a_person_says_that_it_is_gone(
    locked: tuple[MachinePaths, HeartbeatFile, Path],
) -> None:
    machine, file, lock = locked
    file.write(left=True)
    gone = machine.controller("theirs").gone
    with pytest.raises(KochiError, match="process 1 on elsewhere") as error:
        unlock_dead_run(machine, lock.parent, "mine.csv", True, "this")
    assert f"ps 1\nIf it does not exist, type: touch {gone}" in error.value.sentences
    assert lock.exists()
    gone.touch()
    unlock_dead_run(machine, lock.parent, "mine.csv", True, "this")
    assert not lock.exists()
