"""`kochi batch` where another run has locked the directory: it lives, or was killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support import wait_until

from snakemake_kochi.processes import Node

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
