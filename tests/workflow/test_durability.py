"""A build or an installation counts only when all of it outlasts a power failure."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

MAKE = textwrap.dedent("""\
    from pathlib import Path
    from snakemake_kochi.errors import KochiError
    from snakemake_kochi.phases.batch_freeze import BatchFreeze
    from snakemake_kochi.phases.make import make
    from snakemake_kochi.phases.freeze import take_freeze
    from snakemake_kochi.phases.make import install_recipe
    freeze = take_freeze(Path.cwd(), "local")
    batch = BatchFreeze.of(freeze, freeze.experiment("sum.yaml"))
    for each in (
        lambda: install_recipe(freeze, freeze.project.dependencies["base"]["one"], ()),
        lambda: make(batch, batch.build, {"debug": "0"}, ()),
    ):
        try:
            each()
        except KochiError as error:
            print(f"kochi: {error}")
    """)
CALLS = "syncfs,fsync,rename,renameat,renameat2,link,linkat"


def make(project: Any, trace: Path, *inject: str) -> str:
    """Install and build; return what was said."""
    strace = ["strace", "--seccomp-bpf", "-f", "-qq", "-y", "-o", str(trace)]
    words = [*strace, "-e", f"trace={CALLS}", *inject, sys.executable, "-c", MAKE]
    done = subprocess.run(
        words, cwd=project.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def check_order(lines: list[str], phase: str) -> None:
    # What was written before the sync, the manifest's own content, its name, its directory.
    place = rf"/{phase}s/local/[^ >\"]*"
    steps = [
        rf"syncfs\(\d+<[^>]*{place}>\) += 0",
        rf"fsync\(\d+<[^>]*{place}/\.manifest\.json\.[^>]*>\) += 0",
        r'rename\w*\(.*/manifest\.json"\) += 0',
        rf"fsync\(\d+<[^>]*{place}>\) += 0",
    ]
    assert len([line for line in lines if re.search(steps[2], line)]) == 1
    rest = iter(lines)
    for step in steps:
        passed = []
        for line in rest:
            if re.search(step, line):
                break
            passed.append(line)
        else:
            pytest.fail(f"of the {phase} not in this order: {step}")
        written = [line for line in passed if "/record.json" in line]
        assert not written or step is steps[0], "the record is part of what is synced"


def test_everything_is_on_the_disk_before_the_manifest_and_that_before_it_counts(
    project: Any, tmp_path: Path
) -> None:
    assert "kochi: " not in make(project, tmp_path / "trace")
    lines = (tmp_path / "trace").read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if "/builds/local/" in line)
    check_order(lines[:end], "install")
    check_order(lines[end:], "build")


def test_what_is_not_on_the_disk_does_not_count(project: Any, tmp_path: Path) -> None:
    said = make(project, tmp_path / "trace", "-e", "inject=syncfs:error=EIO")
    assert said.count("kochi: ") == 2 == said.count("Input/output error")
    assert "Traceback" not in said
    assert "KOCHI_ROOT" in said
    assert len(project.take_ran()) == 2
    assert "kochi: " not in make(project, tmp_path / "trace")
    assert len(project.take_ran()) == 2, "both are made again"
