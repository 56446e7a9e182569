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
    import sys
    from pathlib import Path
    from snakemake_kochi.errors import KochiError
    from snakemake_kochi.phases.build import build_experiment
    from snakemake_kochi.phases.freeze import take_freeze
    from snakemake_kochi.phases.install import install_recipe
    freeze = take_freeze(Path.cwd(), "local")
    try:
        if sys.argv[1] == "install":
            install_recipe(freeze, freeze.project.dependencies["base"]["one"], ())
        else:
            experiment = freeze.experiment("sum.yaml")
            variables = {"KOCHI_PARAM_DEBUG": "0"}
            build_experiment(freeze, experiment, experiment.build, variables, ())
    except KochiError as error:
        sys.exit(f"kochi: {error}")
    """)
CALLS = "syncfs,fsync,rename,renameat,renameat2,link,linkat"


def make(project: Any, phase: str, trace: Path, *inject: str) -> subprocess.CompletedProcess[str]:
    strace = ["strace", "--seccomp-bpf", "-f", "-qq", "-y", "-o", str(trace)]
    words = [*strace, "-e", f"trace={CALLS}", *inject, sys.executable, "-c", MAKE, phase]
    return subprocess.run(
        words, cwd=project.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("phase", ["install", "build"])
def test_everything_is_on_the_disk_before_the_manifest_and_that_before_it_counts(
    project: Any, tmp_path: Path, phase: str
) -> None:
    done = make(project, phase, tmp_path / "trace")
    assert done.returncode == 0, done.stdout
    # What was written before the sync, the manifest's own content, its name, its directory.
    place = rf"/{phase}s/local/[^ >\"]*"
    steps = [
        rf"syncfs\(\d+<[^>]*{place}>\) += 0",
        rf"fsync\(\d+<[^>]*{place}/\.manifest\.json\.[^>]*>\) += 0",
        r'rename\w*\(.*/manifest\.json"\) += 0',
        rf"fsync\(\d+<[^>]*{place}>\) += 0",
    ]
    lines = (tmp_path / "trace").read_text().splitlines()
    assert len([line for line in lines if re.search(steps[2], line)]) == 1
    rest = iter(lines)
    for step in steps:
        passed = []
        for line in rest:
            if re.search(step, line):
                break
            passed.append(line)
        else:
            pytest.fail(f"not in this order: {step}")
        written = [line for line in passed if "/record.json" in line]
        assert not written or step is steps[0], "the record is part of what is synced"


@pytest.mark.parametrize("phase", ["install", "build"])
def test_what_is_not_on_the_disk_does_not_count(project: Any, tmp_path: Path, phase: str) -> None:
    done = make(project, phase, tmp_path / "trace", "-e", "inject=syncfs:error=EIO")
    assert done.returncode == 1
    assert "Input/output error" in done.stdout and "Traceback" not in done.stdout
    assert "KOCHI_ROOT" in done.stdout
    assert len(project.take_ran()) == 1
    assert make(project, phase, tmp_path / "trace").returncode == 0
    assert len(project.take_ran()) == 1, "it was made again"
