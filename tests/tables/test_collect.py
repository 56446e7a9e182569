"""The Markdown and the message of a batch: what is missing, stale, edited, skipped or noisy."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest
from support import write

from snakemake_kochi.artifacts.record import RECORD_VERSION
from snakemake_kochi.errors import PhaseError
from snakemake_kochi.library.files import Place
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.tables.collect import collect

SUMS = """
batches:
  grid:
    duplicates: 2
    metrics: {t: 't (.+)'}
    params: {n: [1, 2], threads: [1, 2]}
    skip_if: {condition: $threads > $n, reason: more threads than items}
    artifacts: [{type: stdout, dest: "${n}_${threads}_${duplicate}.log"}]
run: {depend_params: [n, threads], script: "true"}
"""


@pytest.fixture
def grid() -> Grid:
    return load_experiment("sums.yaml", SUMS, None).grid("grid", "local")


def recorded(
    directory: Path, grid: Grid, outputs: Sequence[str], *changes: dict[str, Any]
) -> list[Place]:
    """Runs of the points of a batch, with their records and outputs."""
    runs = []
    for index, (point, output) in enumerate(zip(grid.points, outputs, strict=True)):
        log = write(directory / f"{index}.log", output)
        digest = hashlib.sha256(log.read_bytes()).hexdigest()
        dest = point.artifacts[0].dest
        record = {
            "version": RECORD_VERSION,
            "experiment": "sums.yaml",
            "batch": "grid",
            "machine": "local",
            "node": "n1",
            "seconds": 1.0,
            "started": f"2026-01-0{index + 1}T00:00:00+00:00",
            "duplicate": point.duplicate,
            "parameters": dict(point.parameters),
            "artifacts": [{"type": "stdout", "dest": dest, "sha256": digest}],
            **(changes[min(index, len(changes) - 1)] if changes else {}),
        }
        file = write(directory / str(index) / "record.json", json.dumps(record))
        runs.append(Place(point, file, (log,)))
    return runs


def test_missing_and_stale_results_are_told_apart_and_skipped_points_are_counted(
    tmp_path: Path, grid: Grid, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [Place(point, Path(str(index)), ()) for index, point in enumerate(grid.points)]
    collect(grid, "sums.yaml", runs, tmp_path / "grid.csv", (), {str(n): n < 5 for n in range(6)})
    assert capsys.readouterr().err == (
        "kochi: sums.yaml: batch grid: 1 of 6 runs has no result, and 5 have a stale one\n"
        "kochi: to see why, type: kochi show batch sums.yaml grid\n"
    )
    made = recorded(tmp_path, grid, [f"t {each}" for each in range(6)])
    left_out = {str(made[0].record): False}
    collect(grid, "sums.yaml", made, tmp_path / "grid.csv", [[tmp_path / "1.svg"]], left_out)
    page = (tmp_path / "grid.md").read_text()
    assert "\n\n1 point is skipped: more threads than items.\n\n1 of 6 runs has no result; " in page


def test_one_value_that_is_no_number_takes_no_other_one_from_the_table(
    tmp_path: Path, grid: Grid, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = recorded(tmp_path, grid, ["t 1502.1", "t 1,502.1", "t 3", "t 4", "t 5", "t 6"])
    table = tmp_path / "grid.csv"
    collect(grid, "sums.yaml", runs, table, [[tmp_path / "grid.svg"]])
    values = pandas.read_csv(table)["t"].tolist()
    assert values == pytest.approx([1502.1, math.nan, 3.0, 4.0, 5.0, 6.0], nan_ok=True)
    said = f"etric 't': '1,502.1' in {tmp_path}/1.log is no number, so its value is missing"
    assert f"batch grid: m{said}\n" in capsys.readouterr().err
    page = (tmp_path / "grid.md").read_text()
    assert f"\n\nM{said}.\n" in page
    assert "t median" in page


def test_a_result_that_was_edited_by_hand_is_left_out_and_named(
    tmp_path: Path, grid: Grid, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = recorded(tmp_path, grid, [f"t {each}" for each in range(1, 7)])
    table, figures = tmp_path / "grid.csv", [[tmp_path / "grid.svg"]]
    edited = tmp_path / "1.log"
    old = edited.stat().st_mtime_ns
    edited.write_text("t 9")
    os.utime(edited, ns=(old, old))
    (tmp_path / "2.log").touch()  # younger than its record, and as it was
    said = f"{edited} was edited after its run; for a new run, delete it; to get it back, type: "
    with pytest.raises(PhaseError, match=re.escape(f"1 result is not as the run wrote it: {said}")):
        collect(grid, "sums.yaml", runs, table, figures)
    assert not table.exists()
    collect(grid, "sums.yaml", runs, table, figures, {str(runs[1].record): True})
    assert pandas.read_csv(table)["t"].tolist() == [1, 3, 4, 5, 6]
    assert "1 of 6 runs has a stale result; table and plot of" in capsys.readouterr().err


def test_the_unit_of_a_metric_is_in_the_head_of_the_table(tmp_path: Path) -> None:
    text = SUMS.replace(
        "t: 't (.+)'", "t: {pattern: 't (.+)', unit: ms}, u: {pattern: 't (.+)', unit: a|b}"
    )
    grid = load_experiment("sums.yaml", text, None).grid("grid", "local")
    collect(
        grid,
        "sums.yaml",
        recorded(tmp_path, grid, ["t 1"] * 6),
        tmp_path / "grid.csv",
        [[tmp_path / "1.svg"], [tmp_path / "2.svg"]],
    )
    head = (tmp_path / "grid.md").read_text().splitlines()[2]
    for name in ("run_seconds median |", "t median (ms) |", "t max (ms) |", "u min (a\\|b) |"):
        assert f" {name}" in head


def test_only_a_batch_with_figures_waits_for_the_library_that_draws() -> None:
    """And none for Snakemake, or for what checks the experiments of a person."""
    code = "import sys, snakemake_kochi.tables.{0}; print(*sys.modules)"
    for module in ("collect", "branch"):
        command = [sys.executable, "-c", code.format(module)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        loaded = set(done.stdout.split())
        assert "pandas" in loaded
        assert not loaded & {"jsonschema", "matplotlib", "snakemake"}


def test_runs_too_short_for_noise_are_counted_aside_and_told_in_sum(
    tmp_path: Path, grid: Grid
) -> None:
    def noise(warnings: list[str], other_cpus: float | None, used: float, **more: Any) -> Any:
        told = {"warnings": warnings, "other_cpus": other_cpus, "other_cpu_seconds": used}
        return {"noise": {**told, "load_limit": 0.5}, "environment_seconds": 0.0, **more}

    long = noise(["load: other processes used 1.9 CPUs"], 1.9, 3.8, seconds=2.0)
    for used, is_told in ((0.6, True), (0.1, False)):
        runs = recorded(tmp_path, grid, ["t 1"] * 6, long, noise([], None, used, seconds=0.3))
        collect(grid, "sums.yaml", runs, tmp_path / "grid.csv", [[tmp_path / "grid.svg"]])
        page = (tmp_path / "grid.md").read_text()
        assert (
            "The node was not quiet in 1 of 6 runs (other processes are not known for 5): "
            "load in 1 of 1 (other processes used 1.9 CPUs). See `run_warnings`."
        ) in page
        said = "Beside the 5 runs that are too short to tell, other processes used 2.0 CPUs in sum."
        assert (said in page) == is_told
