"""After `kochi clean`, finished work is finished, and what new work needs is made again."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from cleaning.stage import make_old
from support import run

from .conftest import ExampleProject, results


def test_finished_work_needs_nothing_that_was_deleted_and_new_work_makes_it_again(
    finished_project: ExampleProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(os.environ["KOCHI_ROOT"])
    make_old(root)
    for name in ("first", "second"):
        clean = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "clean", "-y", "--json")
        done = run(*clean, cwd=finished_project.directory)
        assert done.returncode == 0, name
    assert not list(root.glob("projects/*/builds/local/*"))
    assert len(list(root.glob("projects/*/installs/local/*/*/current"))) == 2
    finished_project.take_ran()
    assert finished_project.planned_rules(*results(1, 2)) == []
    # And a clean-up that deletes a build in the moment in which a run begins to copy it.
    programs = tmp_path / "programs"
    programs.mkdir()
    copy = programs / "cp"
    copy.write_text(
        f'#!/bin/sh\nfor tree; do case "$tree" in */builds/local/*/tree)\n'
        f'  if mkdir {programs}/deleted 2> /dev/null; then rm -rf "${{tree%/tree}}"; fi ;;\n'
        f'esac; done\nexec {shutil.which("cp")} "$@"\n'
    )
    copy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    # A small build is copied without cp.
    (finished_project.directory / "large").write_bytes(bytes(2 << 20))
    (target,) = results(1)
    finished_project.snakemake("--force", target)
    assert (programs / "deleted").is_dir()
    assert finished_project.take_ran() == ["build sum 0", "build sum 0", "run sum 1"]
    assert (finished_project.directory / target).read_text() == "code\nfast\n"
