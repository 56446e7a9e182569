"""What reruns finished work, and what does not."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from support import write

from .conftest import TABLE_RULES, results

ALL_RAN = ["run sum 1", "run sum 2"]


def nothing_to_do(project: Any) -> bool:
    return "Nothing to be done" in project.snakemake("sum_first") and project.take_ran() == []


@pytest.mark.compatibility
def test_what_has_no_part_in_a_result_reruns_nothing(finished_project: Any) -> None:
    project = finished_project
    project.commit()
    project.edit("README.md", "About", "All about")
    project.edit("Snakefile", "module kochi", "# A remark.\nmodule kochi")
    write(project.directory / "docs" / "new.txt", "new\n")
    write(project.directory / "more.smk", "# rules\n")
    write(project.directory / "more.yaml", "run: {script: 'true'}\n")
    project.edit("sum.yaml", "batches:\n", "batches:\n  second: {params: {n: [7]}}\n")
    # No script sees this parameter, and no batch uses these recipes.
    project.edit("sum.yaml", "{n: 1, debug: 0}", "{n: 1, debug: 0, extra: 5}")
    project.edit("kochi.yaml", "recipes:\n", "recipes:\n      - {name: new}\n")
    project.edit("kochi.yaml", "LEVEL: slow", "LEVEL: slower")
    assert nothing_to_do(project)


def test_more_values_and_duplicates_run_only_the_new_points(finished_project: Any) -> None:
    finished_project.edit("sum.yaml", "n: [1, 2]}", "n: [1, 3, 2]}\n    duplicates: 2")
    targets = [target.replace("_0.", f"_{d}.") for d in (0, 1) for target in results(1, 3, 2)]
    finished_project.snakemake(*targets)
    assert finished_project.take_ran() == [*ALL_RAN, "run sum 3", "run sum 3"]
    # So does a deleted artifact.
    (finished_project.directory / targets[2]).unlink()
    finished_project.snakemake(*targets)
    assert finished_project.take_ran() == ["run sum 2"]


@pytest.mark.compatibility
def test_an_edited_source_rebuilds_and_reruns(finished_project: Any) -> None:
    finished_project.edit("code.txt", "code", "better code")
    assert "Params have changed since last execution" in finished_project.snakemake(
        "-n", "sum_first"
    )
    finished_project.snakemake(*results(2))
    assert finished_project.take_ran() == ["build sum 0", "run sum 2"]
    finished_project.snakemake(*results(1, 2))
    assert finished_project.take_ran() == ["run sum 1"]
    result = finished_project.directory / "results/local/sum/first/1_0.txt"
    assert result.read_text() == "better code\nfast\n"
    assert finished_project.planned_rules("sum_first") == TABLE_RULES


RUNS = ["run_sum_first", "run_sum_first"]


def test_an_untracked_source_counts(finished_project: Any) -> None:
    (finished_project.directory / "new.c").write_text("int x;\n")
    assert finished_project.planned_rules(*results(1, 2)) == ["build_sum", *RUNS]


def test_sources_narrow_down_what_counts_as_code(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "default_name: sum", "default_name: sum\nsources: ['code.*']")
    project.snakemake(*results(1, 2))
    project.take_ran()
    (project.directory / "unrelated.c").write_text("int x;\n")
    assert nothing_to_do(project)
    project.edit("code.txt", "code", "better code")
    project.snakemake(*results(1, 2))
    assert project.take_ran() == ["build sum 0", *ALL_RAN]
    assert project.planned_rules("sum_first") == TABLE_RULES


def test_a_changed_run_script_reruns_without_a_build(finished_project: Any) -> None:
    finished_project.edit("sum.yaml", "* 10", "* 100")
    assert finished_project.planned_rules(*results(1, 2)) == RUNS


def test_a_changed_build_parameter_rebuilds_and_a_former_build_is_used_again(
    finished_project: Any,
) -> None:
    finished_project.edit("sum.yaml", "debug: 0", "debug: 1")
    finished_project.snakemake(*results(1))
    assert finished_project.take_ran() == ["build sum 1", "run sum 1"]
    finished_project.edit("sum.yaml", "debug: 1", "debug: 0")
    finished_project.snakemake(*results(1))
    assert "build sum 0" not in finished_project.take_ran()


def test_a_changed_recipe_is_installed_again_with_all_that_uses_it_and_only_that(
    finished_project: Any,
) -> None:
    finished_project.snakemake("install_base_other", "install_tool_slow")
    finished_project.take_ran()
    finished_project.edit("kochi.yaml", "-O1", "-O2")
    finished_project.snakemake(*results(1, 2), "install_base_other")
    first, *others = finished_project.take_ran()
    assert first == "build sum 0"
    assert others[0] == "install base -O2"
    assert others[1].startswith("install tool with ")
    assert others[2:] == ALL_RAN


def test_a_changed_activate_script_reruns_what_uses_the_recipe_but_installs_nothing(
    finished_project: Any,
) -> None:
    finished_project.edit("kochi.yaml", "LEVEL: fast}", "LEVEL: fast}, activate_script: export A=1")
    finished_project.snakemake(*results(1))
    assert finished_project.take_ran() == ["build sum 0", "run sum 1"]


def test_another_recipe_of_a_dependency_reruns_what_uses_it(finished_project: Any) -> None:
    finished_project.edit("sum.yaml", "recipe: fast", "recipe: slow")
    finished_project.snakemake(*results(1))
    build, install, ran = finished_project.take_ran()
    assert (build, ran) == ("build sum 0", "run sum 1")
    assert install.startswith("install tool")
    result = finished_project.directory / "results/local/sum/first/1_0.txt"
    assert result.read_text() == "code\nslow\n"


def test_a_changed_metric_is_read_off_the_output_without_a_rerun(finished_project: Any) -> None:
    finished_project.edit("sum.yaml", "total: 'total ([0-9]+)'", "tens: 'total ([0-9])'")
    finished_project.snakemake("sum_first")
    assert finished_project.take_ran() == []
    table = (finished_project.directory / "results/local/sum/first.csv").read_text()
    assert table.splitlines()[0].endswith(",run_seconds,tens")


def test_lost_results_cost_runs_but_no_build_or_installation(finished_project: Any) -> None:
    shutil.rmtree(finished_project.directory / ".snakemake")
    shutil.rmtree(finished_project.directory / "results")
    finished_project.snakemake(*results(1))
    assert finished_project.take_ran() == ["run sum 1"]


def test_the_stats_name_what_the_result_came_from(finished_project: Any) -> None:
    stats = json.loads(
        (finished_project.directory / "results/local/sum/first/2_0.json").read_text()
    )
    assert stats["parameters"] == {"debug": "0", "n": "2"}
    assert [recipe["dependency"] for recipe in stats["recipes"]] == ["base", "tool"]
    assert stats["exit_status"] == 0
    assert stats["snapshot"]["dirty"] is False
