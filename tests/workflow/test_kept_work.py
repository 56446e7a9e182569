"""Finished work stays finished, whatever became of the builds and installations it came from."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support import git, run, write

from .conftest import TABLE_RULES, base_prefix, results

pytestmark = pytest.mark.phases


def nothing_to_do(project: Any, *targets: str) -> bool:
    said = project.snakemake(*(targets or ["sum_first"]))
    return "Nothing to be done" in said and project.take_ran() == []


@pytest.mark.compatibility
def test_a_build_or_installation_that_failed_reruns_nothing_once_its_cause_is_put_back(
    finished_project: Any,
) -> None:
    source = finished_project.directory / "code.txt"
    source.rename(source.with_name("other.txt"))
    assert finished_project.try_snakemake(*results(1, 2)).returncode != 0
    source.with_name("other.txt").rename(source)
    assert finished_project.take_ran() == ["build sum 0"]

    before = base_prefix(finished_project)
    finished_project.edit("kochi.yaml", "mkdir -p", "false; mkdir -p")
    failed = finished_project.try_snakemake(*results(1, 2))
    assert failed.returncode != 0
    assert "base:one: the install script ended with exit status 1" in (
        failed.stdout + finished_project.logs()
    )
    finished_project.edit("kochi.yaml", "false; mkdir -p", "mkdir -p")
    assert nothing_to_do(finished_project)
    # What was installed stays, and is found again by the commands, too.
    assert base_prefix(finished_project) == before and Path(before).is_dir()


def test_an_installation_that_failed_when_it_was_repeated_reruns_nothing(project: Any) -> None:
    flag = project.directory.parent / "fail"
    project.edit("kochi.yaml", "mkdir -p", f"test ! -e {flag}; mkdir -p")
    project.snakemake(*results(1))
    project.take_ran()
    flag.touch()
    again = (sys.executable, "-P", "-m", "snakemake_kochi.cli", "install", "--again")
    assert run(*again, "-d", "base:one", cwd=project.directory).returncode != 0
    assert nothing_to_do(project, *results(1))
    # A new value is one run more, with the installation of before.
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    project.snakemake(*results(1, 3))
    assert project.take_ran() == ["run sum 3"]


def test_a_misspelt_branch_reruns_nothing_once_it_is_put_back(project: Any) -> None:
    source = project.directory.parent / "base"
    write(source / "a.txt", "a\n")
    git(source, "init", "-q", "-b", "main")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "first")
    project.edit("kochi.yaml", "  base:\n", "  base:\n    git: ../base\n    branch: main\n")
    project.snakemake(*results(1))
    project.take_ran()
    project.edit("kochi.yaml", "branch: main", "branch: mian")
    assert project.try_snakemake(*results(1)).returncode != 0
    project.edit("kochi.yaml", "branch: mian", "branch: main")
    assert nothing_to_do(project, *results(1))


@pytest.mark.compatibility
def test_after_the_root_was_emptied_a_new_value_is_one_run_with_what_it_needs(
    finished_project: Any,
) -> None:
    shutil.rmtree(os.environ["KOCHI_ROOT"])
    # The table alone is out of date: that needs no build.
    finished_project.edit("sum.yaml", "total: 'total ([0-9]+)'", "tens: 'total ([0-9])'")
    finished_project.snakemake("sum_first")
    assert finished_project.take_ran() == []

    # So is a deleted result.
    finished_project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    (finished_project.directory / results(2)[0]).unlink()
    finished_project.snakemake(*results(1, 2, 3))
    ran = finished_project.take_ran()
    assert ran[:2] == ["build sum 0", "install base -O1"]
    assert ran[2].startswith("install tool with ")
    assert ran[3:] == ["run sum 2", "run sum 3"]
    assert finished_project.planned_rules("sum_first") == TABLE_RULES


@pytest.mark.parametrize("is_forced", [False, True], ids=["changed", "forced"])
def test_after_the_root_was_emptied_what_changed_or_is_forced_runs_again(
    finished_project: Any, is_forced: bool
) -> None:
    shutil.rmtree(os.environ["KOCHI_ROOT"])
    code = "code" if is_forced else "better code"
    finished_project.edit("code.txt", "code", code)
    forced = ("--forcerun", "run_sum_first", "--") if is_forced else ()
    finished_project.snakemake(*forced, *results(1, 2))
    ran = [each for each in finished_project.take_ran() if "install" not in each]
    assert ran == ["build sum 0", "run sum 1", "run sum 2"]
    result = finished_project.directory / results(1)[0]
    assert result.read_text() == f"{code}\nfast\n"


def ran_points(project: Any) -> list[str]:
    return [each for each in project.take_ran() if each.startswith("run")]


def test_a_repeated_installation_has_the_same_commit_until_a_newer_one_is_requested(
    project: Any,
) -> None:
    top, source = project.directory, project.directory.parent / "base"
    write(source / "a.txt", "old\n")
    git(source, "init", "-q", "-b", "main")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "old")
    # A URL as far as anybody can tell; only git knows where it leads.
    git(top, "config", "--global", f"url.{source}.insteadOf", "remote://base")
    git(top, "config", "--global", "protocol.file.allow", "always")
    project.edit("kochi.yaml", "  base:\n", "  base:\n    git: remote://base\n    branch: main\n")
    project.edit("kochi.yaml", '"install base $CFLAGS"', '"install base $(cat a.txt)"')
    project.snakemake(*results(1))
    project.take_ran()
    write(source / "a.txt", "new\n")
    git(source, "commit", "-qam", "new")

    shutil.rmtree(os.environ["KOCHI_ROOT"])
    project.snakemake(*results(1, 2))
    ran = project.take_ran()
    assert "install base old" in ran
    assert [each for each in ran if each.startswith("run")] == ["run sum 2"]

    kochi = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
    # The lock file has the commit of what is installed, and what is made of it still counts.
    assert run(*kochi, "install", "-d", "base:one", cwd=top).returncode == 0
    assert (project.take_ran(), nothing_to_do(project, *results(1, 2))) == ([], True)
    assert run(*kochi, "install", "--newest", "-d", "base:one", cwd=top).returncode == 0
    assert project.take_ran() == ["install base new"]
    project.snakemake(*results(1, 2))
    assert ran_points(project) == ["run sum 1", "run sum 2"]

    # The work of the older one does not count as that of the newer one when that is gone, too.
    write(source / "a.txt", "newest\n")
    git(source, "commit", "-qam", "newest")
    assert run(*kochi, "install", "--newest", "-d", "base:one", cwd=top).returncode == 0
    shutil.rmtree(os.environ["KOCHI_ROOT"])
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    project.take_ran()
    project.snakemake(*results(1, 2, 3))
    assert ran_points(project) == [f"run sum {n}" for n in (1, 2, 3)]

    # What is gone is installed again at its commit, and repeats nothing.
    shutil.rmtree(os.environ["KOCHI_ROOT"])
    write(source / "a.txt", "newer than newest\n")
    git(source, "commit", "-qam", "newer than newest")
    assert run(*kochi, "install", "-d", "base:one", cwd=top).returncode == 0
    assert project.take_ran() == ["install base newest"]
    assert nothing_to_do(project, *results(1, 2, 3))
