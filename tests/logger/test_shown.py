"""The messages of a run that a person sees, and those in the log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY, run, write

POINTS, FAILING = 40, 12
SNAKEFILE = f"""
rule all:
    input: expand("{{n}}.txt", n=range({POINTS}))

rule point:
    output: "{{n}}.txt"
    resources: kochi_name=lambda wildcards: f"point-{{wildcards.n}}"
    params: least={FAILING}
    shell: "echo trying {{wildcards.n}}; test {{wildcards.n}} -ge {{params.least}} || exit 3; "
           "touch {{output}}"
"""

pytestmark = pytest.mark.compatibility


def snakemake(directory: Path, *options: str) -> list[str]:
    """The lines of a run that fails, without those of before the run."""
    profile = str(REPOSITORY / "profiles" / "local")
    done = run(sys.executable, "-m", "snakemake", "--profile", profile, *options, cwd=directory)
    assert done.returncode == 1
    return done.stdout.splitlines()


def logged(directory: Path) -> str:
    """The log of the newest run."""
    return max((directory / ".snakemake" / "log").iterdir()).read_text()


def test_failures_and_progress_are_shown_and_the_log_has_all(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    lines = snakemake(tmp_path)
    text = "\n".join(lines)
    assert len(lines) < 2 * POINTS
    failed = [line for line in lines if line.startswith("Failed: point ")]
    assert {re.search(r"\(n=(\d+)\)", line)[1] for line in failed} == {  # type: ignore[index]
        str(n) for n in range(FAILING)
    }
    # The first ten failures are shown with their ends and logs, the others in one line each.
    assert text.count("    see: kochi show log job ") == 10
    assert len([line for line in lines if line.startswith("    trying ")]) == 10
    assert re.search(r"Failed: point point-\d+ \(n=\d+\): kochi job [\d.]+ .*exit status 3", text)
    assert re.search(r"^Failed: .*\(kochi show log job [\d.]+\)$", text, re.MULTILINE)
    said = f"{POINTS - FAILING} of {POINTS + 1} steps (68%) done, {FAILING} failed"
    assert said in lines
    for noise in ("rule point:", "reason:", "Finished job", "Execute ", "\n\n\n"):
        assert noise not in text
    whole = logged(tmp_path)
    assert whole.count("rule point:") >= POINTS
    assert f"{POINTS - FAILING} of {POINTS + 1} steps (68%) done\n" in whole
    # The command that the message names works.
    typed = re.search(r"see: kochi (show log job [\d.]+)", text)
    assert typed is not None
    shown = run(sys.executable, "-m", "snakemake_kochi.cli", *typed[1].split(), cwd=tmp_path)
    assert shown.stdout.startswith("trying ")


def test_snakemakes_own_executor_is_as_quiet_and_p_shows_each_job(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    lines = snakemake(tmp_path, "--executor", "local", "--cores", "2")
    failed = [line for line in lines if line.startswith("Failed: ")]
    assert len(failed) == FAILING
    assert all("exit status 3, its output is above" in line for line in failed)
    assert len(lines) < 3 * POINTS
    assert logged(tmp_path).count("rule point:") >= POINTS
    shown = "\n".join(snakemake(tmp_path, "-p", "--executor", "local", "--cores", "2"))
    assert shown.count("echo trying") >= FAILING


def test_a_run_that_waits_for_snakemakes_rate_limit_does_not_say_so_each_time(
    tmp_path: Path,
) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    limit = ("--max-jobs-per-timespan", "20/1s")
    lines = snakemake(tmp_path, *limit, "--executor", "local", "--cores", "2")
    said = "Job rate limit reached"
    assert said in logged(tmp_path)
    assert said not in "\n".join(lines)


def test_a_target_of_many_files_does_not_list_them_all(tmp_path: Path) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE)
    profile = os.fspath(REPOSITORY / "profiles" / "cluster")
    options = ("--profile", profile, "--dry-run")
    done = run(sys.executable, "-m", "snakemake", *options, cwd=tmp_path)
    assert done.returncode == 0
    assert f"7.txt, and {POINTS - 8} more\n" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 600
    assert done.stdout.count("rule point:") == POINTS


@pytest.mark.parametrize("options", [("--dry-run",), ("--executor", "local", "--cores", "2")])
def test_a_reader_that_has_left_ends_no_run_and_nothing_is_said(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    write(tmp_path / "Snakefile", SNAKEFILE.replace("exit 3", "true"))
    reader, writer = os.pipe()
    os.close(reader)
    # A dry run is shown in standard output, a run in standard error.
    is_dry = "--dry-run" in options
    apart = {"stdout": writer} if is_dry else {"stdout": subprocess.PIPE, "stderr": writer}
    with os.fdopen(writer):
        done = subprocess.run(
            [sys.executable, "-m", "snakemake", "--logger", "kochi", *options],
            cwd=tmp_path,
            **{"stderr": subprocess.PIPE, **apart},
        )
    assert (done.returncode, done.stderr or b"") == (0, b"")
    assert len(list(tmp_path.glob("*.txt"))) == (0 if is_dry else POINTS)
