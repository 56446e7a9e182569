"""Results are reported while the thread that submits jobs waits for the filesystem."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem
from run_helpers import background
from support import job_of_run, wait_until, write

SNAKEFILE = """
    localrules: gate

    rule all:
        input: "early", "late"

    rule early:
        output: "early"
        shell: "touch began; while [ ! -e go ]; do sleep 0.1; done; exit 3"

    rule gate:
        output: "gate"
        shell: "while [ ! -e open ]; do sleep 0.1; done; touch {output}"

    rule late:
        input: "gate"
        output: "late"
        shell: "exit 4"
"""


@pytest.fixture
def filesystem(tmp_path: Path, isolated_environment: Path) -> Iterator[FaultyFilesystem]:
    """It has the KOCHI_ROOT."""
    with FaultyFilesystem(tmp_path / "backing", isolated_environment) as filesystem:
        yield filesystem


# A ticket that is written where no worker looks, and what wakes a worker.
ASIDE, WAKE = ("*/own/*", "*/wake")


@contextmanager
def started(directory: Path) -> Iterator[Path]:
    """What a run says, of which one job runs, and another one is handed over when the file `open`
    is there; until both have failed."""
    write(directory / "Snakefile", SNAKEFILE)
    said = directory / "said"
    command = f"{sys.executable} -m snakemake --executor kochi -j4 --kochi-cores 2 --keep-going"
    with background("sh", "-c", f"exec {command} > {said} 2>&1", cwd=directory) as run:
        wait_until((directory / "began").exists)
        yield said
        assert run.wait(60) == 1, said.read_text()
    for rule in ("early", "late"):
        assert said.read_text().count(f"Error in rule {rule}:") >= 1


def test_the_result_of_one_job_is_reported_while_the_hand_over_of_another_one_hangs(
    tmp_path: Path, filesystem: FaultyFilesystem
) -> None:
    with (
        started(tmp_path) as said,
        filesystem.fault("create", 0, ASIDE, hangs=True) as hanging,
    ):
        (tmp_path / "open").touch()
        wait_until(lambda: filesystem.count(hanging), "the ticket is being written")
        (tmp_path / "go").touch()
        wait_until(lambda: "Error in rule early:" in said.read_text())
        assert f"kochi job {job_of_run(1)} in queue" not in said.read_text()


def test_a_run_whose_shutdown_hangs_is_broken_off_by_one_more_interrupt(
    tmp_path: Path, filesystem: FaultyFilesystem
) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    said = tmp_path / "said"
    command = f"{sys.executable} -m snakemake --executor kochi -j4 --kochi-cores 2"
    with background("sh", "-c", f"exec {command} > {said} 2>&1", cwd=tmp_path) as run:
        wait_until((tmp_path / "began").exists)
        with filesystem.fault("readdir", 0, "*/inbox*", hangs=True) as hanging:
            wait_until(lambda: filesystem.count(hanging))

            def is_broken_off() -> bool:
                run.send_signal(signal.SIGINT)
                return "kochi: broken off: a step of the shutdown does not" in said.read_text()

            wait_until(is_broken_off)
        # The kernel keeps a process until the call of its last thread has been answered.
        assert run.wait(60) == 130


def test_a_result_that_arrives_before_the_end_of_its_hand_over_is_reported(
    tmp_path: Path, filesystem: FaultyFilesystem
) -> None:
    with started(tmp_path) as said:
        # A worker is notified when the ticket is in the queue.
        with filesystem.fault("getattr", 0, WAKE, hangs=True):
            (tmp_path / "open").touch()
            wait_until(lambda: "Error in rule late:" in said.read_text())
            assert f"kochi job {job_of_run(1)} in queue" not in said.read_text()
        (tmp_path / "go").touch()
