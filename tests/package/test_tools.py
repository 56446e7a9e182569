"""What `make` calls: the set-up of environments and the filter of Snakemake's linter."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("tools/environment.sh", "tools/constraints.txt", "setup.py", "pyproject.toml"):
        target = tmp_path / "my checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path / "my checkout"


def set_up(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "tools" / "environment.sh", ".venv", "test"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def write_interpreter(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_chosen_interpreter_that_will_not_do_is_refused_with_the_range(checkout: Path) -> None:
    old = write_interpreter(checkout / "python2", "exit 1")
    done = set_up(checkout, PYTHON=str(old))
    assert done.returncode == 1
    assert done.stderr == f"PYTHON={old}: Python 3.11 to 3.14 was expected\n"
    assert not (checkout / ".venv").exists()


def test_an_environment_is_set_up_once_and_again_when_the_requirements_change(
    checkout: Path,
) -> None:
    # A uv that only takes notes: no network is needed.
    calls = checkout / "uv-calls"
    programs = checkout / "programs"
    programs.mkdir()
    write_interpreter(programs / "uv", f'echo "$*" >>"{calls}"\nmkdir -p .venv')
    path = f"{programs}:{os.environ['PATH']}"
    for _ in range(2):
        done = set_up(checkout, PATH=path, PYTHON=sys.executable)
        assert done.returncode == 0, done.stderr
    _, call = calls.read_text().splitlines()
    assert call.endswith("--constraint tools/constraints.txt --editable .[test]")

    with (checkout / "setup.py").open("a") as stream:
        stream.write("# another requirement\n")
    assert set_up(checkout, PATH=path, PYTHON=sys.executable).returncode == 0
    assert len(calls.read_text().splitlines()) == 4


REPORT = """Lints for rule install (line 3, /somewhere/install.smk):
    * No log directive defined:
      Without a log directive, all output will be printed to the terminal.
      Also see:
      https://snakemake.readthedocs.io/
    * Migrate long run directives into scripts or notebooks:
      Long run directives hamper workflow readability.

Lints for snakefile /somewhere/Snakefile:
    * Tab usage in line 4.:
      Both spaces and tabs can be used.
"""


def test_the_linter_reports_everything_but_what_is_allowed() -> None:
    specification = importlib.util.spec_from_file_location("lint", ROOT / "tools" / "lint.py")
    assert specification is not None and specification.loader is not None
    lint = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(lint)
    refused = [found for found in lint.lints(REPORT) if not lint.is_allowed(found)]
    assert refused == [
        "rule install (line 3, /somewhere/install.smk): "
        "Migrate long run directives into scripts or notebooks",
        "snakefile /somewhere/Snakefile: Tab usage in line 4.",
    ]
