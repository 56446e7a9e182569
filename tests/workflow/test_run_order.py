"""The order in which the runs of a batch start."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import git, run, write

from snakemake_kochi.library.run_order import RunOrder, in_order

from .conftest import ExampleProject, begin_project

EXPERIMENT = """
    default_params: {n: 0, version: 0}
    default_duplicates: 3
    seed: 5
    batches:
      rounds:
        params: {n: [1, 2], version: [1, 2]}
        artifacts:
          - {type: stdout, dest: 'order/${version}_${n}_${duplicate}.log'}
      wide:
        params: {n: [1, 2], version: [1]}
        artifacts:
          - {type: stdout, dest: 'wide/${n}_${duplicate}.log'}
        run: {cores: "$n", exclusive: false}
      listed:
        order: listed
        params: {n: [1, 2, 3]}
        artifacts:
          - {type: stdout, dest: 'listed/${n}_${duplicate}.log'}
    build:
      depend_params: [version]
      script: |
        echo build >> "$RAN"
        [ $KOCHI_PARAM_VERSION != "${BROKEN:-}" ]
    run:
      depend_params: [version, n]
      script: echo "$KOCHI_PARAM_VERSION $KOCHI_PARAM_N" >> "$RAN"
    """
# Of three parameters, of which only `n` is one of the run script's.
VARIED = """
    depends: [{name: tool, recipe: "${tool}"}]
    default_params: {n: 0}
    default_duplicates: 2
    seed: 3
    batches:
      all:
        code: [main, other]
        params: {tool: [one, two], n: [1, 2]}
        artifacts:
          - {type: stdout, dest: 'varied/${code}_${tool}_${n}_${duplicate}.log'}
    build:
      script: echo "build with $KOCHI_RECIPE_TOOL" >> "$RAN"
    run:
      depend_params: [n]
      script: |
        echo "$(cat code) $KOCHI_RECIPE_TOOL $KOCHI_PARAM_N" >> "$RAN"
        [ "$KOCHI_PARAM_N" != "${BROKEN:-}" ]
    """
TOOL = """
    dependencies:
      tool:
        script: echo install >> "$RAN"
        recipes: [{name: one}, {name: two}]
    """
POINTS = ["1 1", "1 2", "2 1", "2 2"]
# Without the table, which takes longer than all runs.
ROUNDS = [f"results/local/order/{p.replace(' ', '_')}_{d}.log" for p in POINTS for d in range(3)]
WIDE = [f"results/local/wide/{n}_{duplicate}.log" for n in (1, 2) for duplicate in range(3)]
LISTED = [f"results/local/listed/{n}_{duplicate}.log" for n in (1, 2, 3) for duplicate in range(3)]


@pytest.fixture
def ordered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExampleProject:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    files = {"kochi.yaml": "dependencies: {}\n", "order.yaml": EXPERIMENT}
    return begin_project(tmp_path / "project", tmp_path / "ran", files)


def starts(project: ExampleProject) -> list[str]:
    lines = project.ran.read_text().splitlines()
    project.ran.unlink()
    return lines


def test_runs_start_in_rounds_after_all_builds_and_go_on_in_the_order_of_before(
    ordered: ExampleProject,
) -> None:
    output = ordered.snakemake(*ROUNDS, executor="kochi")
    assert "order.yaml: batch rounds: 12 runs start in rounds, in random order, seed 5" in output
    first = starts(ordered)
    assert first[:2] == ["build", "build"]
    rounds = [first[2:6], first[6:10], first[10:]]
    assert [sorted(each) for each in rounds] == [POINTS] * 3
    assert rounds != [POINTS] * 3

    # What an interrupted run leaves: the second half of the second round, and the third one.
    left = [(1, point) for point in rounds[1][2:]] + [(2, point) for point in rounds[2]]
    for number, point in left:
        name = f"results/local/order/{point.replace(' ', '_')}_{number}.log"
        (ordered.directory / name).unlink()
    ordered.snakemake(*ROUNDS, executor="kochi")
    assert starts(ordered) == [point for _, point in left]

    ordered.edit("order.yaml", "seed: 5", "seed: 6\norder: listed")
    assert "Nothing to be done" in ordered.snakemake("-n", *ROUNDS)
    command = ("-m", "snakemake_kochi.cli", "show", "batch", "order.yaml", "rounds", "--json")
    shown: dict[str, Any] = json.loads(run(sys.executable, *command, cwd=ordered.directory).stdout)
    assert (shown["order"], shown["seeds"], shown["counts"]["done"]) == ("listed", [5], 12)


def test_rounds_go_across_code_and_recipes_and_a_retry_keeps_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    files = {"kochi.yaml": TOOL, "varied.yaml": VARIED, "code": "main\n"}
    project = begin_project(tmp_path / "project", tmp_path / "ran", files)
    git(project.directory, "checkout", "-qb", "other")
    write(project.directory / "code", "other\n")
    project.commit()
    batch = (*("-m", "snakemake_kochi.cli", "batch"), "varied.yaml", "all")
    monkeypatch.setenv("BROKEN", "2")
    command = (sys.executable, *batch, "--", "--keep-going")
    assert run(*command, cwd=project.directory).returncode == 1
    ran = starts(project)
    # The scripts of both recipes are equal, but a build sees the recipe's name.
    assert sorted(ran[:6]) == [*sorted(["build with one", "build with two"] * 2), *["install"] * 2]
    names = [
        f"{code} {tool} {n}"
        for code in ("main", "other")
        for tool in ("one", "two")
        for n in (1, 2)
    ]
    assert [sorted(ran[6:14]), sorted(ran[14:])] == [names] * 2
    assert ran[6:14] != ran[14:]

    monkeypatch.delenv("BROKEN")
    assert run(sys.executable, *batch, "--retry", "failed", cwd=project.directory).returncode == 0
    assert starts(project) == [each for each in ran[6:] if each.endswith(" 2")]


def test_a_failed_build_holds_up_only_the_points_that_use_it(
    ordered: ExampleProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "2")
    files = [file for file in ROUNDS if not file.endswith("_2.log")]
    # With one core, a run could start before the second build.
    cores = ("--keep-going", "--cores", "1")
    assert ordered.try_snakemake(*cores, *files, executor="local").returncode == 1
    ran = starts(ordered)
    assert ran[:2] == ["build", "build"]
    assert [sorted(ran[at : at + 2]) for at in (2, 4)] == [["1 1", "1 2"]] * 2


def test_a_run_with_more_cores_is_not_left_for_the_end(ordered: ExampleProject) -> None:
    ordered.snakemake("--cores", "2", *WIDE, executor="local")
    ran = starts(ordered)[1:]
    assert [sorted(ran[at : at + 2]) for at in (0, 2, 4)] == [["1 1", "1 2"]] * 3


def test_listed_runs_start_point_by_point(ordered: ExampleProject) -> None:
    assert "in rounds" not in ordered.snakemake(*LISTED, executor="kochi")
    assert starts(ordered) == ["build", *["0 1"] * 3, *["0 2"] * 3, *["0 3"] * 3]


def test_a_seed_and_the_name_of_the_batch_determine_the_order() -> None:
    points = tuple(SimpleNamespace(n=n, duplicate=d) for n in range(6) for d in range(4))

    def order(seed: int | None, name: str = "small") -> list[tuple[int, int]]:
        grid = SimpleNamespace(points=points, batch=name, repeat=None)
        batch: Any = SimpleNamespace(seed=seed, grid=grid)
        return [(point.duplicate, point.n) for point in in_order(batch)]  # type: ignore[attr-defined]

    assert order(7) == order(7) != order(8)
    assert order(7) != order(7, "large")
    assert [duplicate for duplicate, _ in order(7)] == sorted(list(range(4)) * 6)
    rounds = [order(7)[at : at + 6] for at in range(0, 24, 6)]
    assert len({tuple(n for _, n in each) for each in rounds}) > 1
    assert order(None) == [(point.duplicate, point.n) for point in points]


def test_the_sides_of_a_ratio_are_next_to_each_other_in_random_order() -> None:
    points = tuple(
        SimpleNamespace(parameters={"n": str(n), "by": by}, duplicate=duplicate)
        for n in range(10)
        for by in "abc"
        for duplicate in range(4)
    )
    grid = SimpleNamespace(points=points, batch="b", repeat=SimpleNamespace(by="by"))
    batch: Any = SimpleNamespace(seed=7, grid=grid)
    found = [(each.duplicate, *each.parameters.values()) for each in in_order(batch)]
    sides = [found[at : at + 3] for at in range(0, 120, 3)]
    assert [each[0][0] for each in sides] == sorted([*range(4)] * 10)
    assert all(len({(d, n) for d, n, _ in each}) == 1 for each in sides)
    assert len({tuple(by for *_, by in each) for each in sides}) == 6
    assert [each[0][1] for each in sides[:10]] != [each[0][1] for each in sides[10:20]]


def test_a_snakemake_without_the_parts_that_order_needs_runs_in_its_own_order(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "snakemake.dag", SimpleNamespace(DAG=object))
    monkeypatch.setattr(logging.getLogger("snakemake"), "propagate", True)
    RunOrder(list).begin(SimpleNamespace())
    assert "do not start in rounds with this Snakemake" in caplog.text
