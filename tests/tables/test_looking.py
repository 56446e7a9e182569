"""What a look at a batch with `repeat` asks for, and what it tells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake_kochi.library.looks import Look, key_of
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.tables.collect import read_report
from snakemake_kochi.tables.looking import look_at

from .test_collect import recorded

REPEATED = """
batches:
  grid:
    metrics: {t: 't (.+)'}
    params: {n: [1, 2]}
    repeat: REPEAT
    artifacts: [{type: stdout, dest: "${n}_${duplicate}.log"}]
run: {depend_params: [n], script: "true"}
"""


def looked(directory: Path, repeat: str, runs: int = 10, nodes: int = 1) -> tuple[Look, list[str]]:
    """A look after some runs of two points, of which neither is known, and what it tells; each run
    took a second."""
    grid = load_experiment("sums.yaml", REPEATED.replace("REPEAT", repeat), None).grid("grid", "a")
    points = [point for point in grid.points if point.duplicate < runs]
    some: Any = SimpleNamespace(points=points)
    values = [f"t {100 + 30 * (7 * point.duplicate % 10)}" for point in points]
    changes = [
        {"started": f"2026-01-01T00:{i:02}:00+00:00", "node": f"n{point.duplicate % nodes}"}
        for i, point in enumerate(points)
    ]
    there = recorded(directory, some, values, *changes)
    report = read_report("", grid, there, (), is_whole=True)
    batch: Any = SimpleNamespace(identities={key_of(point): "id" for point in points})
    assert grid.repeat is not None
    found = look_at(report, batch, grid.repeat, there)
    return found, [*found.told(grid)]


def test_a_look_says_how_long_it_takes_until_the_next_one(tmp_path: Path) -> None:
    found, told = looked(tmp_path, "{until: 1%}")
    assert [each.wanted for each in found.points] == [15, 15] and found.seconds == 10
    assert told[0] == "after 10 runs 0 of 2 points are known within 1 % of their median t"
    assert told[1].startswith("n=1: ± ") and told[1].endswith(" after 10 runs: 5 more")
    assert told[-1] == "expected until the next look: 10 seconds of runs"
    found, told = looked(tmp_path, "{until: 1%, max: 10}")
    assert found.is_last and told[1].endswith(" after 10 runs: the maximum") and len(told) == 3


def test_a_part_of_the_budget_is_spent_on_fewer_runs(tmp_path: Path) -> None:
    budget = "{until: 1%, budget: 0.4 node-minutes}"
    found, told = looked(tmp_path, budget)
    assert [(each.wanted, each.why) for each in found.points] == [(12, "")] * 2
    assert told[1].endswith(": 2 more") and found.seconds == 4
    found, _ = looked(tmp_path, budget, runs=12)
    assert [(each.wanted, each.why) for each in found.points] == [(12, "the budget is spent")] * 2


def test_a_point_on_few_nodes_says_how_many_it_needs(tmp_path: Path) -> None:
    found, _ = looked(tmp_path, "{until: 90%, max: 15}", runs=15, nodes=3)
    why = "the maximum; of 3 allocations or nodes, 5 are needed"
    assert [each.why for each in found.points] == [why] * 2
    found, _ = looked(tmp_path, "{until: 90%, max: 15}", runs=15, nodes=5)
    assert [each.why for each in found.points] == [""] * 2
