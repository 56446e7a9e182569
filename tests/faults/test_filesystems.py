"""Whole runs on filesystems that refuse calls, lose answers, and do not know for a moment."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from faulty_filesystem import FaultyFilesystem
from support import open_runs, start, wait_until, write

from snakemake_kochi.paths import Root

JOBS = 6
SNAKEFILE = f"""
rule all:
    input: expand("out/{{i}}", i=range({JOBS})), expand("next/{{i}}", i=range({JOBS}))

rule first:
    output: "out/{{i}}"
    shell: "echo {{wildcards.i}} >> began; touch {{output}}"

rule second:
    input: "out/{{i}}"
    output: "next/{{i}}"
    shell: "echo next-{{wildcards.i}} >> began; cp {{input}} {{output}}"
"""


@pytest.fixture
def filesystem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyFilesystem]:
    """With KOCHI_ROOT on it."""
    with FaultyFilesystem(tmp_path / "backing", tmp_path / "shared") as filesystem:
        monkeypatch.setenv("KOCHI_ROOT", str(filesystem.path / "root"))
        yield filesystem
        # A run that had to be killed has left its workers.
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                its_own = process.environ().get("KOCHI_ROOT") == os.environ["KOCHI_ROOT"]
                if its_own and process.pid != os.getpid():
                    process.kill()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path / "project" / "Snakefile", SNAKEFILE)
    return tmp_path / "project"


def did_each_job_once(project: Path) -> bool:
    wanted = [f"{kind}{number}" for number in range(JOBS) for kind in ("", "next-")]
    return Counter((project / "began").read_text().split()) == Counter(wanted)


def has_begun(project: Path) -> bool:
    began = project / "began"
    return began.exists() and len(began.read_text().split()) >= JOBS


Faults = list[tuple[str, int, dict[str, Any]]]


@contextlib.contextmanager
def all_of(filesystem: FaultyFilesystem, faults: Faults) -> Iterator[None]:
    """All of the faults at once, each of which has to be met."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(filesystem.fault(c, e, **where)) for c, e, where in faults]
        yield
        counts = [filesystem.count(fault) for fault in made]
    assert all(counts), list(zip(counts, faults, strict=True))


REFUSALS: Faults = [
    ("mknod", errno.EPERM, {}),
    ("fsync", errno.EINVAL, {}),
    ("link", errno.EPERM, {}),
]
NO_RENAME: Faults = [("rename", errno.EXDEV, {"is_directory": True})]


def test_a_run_does_without_what_its_filesystem_refuses(
    filesystem: FaultyFilesystem, project: Path, snakemake
) -> None:
    with all_of(filesystem, REFUSALS):
        done = snakemake("--executor", "kochi", "--cores", "2", "--jobs", "100", cwd=project)
    assert done.returncode == 0
    assert did_each_job_once(project)


def test_where_directories_cannot_be_renamed_a_run_says_so(
    filesystem: FaultyFilesystem, project: Path, snakemake, kochi
) -> None:
    with all_of(filesystem, NO_RENAME):
        done = snakemake("--executor", "kochi", "--cores", "2", "--jobs", "100", cwd=project)
        examined = kochi("doctor", cwd=project)
    assert done.returncode != 0
    assert "cannot be used" in done.stdout and "Invalid cross-device link" in done.stdout
    assert "Traceback" not in done.stdout
    assert not (project / "began").exists()
    assert examined.returncode == 1
    assert "directories cannot be renamed: Invalid cross-device link" in examined.stdout


def test_doctor_tells_what_a_filesystem_refuses(
    filesystem: FaultyFilesystem, project: Path, kochi
) -> None:
    with contextlib.ExitStack() as faults:
        for call, error, where in REFUSALS:
            faults.enter_context(filesystem.fault(call, error, **where))
        said = kochi("doctor", cwd=project).stdout
    assert "no FIFOs here: runs and workers look now and then, within five seconds" in said


# A call that was done, and whose answer got lost: NFS says of the repeated one that the source is
# not there, other filesystems give the error of the network.
LOST = {
    "NFS": [
        ("rename", "*/own/*", errno.ENOENT),
        ("rename", "*/waiting/*", errno.ENOENT),
        ("rename", "*/inbox/*", errno.ENOENT),
    ],
    "others": [
        ("rename", "*/own/*", errno.EIO),
        ("rename", "*/waiting/*", errno.EIO),
        ("rename", "*/inbox/*", errno.EIO),
    ],
}


@pytest.mark.parametrize("kind", LOST)
def test_a_lost_answer_neither_loses_nor_doubles_a_job(
    kind: str, filesystem: FaultyFilesystem, project: Path, snakemake
) -> None:
    faults: Faults = [
        (call, error, {"path": path, "done": True, "times": 5}) for call, path, error in LOST[kind]
    ]
    with all_of(filesystem, faults):
        done = snakemake("--executor", "kochi", "--cores", "2", "--jobs", "100", cwd=project)
    assert done.returncode == 0
    assert did_each_job_once(project)
    assert open_runs(Root(filesystem.path / "root").machine("local").directory) == []


MOMENTS = {
    "stale": [
        ("open", "*", errno.ESTALE, 60),
        ("getattr", "*.json", errno.ESTALE, 60),
        ("readdir", "*", errno.ESTALE, 60),
        ("rename", "*", errno.ESTALE, 30),
    ],
    "errors": [
        ("readdir", "*/inbox", errno.EIO, 5),
        ("readdir", "*/running", errno.EIO, 5),
        ("open", "*/inbox/*", errno.EIO, 5),
        ("getattr", "*/runs/*", errno.EIO, 5),
        ("open", "*/worker.json", errno.EIO, 5),
    ],
}


@pytest.mark.parametrize("kind", MOMENTS)
def test_what_is_not_known_for_a_moment_ends_no_run(
    kind: str, filesystem: FaultyFilesystem, project: Path
) -> None:
    faults: Faults = [
        (call, error, {"path": path, "times": times}) for call, path, error, times in MOMENTS[kind]
    ]
    # Half of the jobs come when the fault is there: what a run needs to begin may be refused.
    waiting = "while [ ! -e go ]; do sleep 0.1; done; echo next-"
    write(project / "Snakefile", SNAKEFILE.replace("echo next-", waiting))
    command = [sys.executable, "-m", "snakemake", "--executor", "kochi", "--cores", "2"]
    output = project.with_name("output")
    with open(output, "wb") as file:
        run = start(*command, "--jobs", "100", cwd=project, output=file)
    try:
        wait_until(lambda: has_begun(project), "the run has begun")
        with all_of(filesystem, faults):
            (project / "go").touch()
            assert run.wait(timeout=240) == 0, output.read_text()
    finally:
        run.kill()
        run.wait()
        print(output.read_text())
    assert did_each_job_once(project)
