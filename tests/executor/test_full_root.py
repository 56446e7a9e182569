"""A KOCHI_ROOT on a full disk."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_disk import FullDisk, mounted
from support import Process, start, wait_until, write

# Two jobs run while the disk is full; one is submitted meanwhile.
SNAKEFILE = """
    localrules: gate

    rule all:
        input: "a", "b", "late"

    rule job:
        output: "{name,[ab]}"
        shell:
            "echo x >> began-{wildcards.name}; while [ ! -e go ]; do sleep 0.1; done; "
            "touch {output}"

    rule gate:
        output: "gate"
        shell: "while [ ! -e open ]; do sleep 0.1; done; touch {output}"

    rule late:
        input: "gate"
        output: "late"
        shell: "echo x >> began-late; touch {output}"
"""
IS_FULL = "KOCHI_ROOT is full"


@pytest.fixture
def disk(isolated_environment: Path) -> Iterator[FullDisk]:
    with mounted(isolated_environment) as disk:
        yield disk


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Process]:
    """A run whose disk can be filled: its first jobs have begun."""
    write(directory / "Snakefile", SNAKEFILE)
    command = [sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "4"]
    with open(directory / "said", "wb") as said:
        command += ["--kochi-cores", "2"]
        run = start(*command, cwd=directory, output=said, start_new_session=True)
        try:
            wait_until(lambda: len(list(directory.glob("began-*"))) == 2)
            yield run
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def said(directory: Path) -> str:
    return (directory / "said").read_text()


def test_a_run_that_starts_on_a_full_disk_prints_one_message(
    tmp_path: Path, disk: FullDisk, snakemake
) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    disk.fill()
    done = snakemake("--executor", "kochi", "--jobs", "4", cwd=tmp_path)
    assert done.returncode == 1
    assert f"KOCHI_ROOT {disk.directory} cannot be used: " in done.stdout
    assert f"{os.strerror(28)}\nFree some space there and try again." in done.stdout
    assert ".py" not in done.stdout.partition("KOCHI_ROOT")[2]


def test_a_disk_that_becomes_full_is_reported_once_and_the_run_continues_with_free_space(
    tmp_path: Path, disk: FullDisk
) -> None:
    with started(tmp_path) as run:
        disk.fill()
        wait_until(lambda: IS_FULL in said(tmp_path))
        (tmp_path / "go").touch()
        (tmp_path / "open").touch()
        wait_until(lambda: "Finished jobid" in said(tmp_path), "the local rule ends")
        wait_until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
        disk.empty()
        assert run.wait(60) == 0, said(tmp_path)
    assert said(tmp_path).count(IS_FULL) == 1
    assert said(tmp_path).count(str(disk.directory / "machines" / "local")) >= 1
    assert "KOCHI_ROOT has free space again." in said(tmp_path)
    for name in ("a", "b", "late"):
        assert (tmp_path / f"began-{name}").read_text() == "x\n"


def test_an_interrupt_on_a_full_disk_ends_the_jobs_whose_files_have_room_for_their_results(
    tmp_path: Path, disk: FullDisk, snakemake
) -> None:
    with started(tmp_path) as run:
        disk.fill()
        wait_until(lambda: IS_FULL in said(tmp_path))
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(60) == 1
    # The file of an attempt, which becomes the result, is on the disk already.
    assert "Cancelled 2 kochi jobs; nothing of this run is left." in said(tmp_path)
    assert "Traceback" not in said(tmp_path)
    disk.empty()
    (tmp_path / "go").touch()
    (tmp_path / "open").touch()
    snakemake("--unlock", cwd=tmp_path)
    again = snakemake("--executor", "kochi", "--jobs", "4", "--rerun-incomplete", cwd=tmp_path)
    assert again.returncode == 0
    assert (tmp_path / "began-a").read_text() == "x\nx\n"
