"""A user's mistake: one message that says what and where, a non-zero exit status, no traceback."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import pytest
from support import git, run, write

from .conftest import results

BATCH = (sys.executable, "-m", "snakemake_kochi.cli", "batch", "sum.yaml", "first")
# One of each file: tests/project has all others.
MISTAKES = {
    "unknown key": ("sum.yaml", "default_name", "defalt_name", ["sum.yaml:3", "default_name"]),
    "broken YAML": ("kochi.yaml", "recipes:\n", "recipes: [\n", ["kochi.yaml"]),
}


def no_frames(output: str) -> bool:
    """Whether no line of Python is shown: Snakemake's listing has no head like a traceback's."""
    return "Traceback" not in output and ", line " not in output


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_file_gets_its_message(project: Any, mistake: str) -> None:
    file, old, new, parts = MISTAKES[mistake]
    project.edit(file, old, new)
    failed = project.try_snakemake("sum_first")
    assert failed.returncode != 0
    for part in parts:
        assert part in failed.stdout, part
    assert no_frames(failed.stdout)
    assert project.take_ran() == []
    assert not (project.directory / "results").exists()


@pytest.mark.compatibility
def test_a_mistake_in_another_experiment_stops_only_the_targets_that_need_it(project: Any) -> None:
    write(project.directory / "other.yaml", "batches: {one: {params: {n: 1}}}\nrun: {scrpt: x}\n")
    said = project.snakemake("sum_first", "-n")
    assert "Left out: other.yaml:2: run.scrpt" in said and "run_sum_first" in said
    for target in ("other", "other_one", "results/local/other/one.csv", "experiments"):
        failed = project.try_snakemake(target, "-n")
        assert failed.returncode != 0
        assert "other.yaml:2: run.scrpt: unknown key, did you mean 'script'?" in failed.stdout
        assert "Left out" not in failed.stdout
        assert no_frames(failed.stdout)
    project.snakemake(*results(1))
    assert project.take_ran()[-1] == "run sum 1"


def test_a_snakefile_that_names_a_dependency_alone_gets_a_list_of_its_recipes(project: Any) -> None:
    with (project.directory / "Snakefile").open("a") as stream:
        stream.write("\nfrom snakemake_kochi.library import load\n")
        stream.write('load(workflow, config).activation("tool")\n')
    failed = project.try_snakemake("sum_first")
    assert failed.returncode != 0
    assert "'tool' names no recipe: DEPENDENCY:RECIPE was expected" in failed.stdout
    assert "The recipes of 'tool' are: tool:fast, tool:slow" in failed.stdout
    assert no_frames(failed.stdout)


def test_a_directory_outside_of_git_is_named(project: Any) -> None:
    shutil.rmtree(project.directory / ".git")
    failed = project.try_snakemake("sum_first")
    assert failed.returncode != 0
    assert "is not in a git repository" in failed.stdout
    assert "git init" in failed.stdout
    assert no_frames(failed.stdout)


def test_a_repository_without_a_kochi_yaml_is_named(project: Any) -> None:
    (project.directory / "kochi.yaml").unlink()
    failed = project.try_snakemake("sum_first")
    assert failed.returncode != 0
    assert "there is no kochi.yaml" in failed.stdout
    assert "kochi init" in failed.stdout
    assert no_frames(failed.stdout)


def test_two_files_that_make_one_rule_are_named(project: Any) -> None:
    text = (project.directory / "sum.yaml").read_text()
    (project.directory / "experiments").mkdir()
    (project.directory / "experiments/sum.yaml").write_text(text)
    failed = project.try_snakemake("sum_first")
    assert failed.returncode != 0
    assert "experiments/sum.yaml" in failed.stdout
    assert no_frames(failed.stdout)


def test_a_machine_that_is_not_configured_is_named(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(project.directory, "status")
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "spica")
    failed = project.try_snakemake("sum_first")
    assert failed.returncode != 0
    assert "spica" in failed.stdout
    assert no_frames(failed.stdout)


SOURCES = {
    "git: ../libary": ["kochi.yaml:5: dependencies.base.recipes[0].git: there is no", "'library'?"],
    "git: ../library, branch: mian": ["recipes[0].branch: the repository", "did you mean 'main'?"],
    "git: ../library, commit_hash: '0123456'": [
        "recipes[0].commit_hash: the repository",
        "has no commit '0123456'",
    ],
    "git: ../plain": ["recipes[0].git: the repository", "/plain cannot be read"],
    "mirror: true, mirror_dir: ../libary": ["recipes[0].mirror_dir: there is no", "'library'?"],
}


def test_a_source_of_this_computer_that_is_not_there_is_named_before_anything_runs(
    project: Any,
) -> None:
    library = project.directory.parent / "library"
    library.mkdir()
    git(library, "init", "-q", "-b", "main")
    git(library, "commit", "--allow-empty", "-qm", "first")
    (library.parent / "plain").mkdir()
    file = project.directory / "kochi.yaml"
    text = file.read_text()
    for source, parts in SOURCES.items():
        file.write_text(text.replace("{name: one,", f"{{name: one, {source},"))
        failed = run(*BATCH, cwd=project.directory)
        assert failed.returncode == 1
        for part in parts:
            assert part in failed.stdout, part
        assert "most recent call" not in failed.stdout
    assert not (project.directory / ".snakemake").exists()
    failed = project.try_snakemake("sum_first", "-n")
    assert failed.returncode != 0
    assert parts[0] in failed.stdout and "most recent call" not in failed.stdout


def test_a_missing_source_concerns_only_its_users_and_no_remote_is_queried_beforehand(
    project: Any,
) -> None:
    project.edit("kochi.yaml", "{name: one,", "{name: one, git: ../libary,")
    project.edit("kochi.yaml", "{name: other,", "{name: other, git: 'https://localhost:1/x',")
    assert "install_base_other" in project.snakemake("install_base_other", "-n")
    failed = run(*BATCH, cwd=project.directory)
    assert failed.returncode == 1
    place = "kochi.yaml:5: dependencies.base.recipes[0].git"
    directory = project.directory.parent / "libary"
    assert failed.stdout == f"kochi: {place}: there is no directory {directory}\n"
