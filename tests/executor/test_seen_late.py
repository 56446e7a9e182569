"""Outputs and inputs on a filesystem that shows new files late.

A client of NFS may report a file as missing for up to a minute after another node has made it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from faulty_filesystem import FaultyFilesystem
from run_helpers import results
from support import run, servers, wait_until, worker_command, write

from snakemake_kochi.files import show_new_files
from snakemake_kochi.paths import Root

FOR_LONG = 600.0  # seconds: no wait in this test lasts as long
WAIT = 4  # seconds that Snakemake waits for files

STEP = """
rule step{n}:
    input: {before!r}
    output: {after!r}
    resources: kochi_queue="q"
    shell: "cp {{input}} {{output}}"
"""


@contextmanager
def worker_elsewhere(project: Path, there: Path) -> Iterator[None]:
    """A worker on what is another node for all that can be seen, where the project's directory is
    another mount."""
    root = Path(os.environ["KOCHI_ROOT"])
    Root.find().secure(root / "machines" / "local")
    settings = {"queues": ("q",), "stay": True, "cores": 2, "idle_wait": 0.2}
    change = 'hostname elsewhere && mount --bind "$0" "$1" && shift && exec "$@"'
    command = [
        *(
            "unshare",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            "-c",
            change,
        ),
        *(there, project),
        *worker_command(root, root.parent, **settings),
    ]
    process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, cwd="/")
    try:
        machine = root / "machines" / "local"
        wait_until(lambda: servers(machine, "q"), "the worker serves its queue")
        yield
    finally:
        # The first process of a pid namespace takes all others with it.
        everything = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        psutil.wait_procs(everything, timeout=60)


def snakemake(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(
        *(
            sys.executable,
            "-m",
            "snakemake",
            "--executor",
            "kochi",
            "--jobs",
            "4",
            "--latency-wait",
            str(WAIT),
        ),
        *("--kochi-workers", "0", "--kochi-queue", "q", *arguments),
        cwd=project,
    )


def test_outputs_of_another_node_are_visible_when_success_is_reported(tmp_path: Path) -> None:
    files = ["start", *(f"new{n}/deep{n}/file" for n in range(1, 9))]
    steps = [STEP.format(n=n, before=files[n - 1], after=files[n]) for n in range(1, len(files))]
    backing = tmp_path / "backing"
    write(backing / "Snakefile", f"rule all:\n    input: {files[-1]!r}\n" + "".join(steps))
    write(backing / "start", "content\n")
    with (
        FaultyFilesystem(backing, tmp_path / "here", FOR_LONG) as here,
        FaultyFilesystem(backing, tmp_path / "there") as there,
        worker_elsewhere(here.path, there.path),
    ):
        assert snakemake(here.path).returncode == 0
        assert (here.path / files[-1]).read_text() == "content\n"
    assert {result["node"]["host"] for result in results()} == {"elsewhere"}
    assert len(results()) == 8


LOOKED_FOR = """
rule last:
    input: "made/before/x"
    output: "last"
    resources: kochi_queue="q"
    {how}

rule make:
    input: "looked"
    output: "made/before/x"
    localrule: True
    shell: "echo made > {{output}}"

rule look:
    output: "looked"
    resources: kochi_queue="q"
    # In a directory that nobody else lists, as Python does with the present one.
    shell: "mkdir made && ls made/before/x || touch {{output}}"
"""
COPY_IN_PYTHON = 'run: open(output[0], "w").write(open(input[0]).read())'
COPY_IN_SHELL = 'shell: "cp {input} {output}"'


@pytest.mark.parametrize(
    ("runner", "how"),
    [("shell", COPY_IN_SHELL), ("zygote", COPY_IN_PYTHON), ("command", COPY_IN_SHELL)],
)
def test_an_input_that_a_node_once_missed_is_visible_when_a_job_needs_it(
    tmp_path: Path, runner: str, how: str
) -> None:
    backing = tmp_path / "backing"
    write(backing / "Snakefile", LOOKED_FOR.format(how=how))
    with (
        FaultyFilesystem(backing, tmp_path / "here") as here,
        FaultyFilesystem(backing, tmp_path / "there", FOR_LONG) as there,
        worker_elsewhere(here.path, there.path),
    ):
        assert snakemake(here.path, "--kochi-runner", runner).returncode == 0
        assert (here.path / "last").read_text() == "made\n"
    assert {result["runner"] for result in results()} >= {runner}


def test_a_directory_that_cannot_be_listed_is_skipped(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    show_new_files(tmp_path / "missing" / "deep")
    show_new_files(tmp_path / "file" / "deep")
    show_new_files("")
