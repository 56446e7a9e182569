"""A metric that matches nothing is reported; metrics are read from the output of the run alone."""

from __future__ import annotations

from typing import Any

from support import printed

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
