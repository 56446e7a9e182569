"""What reruns finished work, and what does not."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from typing import Any

import pytest
from support import run, write

from .conftest import TABLE_RULES, results

ALL_RAN = ["run sum 1", "run sum 2"]
RESULT = "results/local/sum/first/1_0.txt"


def nothing_to_do(project: Any) -> bool:
    return "Nothing to be done" in project.snakemake("sum_first") and project.take_ran() == []


@pytest.mark.compatibility
def test_what_has_no_part_in_a_result_reruns_nothing(finished_project: Any) -> None:
    project = finished_project
    stats = json.loads((project.directory / "results/local/sum/first/2_0.json").read_text())
    assert stats["parameters"] == {"debug": "0", "n": "2"}
    assert [recipe["dependency"] for recipe in stats["recipes"]] == ["base", "tool"]
    assert (stats["exit_status"], stats["snapshot"]["dirty"]) == (0, False)
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
    # A metric is read off the output.
    project.edit("sum.yaml", "total: 'total ([0-9]+)'", "tens: 'total ([0-9])'")
    project.snakemake("sum_first")
    assert project.take_ran() == []
    table = (project.directory / "results/local/sum/first.csv").read_text()
    assert table.splitlines()[0].endswith(",run_seconds,tens")


# An edit, and what the next run of the first point, or the rules of a dry run, then are.
ACTIVATED = "LEVEL: fast}, activate_script: export A=1"
EDITS: dict[str, tuple[str, str, str, list[str]]] = {
    "build parameter": ("sum.yaml", "debug: 0", "debug: 1", ["build sum 1", "run sum 1"]),
    "recipe": ("sum.yaml", "recipe: fast", "recipe: slow", ["build sum 0", "install", "run sum 1"]),
    "activate_script": ("kochi.yaml", "LEVEL: fast}", ACTIVATED, ["build sum 0", "run sum 1"]),
    "run script": ("sum.yaml", "* 10", "* 100", ["run sum 1"]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_change_repeats_what_depends_on_it_until_it_is_undone(
    finished_project: Any, edit: str
) -> None:
    project, (file, old, new, ran) = finished_project, EDITS[edit]
    project.edit(file, old, new)
    project.snakemake(*results(1))
    assert [each.partition(" tool")[0] for each in project.take_ran()] == ran
    text = "code\nslow\n" if edit == "recipe" else "code\nfast\n"
    assert (project.directory / RESULT).read_text() == text
    # The former build is used again.
    project.edit(file, new, old)
    project.snakemake(*results(1))
    assert project.take_ran() == ["run sum 1"]


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
def test_sources_edited_or_new_rebuild_and_rerun(finished_project: Any) -> None:
    project = finished_project
    new = write(project.directory / "new.c", "int x;\n")
    runs = ["run_sum_first", "run_sum_first"]
    assert project.planned_rules(*results(1, 2)) == ["build_sum", *runs]
    new.unlink()
    project.edit("code.txt", "code", "better code")
    project.snakemake(*results(2))
    assert project.take_ran() == ["build sum 0", "run sum 2"]
    # Of the point that is left, both say which file it was.
    for words in (("batch", "sum.yaml", "first", "-n"), ("show", "batch", "sum.yaml", "first")):
        command = (sys.executable, "-m", "snakemake_kochi.cli", *words)
        said = run(*command, cwd=project.directory).stdout
        assert re.search("^1 +stale +code.txt changed$", said, re.MULTILINE), said
    project.snakemake(*results(1, 2))
    assert project.take_ran() == ["run sum 1"]
    assert (project.directory / RESULT).read_text() == "better code\nfast\n"
    assert project.planned_rules("sum_first") == TABLE_RULES


def test_sources_narrow_down_what_counts_as_code(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "default_name: sum", "default_name: sum\nsources: ['code.*']")
    project.snakemake(*results(1, 2))
    project.take_ran()
    write(project.directory / "unrelated.c", "int x;\n")
    assert nothing_to_do(project)
    project.edit("code.txt", "code", "better code")
    project.snakemake(*results(1, 2))
    assert project.take_ran() == ["build sum 0", *ALL_RAN]


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


def test_lost_results_cost_runs_but_no_build_or_installation(finished_project: Any) -> None:
    shutil.rmtree(finished_project.directory / ".snakemake")
    shutil.rmtree(finished_project.directory / "results")
    finished_project.snakemake(*results(1))
    assert finished_project.take_ran() == ["run sum 1"]


@pytest.mark.compatibility
def test_after_a_killed_build_the_runs_without_results_are_made(finished_project: Any) -> None:
    top = finished_project.directory
    build = next(top.glob(".snakemake/kochi/local/builds/**/build.json")).relative_to(top)
    # As Snakemake notes that it has started the job, until it has seen the end.
    name = base64.urlsafe_b64encode(str(build).encode()).decode()
    (top / ".snakemake/incomplete" / name).touch()
    shutil.rmtree(next(top.glob(".snakemake/kochi/local/records/**/1_0*")))
    (top / RESULT).unlink()
    finished_project.take_ran()
    finished_project.snakemake("--rerun-incomplete", "sum_first")
    assert (top / RESULT).exists()
    assert [line for line in finished_project.take_ran() if "run" in line] == ["run sum 1"]
