"""A metric that matches nothing is reported; metrics are read from the output of the run alone."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import git, printed, wait_until, write

import snakemake_kochi
from snakemake_kochi.cli.main import run

BUILD = 'echo "build sum $KOCHI_PARAM_DEBUG" >> "$RAN"\n'


def test_a_metric_that_matches_in_no_run_is_an_error_beside_the_table(
    finished_project: Any,
) -> None:
    project = finished_project
    project.edit(
        "sum.yaml", "total: 'total", "low: 'total (1[0-9])', gone: 'totl ([0-9]+)', total: 'total"
    )
    asked = ("--config", "kochi_batch=sum_first")
    done = project.try_snakemake("--keep-going", "sum_first", *asked, executor="kochi")
    assert done.returncode == 1
    assert (
        "kochi: sum.yaml: batch first: metric 'gone' matches in none of the 2 runs: "
        "totl ([0-9]+)\n"
        "example: results/local/sum/first/1_0.log, whose run printed last:\n"
        "    total 10\n"
        "Correct the expression below metrics: in sum.yaml"
    ) in done.stdout
    assert "batch first: table and plot of all 2: results/local/sum/first.md\n" in done.stdout
    # Whoever looks at the end only sees it, too.
    end = done.stdout.partition("table and plot of all 2")[2]
    assert "\nkochi: metric 'gone' matches in none of the 2 runs: totl" in end
    results = project.directory / "results/local/sum"
    rows = [row.split(",")[-3:] for row in (results / "first.csv").read_text().splitlines()]
    assert rows == [["low", "gone", "total"], ["10.0", "", "10"], ["", "", "20"]]
    markdown = (results / "first.md").read_text()
    assert "Metric `gone` has no value in 2 of 2 runs" in markdown
    assert "gone median" not in markdown
    # It is an error until it is mended; then only the table is made.
    project.take_ran()
    assert project.try_snakemake("sum_first").returncode == 1
    project.edit("sum.yaml", "gone: 'totl", "gone: 'total")
    said = project.snakemake("sum_first")
    assert "metric 'low' matches in 1 of 2 runs only: total (1[0-9])\n" in said
    assert project.take_ran() == []
    markdown = (results / "first.md").read_text()
    assert "gone median" in markdown
    assert "Metric `low` has no value in 1 of 2 runs" in markdown


def test_the_output_is_kept_with_the_build_and_a_header_and_metrics_read_the_run(
    finished_project: Any,
) -> None:
    project = finished_project
    project.edit("sum.yaml", BUILD, f"{BUILD}    echo total 77; seq -f 'cc %06g' 20000\n")
    project.edit("sum.yaml", 'echo "total', 'echo to stderr >&2; printf "total')
    project.snakemake("sum_first", executor="kochi")
    results = project.directory / "results/local/sum"
    log = (results / "first/2_0.log").read_text()
    assert log.startswith("Kochi job sum (ID=")
    first, *lines, last_but_one, last = printed(log).splitlines()
    assert first.endswith("/log]")
    assert "bytes before this are in /" in first
    assert lines[-1] == "cc 020000"
    assert 60_000 < len(log) < 70_000
    assert (last_but_one, last) == ("to stderr", "total 20")
    rows = (results / "first.csv").read_text().splitlines()
    assert [row.split(",")[-1] for row in rows] == ["total", "10", "20"]


BENCH = """
    params: {n: [1, 2]}
    duplicates: 2
    run: |
      n=$KOCHI_PARAM_N
      echo "time $n"
      echo "{\\"run\\": {\\"mean\\": $n.50, \\"all\\": [$n, 9, $((n * 10))]}}" > out.json
      mkdir -p raw && printf 'time;who\\n%s;ada\\n%s;bob\\noops;eve\\n' $n $((n + 1)) > raw/out.csv
      [ $n = 1 ] || echo "$n;dan" >> raw/out.csv
    metrics:
      mean: {json: out.json, path: run.mean, unit: ms}
      all: {json: out.json, path: run.all}
      last: {json: out.json, path: 'run.all[2]'}
      time: {csv: raw/out.csv, column: time}
    """
VALUES = {
    "1": {
        "mean": "1.5",
        "all": "9.0",
        "all_samples": "3",
        "last": "10",
        "time": "1.5",
        "time_samples": "3",
    },
    "2": {
        "mean": "2.5",
        "all": "9.0",
        "all_samples": "3",
        "last": "20",
        "time": "2.0",
        "time_samples": "4",
    },
}


def of_table(text: str) -> list[bool]:
    """Whether rows have the VALUES."""
    rows = list(csv.DictReader(text.splitlines()))
    return [row.items() >= VALUES[row["n"]].items() for row in rows]


def test_metrics_are_read_from_json_and_csv_that_are_kept_for_them(
    project: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    top = project.directory
    write(top / "bench.yaml", BENCH)
    (top / "raw").mkdir()
    # The project's own file of that name has no values of parameters, which would have to be text.
    (top / "raw/out.csv").write_bytes(b"\xff")
    monkeypatch.chdir(top)
    project.snakemake("bench", executor="kochi")
    results = top / "results/local/bench"
    assert of_table((results / "default.csv").read_text()) == [True] * 4
    page = (results / "default.md").read_text()
    assert "mean median (ms) |" in page
    assert "all median |   all min |   all max |   all_samples |" in page
    assert "Metric 'time': 'oops' in results/local/bench/default/n=1_0.raw_out.csv, " in page
    kept = sorted(each.name for each in (results / "default").glob("n=1_0*"))
    assert kept == ["n=1_0.log", "n=1_0.out.json", "n=1_0.raw_out.csv"]
    # So it is from the branch, and for pandas.
    capsys.readouterr()
    assert run(["table", "bench.yaml", "--csv"]) == 0
    assert of_table(capsys.readouterr().out) == [True] * 4
    with pytest.warns(UserWarning, match="are no numbers, so their values are missing"):
        frame = snakemake_kochi.results(top, experiment="bench")
    assert frame["all"].tolist() == [9.0] * 4
    assert sorted(frame["time_samples"]) == [3, 3, 4, 4], "each run has its own number"
    # A metric of a file that is kept runs nothing, and a mistake says what is there.
    for old, new, said in (
        ("run.mean", "run.maen", "path run.maen of out.json: there is no 'maen' at run, did you "),
        ("run.maen", "run", "path run of out.json: a number or a list of numbers was expected, "),
        ("path: run,", "path: 'run.all[3]',", "the list at run.all has 3 entries"),
        ("run.all[3]", "run.mean[0]", "path run.mean[0] of out.json: at run.mean is no list"),
        ("column: time", "column: tiem", "of raw/out.csv: there is no column 'tiem', did you mean"),
    ):
        project.edit("bench.yaml", old, new)
        done = project.try_snakemake("bench")
        assert done.returncode == 1
        assert said in done.stdout
        assert "metric 'mean' has no value in any run: path run" in done.stdout
        assert "example: results/local/bench/default/n=1_0.out.json" in done.stdout
        assert "rule run" not in done.stdout
    assert run(["table", "bench.yaml"]) == 0
    said = "metric `mean` has no value in 4 of 4 runs: `path run.mean[0] of out.json` (at run.mean"
    assert said in capsys.readouterr().err


def test_a_metric_of_a_file_that_the_run_does_not_write_fails_the_run(project: Any) -> None:
    write(project.directory / "bench.yaml", BENCH.replace("> out.json", "> other.json"))
    done = project.try_snakemake("bench", executor="kochi")
    assert done.returncode == 1
    assert "0.out.json: the run left no file out.json in its workspace" in done.stdout


def test_an_interrupt_while_a_figure_is_drawn_is_one_line(finished_project: Any) -> None:
    top = finished_project.directory
    results = top / "results/local/sum"
    (results / "first.png").unlink()
    os.mkfifo(results / "first.png")  # opened when the figure is written, and never read
    (freeze,) = Path(os.environ["KOCHI_ROOT"]).glob("projects/*/freezes/*.json")
    began = (results / "first.csv").stat().st_mtime_ns
    table = "results/local/sum/first.csv"
    words = ("-P", "-m", "snakemake_kochi.tables", "sum.yaml", "first", table)
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=top,
        env={**os.environ, "KOCHI_FREEZE": str(freeze)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: (results / "first.csv").stat().st_mtime_ns > began)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert said == "kochi: interrupted: the table and the figures are not complete\n"
    assert git(top, "status", "--short") == ""
