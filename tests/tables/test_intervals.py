"""How sure a median is: the same in the table, its Markdown, `results()` and the figure."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pandas
import pytest
from matplotlib.axes import Axes
from support import write

from snakemake_kochi.cli.main import run
from snakemake_kochi.library.files import Place
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.statistics.stopping import interval_so_far
from snakemake_kochi.tables.collect import collect
from snakemake_kochi.tables.intervals import Points, Unit

from .conftest import FIB, Project
from .test_collect import recorded

REPEATED = """
batches:
  grid:
    duplicates: {0}
    metrics: {{t: 't (.+)'}}
    params: {{n: [1, 2]}}
    artifacts: [{{type: stdout, dest: "${{n}}_${{duplicate}}.log"}}]
run: {{depend_params: [n], script: "true"}}
"""


def grid_of(duplicates: int) -> Grid:
    return load_experiment("sums.yaml", REPEATED.format(duplicates), None).grid("grid", "local")


def made(directory: Path, duplicates: int, nodes: int = 1) -> tuple[pandas.DataFrame, str, str]:
    """The CSV, the Markdown and the figure of two points: of one the runs take 1, 2, 3, ..."""
    grid = grid_of(duplicates)
    values = [f"t {100 * int(p.parameters['n']) + (p.duplicate * 7) % 10}" for p in grid.points]
    changes = [{"node": f"n{point.duplicate % nodes}"} for point in grid.points]
    runs: list[Place] = recorded(directory, grid, values, *changes)
    collect(grid, "sums.yaml", runs, directory / "grid.csv", [[directory / "grid.svg"]])
    page, figure = (directory / f"grid.{suffix}" for suffix in ("md", "svg"))
    return pandas.read_csv(directory / "grid.csv"), page.read_text(), figure.read_text()


def test_a_table_has_both_ends_of_each_interval_and_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, draw = [], Axes.errorbar

    def errorbar(self: Axes, *given: Any, **how: Any) -> Any:
        drawn.append(given)
        return draw(self, *given, **how)

    monkeypatch.setattr(Axes, "errorbar", errorbar)
    table, page, figure = made(tmp_path, 10)
    first = table[table["n"] == 1].iloc[0]
    assert [first[f"t_{name}"] for name in ("lower", "upper", "n", "units")] == [101, 108, 10, 1]
    assert "| t median | t 95 % interval |" in " ".join(page.split())
    # The bars of the figure end there, too.
    assert drawn == [([1, 2], [104.5, 204.5], [[3.5, 3.5], [3.5, 3.5]])]
    assert "101 to 108 (± 3.35 %)" in page and "201 to 208 (± 1.71 %)" in page
    assert "The intervals do not cover differences between sessions, boots and builds." in page
    assert "Bars: interval of the median, as in the table." in " ".join(figure.split())


def test_few_runs_have_no_interval_and_single_ones_no_column(tmp_path: Path) -> None:
    table, page, _ = made(tmp_path, 2)
    assert "No median has an interval: a point needs 6 runs, or 3 allocations or nodes." in page
    assert table["t_lower"].isna().all() and table["t_n"].eq(2).all()
    table, page, _ = made(tmp_path, 1)
    assert "interval" not in page and "t_n" not in table
    grid = grid_of(6)
    runs = recorded(tmp_path, grid, [f"t {point.duplicate}" for point in grid.points])
    left_out = {str(run.record): False for run in runs[:4]}
    collect(grid, "sums.yaml", runs, tmp_path / "t.csv", [[tmp_path / "t.svg"]], left_out)
    assert "n = 2: no interval; all values cover 50 %" in (tmp_path / "t.md").read_text()


def test_of_several_nodes_the_nodes_count_and_not_their_runs(tmp_path: Path) -> None:
    table, page, _ = made(tmp_path, 10, nodes=5)
    assert "5 nodes x 2 runs" in page
    assert "on several nodes have the interval of the mean of their medians" in page
    first = table[table["n"] == 1].iloc[0]
    # The medians of the nodes are 102.5, 104.5, 106.5, 103.5 and 105.5.
    assert [first["t_n"], first["t_units"]] == [10, 5]
    assert first["t_lower"] == pytest.approx(104.5 - 2.7764 * 1.5811 / 5**0.5, abs=1e-3)


def test_values_that_are_all_equal_and_those_that_drift_are_told(tmp_path: Path) -> None:
    grid = grid_of(20)
    for text, said in (
        ("t 5", "all equal at this resolution"),
        ("t {}", "T: later runs differ from earlier ones."),
    ):
        outputs = [text.format(point.duplicate) for point in grid.points]
        runs = recorded_in_order(tmp_path, grid, outputs)
        collect(grid, "sums.yaml", runs, tmp_path / "t.csv", [[tmp_path / "t.svg"]])
        assert said in (tmp_path / "t.md").read_text()


@pytest.mark.parametrize("runs", [20, 8])
def test_neighbouring_runs_that_are_alike_are_told(runs: int, tmp_path: Path) -> None:
    grid = grid_of(runs)
    times = [100 + 9 * math.sin(1.2 * each.duplicate) for each in grid.points]
    changes = [
        {"started": f"2026-01-01T00:00:{i:02}+00:00", "seconds": time}
        for i, time in enumerate(times)
    ]
    done = recorded(tmp_path, grid, [f"t {time}" for time in times], *changes)
    collect(grid, "sums.yaml", done, tmp_path / "t.csv", [[tmp_path / "t.svg"]])
    page = (tmp_path / "t.md").read_text()
    assert "T: neighbouring runs are alike (r = 0." in page and f": {runs} runs count as " in page
    more = "3 allocations or nodes, and more where neighbouring runs are alike."
    assert (more in page) == (runs == 8)


@pytest.mark.parametrize(
    ("units", "said"),
    [
        ([(name, "n1") for name in "abcdef" for _ in range(5)], "6 allocations x 5 runs"),
        ([("a", "n1"), ("b", "n1"), ("b", "n1")], "3 runs in 2 allocations"),
        ([("a", "n1"), ("a", "n2")] * 2, "2 nodes x 2 runs"),
        ([(None, "n1")] * 3, "3"),
    ],
)
def test_runs_are_counted_by_allocation_and_node(units: list[Unit], said: str) -> None:
    assert [*Points([range(len(units))], units).described] == [said]


def recorded_in_order(directory: Path, grid: Grid, outputs: list[str]) -> list[Place]:
    changes = [{"started": f"2026-01-01T00:00:{i:02}+00:00"} for i in range(len(outputs))]
    return recorded(directory, grid, outputs, *changes)


def test_a_frame_of_all_runs_has_the_intervals_of_their_points(project: Project) -> None:
    for value in range(10):
        project.run(f"time {7 * value % 10}", parameters={"n": "1"}, duplicate=value)
    project.run("time 9", parameters={"n": "2"})
    project.commit()
    frame = project.results()
    several = frame[frame["n"] == 1]
    assert several[["time_lower", "time_upper"]].drop_duplicates().to_numpy().tolist() == [[1, 8]]
    assert several["time_n"].tolist() == [10] * 10
    assert frame[frame["n"] == 2][["time_lower", "time_n"]].isna().to_numpy().tolist() == [
        [True, False]
    ]
    # Of a batch with `repeat`, intervals allow for looks, in the frame as in its table.
    text = FIB.replace("first: {", "first: {repeat: {until: 2%, confidence: 90%}, ")
    write(project.top / "fib.yaml", text)
    looked = project.results()
    wider = interval_so_far([7.0 * n % 10 for n in range(10)], 0.9)
    assert looked[looked["n"] == 1]["time_lower"].unique().tolist() == [wider.lower]
    # Those of the duration, too, whichever metrics are read.
    for metrics in (True, False, {"own": "time (.+)"}):
        only = project.results(metrics=metrics)
        assert only[only["n"] == 1]["seconds_lower"].unique().tolist() == [0.25]
    assert only["own_lower"].dropna().tolist() == looked["time_lower"].dropna().tolist()


def test_json_and_terminal_have_the_intervals_of_the_csv(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.top)
    write(project.top / "fib.yaml", FIB.replace("first: {", "first: {duplicates: 7, "))

    def shown(*words: str) -> Any:
        assert run(["table", "fib.yaml", "first", *words]) == 0
        return capsys.readouterr()

    for duplicate in range(2):
        project.run(f"time {duplicate}", parameters={"n": "1"}, duplicate=duplicate)
    project.commit()
    few = "no median has an interval: a point needs 6 runs, or 3 allocations or nodes"
    assert f"kochi: {few}\n" in shown().err
    for duplicate in range(2, 7):
        project.run(f"time {3 * duplicate % 7}", parameters={"n": "1"}, duplicate=duplicate)
    project.commit()
    found = json.loads(shown("--json").out)
    assert [found["runs"][0][f"time_{end}"] for end in ("lower", "upper", "n", "units")] == [
        0,
        6,
        7,
        1,
    ]
    table = pandas.read_csv(io.StringIO(shown("--csv").out))
    assert [*found["runs"][0]] == [*table.columns]
    said = "the intervals do not cover differences between sessions, boots and builds"
    assert said in found["remarks"] and f"kochi: {said}\n" in shown().err
