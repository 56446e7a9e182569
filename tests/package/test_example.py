"""The example is a working project, whatever the computer it is tried on has configured."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """The example as `make demo` prepares it, by somebody whose git refuses to commit."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    configuration = tmp_path / "gitconfig"
    configuration.write_text(
        f'[core]\nhooksPath = "{hooks}"\n[commit]\ngpgSign = true\n[user]\nuseConfigOnly = true\n'
    )
    directory = tmp_path / "a demo"
    run(
        *(EXAMPLES / "prepare.sh", directory),
        cwd=tmp_path,
        GIT_CONFIG_GLOBAL=str(configuration),
        HOME=str(tmp_path),
    )
    return directory


def test_the_example_is_prepared_as_two_clean_repositories(prepared: Path) -> None:
    for name in ("taskpool", "fib"):
        assert run("git", "status", "--porcelain", cwd=prepared / name) == ""
        assert run("git", "branch", "--show-current", cwd=prepared / name) == "main\n"
    # `kochi init` writes it.
    assert not (prepared / "fib" / "Snakefile").exists()


def test_the_library_adds_up_right_with_any_number_of_workers(prepared: Path) -> None:
    assert run("make", "check", cwd=prepared / "taskpool").endswith("ok\n")


def test_the_benchmark_prints_and_writes_what_the_experiment_expects(prepared: Path) -> None:
    prefix = prepared / "the prefix"
    run("make", "install", f"PREFIX={prefix}", "CFLAGS=-O1", cwd=prepared / "taskpool")
    project = prepared / "fib"
    run(
        *("gcc", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{prefix}/include", "-o", "fib"),
        *("fib.c", f"-L{prefix}/lib", "-ltaskpool"),
        cwd=project,
    )
    number, time = run("./fib", "30", cwd=project, FIB_WORKERS="3").splitlines()
    assert number == "fib(30) = 832040"
    label, time_ns = time.split()
    assert (label, time_ns.isdigit()) == ("time_ns:", True)
    assert (project / "out.csv").read_text() == f"n_input,n_workers,time_ns\n30,3,{time_ns}\n"
    # Neither may be taken for the user's work.
    assert run("git", "status", "--porcelain", cwd=project) == ""


def test_the_benchmark_refuses_what_is_no_number(prepared: Path) -> None:
    sources = ("fib.c", "../taskpool/taskpool.c")
    run("gcc", "-pthread", "-I../taskpool", *sources, "-o", "fib", cwd=prepared / "fib")
    done = subprocess.run(
        ["./fib", "3x"], cwd=prepared / "fib", stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "fib: N is '3x', a number from 0 to 60 was expected\n"
