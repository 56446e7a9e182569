"""Batches whose points use other recipes, or code of the project."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON_PATH, REPOSITORY, git, run, write

from snakemake_kochi import results
from snakemake_kochi.artifacts.published import choose_name

from .conftest import ExampleProject

pytestmark = pytest.mark.phases

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
KOCHI_YAML = """
    dependencies:
      rng:
        script: |
          echo "install $FACTOR" >> "$RAN"
          cp factor $KOCHI_INSTALL_PREFIX/ || echo "$FACTOR" > $KOCHI_INSTALL_PREFIX/factor
        strict: false
        recipes:
          - {name: v1, envs: {FACTOR: 2}}
          - {name: lcg, envs: {FACTOR: 7}}
          - {name: at_main, git: ../generators, branch: main, envs: {FACTOR: git}}
          - {name: at_fast, git: ../generators, branch: feature/fast, envs: {FACTOR: git}}
    """
EXPERIMENT = """
    depends: [{name: rng, recipe: "${rng}"}]
    default_params: {rng: v1, n: 10}
    metrics: {result: 'result ([0-9]+)'}
    sources: [code.txt]
    batches:
      compare:
        code: [main, feature]
        params: {rng: [v1, lcg]}
        artifacts:
          - {type: stdout, dest: 'sum/${code}_${rng}.log'}
      revisions:
        code: working-tree
        params: {rng: [at_main, at_fast]}
        artifacts:
          - {type: stdout, dest: 'sum/${rng}.log'}
    build:
      script: |
        echo "build $(cat code.txt) $KOCHI_RECIPE_RNG" >> "$RAN"
        cp code.txt built.txt
    run:
      depend_params: [n]
      script: |
        echo "run $(cat built.txt) $KOCHI_RECIPE_RNG" >> "$RAN"
        echo "result $(( $(cat built.txt) * $(cat $KOCHI_INSTALL_PREFIX_RNG/factor) ))"
        echo "at $KOCHI_COMMIT $KOCHI_DIRTY $(git log -1 --format=%s) $(git status --porcelain)"
    """


def make_generators(directory: Path) -> None:
    write(directory / "factor", "3\n")
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "three")
    git(directory, "checkout", "-qb", "feature/fast")
    write(directory / "factor", "5\n")
    git(directory, "commit", "-qam", "five")


def make_project(base: Path) -> ExampleProject:
    """With a commit of two branches, and an experiment that is in neither."""
    make_generators(base / "generators")
    top = base / "project"
    write(top / "kochi.yaml", KOCHI_YAML)
    write(top / "code.txt", "100\n")
    write(top / ".gitignore", "results/\n.snakemake/\nbuilt.txt\n")
    git(top, "init", "-q", "-b", "main")
    git(top, "add", ".")
    git(top, "commit", "-qm", "hundred")
    git(top, "checkout", "-qb", "feature")
    write(top / "code.txt", "200\n")
    git(top, "commit", "-qam", "two hundred")
    write(top / "code.txt", "300\n")
    write(top / "sum.yaml", EXPERIMENT)
    choose_name(top, "local", "ada")
    return ExampleProject(top, base / "ran")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleProject]:
    """The project after both batches have run."""
    base = tmp_path_factory.mktemp("variants")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(base))
        environment.setenv("KOCHI_ROOT", str(base / "kochi-root"))
        environment.setenv("RAN", str(base / "ran"))
        environment.setenv("PYTHONPATH", PYTHON_PATH)
        project = make_project(base)
        before = fingerprint(project.directory)
        library = str(REPOSITORY / "workflow" / "Snakefile")
        words = ("--snakefile", library, "sum_compare", "sum_revisions")
        project.snakemake(*words, executor="kochi")
        assert fingerprint(project.directory) == before
        yield project


@pytest.fixture
def finished(live: ExampleProject, monkeypatch: pytest.MonkeyPatch) -> ExampleProject:
    monkeypatch.setenv("HOME", str(live.directory.parent))
    monkeypatch.setenv("KOCHI_ROOT", str(live.directory.parent / "kochi-root"))
    monkeypatch.setenv("RAN", str(live.ran))
    return live


def fingerprint(directory: Path) -> list[str]:
    """What a user sees of the own repository."""
    asked = (
        ("status", "--porcelain", "-uall"),
        ("for-each-ref", "refs/heads/main", "refs/heads/feature", "refs/stash", "refs/tags"),
        ("ls-files", "--stage", "--debug"),
        ("worktree", "list"),
        ("config", "--list", "--local"),
    )
    return [git(directory, *words) for words in asked]


def planned(project: ExampleProject, *targets: str) -> list[str]:
    library = str(REPOSITORY / "workflow" / "Snakefile")
    return project.planned_rules("--snakefile", library, *targets)


def test_each_combination_of_recipe_and_code_runs_with_what_was_built_once_for_it(
    finished: ExampleProject,
) -> None:
    assert finished.take_ran() == [
        "build 100 lcg",
        "build 100 v1",
        "build 200 lcg",
        "build 200 v1",
        "build 300 at_fast",
        "build 300 at_main",
        "install 2",
        "install 7",
        "install git",
        "install git",
        "run 100 lcg",
        "run 100 v1",
        "run 200 lcg",
        "run 200 v1",
        "run 300 at_fast",
        "run 300 at_main",
    ]


def test_one_table_has_the_results_with_columns_for_code_recipe_and_machine(
    finished: ExampleProject,
) -> None:
    local = finished.directory / "results/local"
    with (local / "sum/compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    seen = {(row["code"], row["rng"], row["run_machine"]): row["result"] for row in rows}
    assert seen == {
        ("main", "v1", "local"): "200",
        ("main", "lcg", "local"): "700",
        ("feature", "v1", "local"): "400",
        ("feature", "lcg", "local"): "1400",
    }
    assert re.search(
        r"^\| *code \| *rng \| *\(runs\) \|", (local / "sum/compare.md").read_text(), re.M
    )
    with (local / "sum/revisions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["rng"]: row["result"] for row in rows} == {"at_main": "900", "at_fast": "1500"}
    assert {row["code"] for row in rows} == {"working-tree"}


def test_git_in_a_run_answers_for_the_code_of_its_point(finished: ExampleProject) -> None:
    main, feature = (
        git(finished.directory, "rev-parse", name).strip() for name in ("main", "HEAD")
    )
    log = finished.directory / "results/local/sum"
    assert f"at {main} false hundred \n" in (log / "main_v1.log").read_text()
    assert f"at {feature} false two hundred \n" in (log / "feature_lcg.log").read_text()
    assert f"at {feature} true two hundred  M code.txt" in (log / "at_main.log").read_text()


def test_a_second_run_has_nothing_to_do_and_a_moved_branch_repeats_what_uses_it(
    finished: ExampleProject,
) -> None:
    assert planned(finished, "sum_compare", "sum_revisions") == []
    top, generators = finished.directory, finished.directory.parent / "generators"
    was, was_there = git(top, "rev-parse", "main"), git(generators, "rev-parse", "main")
    tree = git(top, "rev-parse", "HEAD~^{tree}").strip()
    index = {"GIT_INDEX_FILE": str(top.parent / "index")}
    try:
        blob = subprocess.run(
            ["git", "hash-object", "-w", "--stdin"],
            cwd=top,
            input="111\n",
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for words in (
            ("read-tree", tree),
            ("update-index", "--cacheinfo", f"100644,{blob},code.txt"),
        ):
            subprocess.run(["git", *words], cwd=top, env={**os.environ, **index}, check=True)
        changed = subprocess.run(
            ["git", "write-tree"],
            cwd=top,
            env={**os.environ, **index},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        moved = git(top, "commit-tree", changed, "-p", was.strip(), "-m", "moved").strip()
        git(top, "update-ref", "refs/heads/main", moved)
        git(generators, "update-ref", "refs/heads/main", "refs/heads/feature/fast")
        assert planned(finished, "sum_compare", "sum_revisions") == [
            "build_sum_at_main",
            "build_sum_main_lcg",
            "build_sum_main_v1",
            "collect_sum_compare",
            "collect_sum_revisions",
            "install_rng_at_main",
            "run_sum_compare",
            "run_sum_compare",
            "run_sum_revisions",
            "sum_compare",
            "sum_revisions",
        ]
    finally:
        git(top, "update-ref", "refs/heads/main", was.strip())
        git(generators, "update-ref", "refs/heads/main", was_there.strip())
    assert planned(finished, "sum_compare", "sum_revisions") == []


def test_a_build_stays_when_another_branch_has_its_code(finished: ExampleProject) -> None:
    top = finished.directory
    git(top, "branch", "release", "main")
    experiment = (top / "sum.yaml").read_text()
    try:
        (top / "sum.yaml").write_text(experiment.replace("code: [main,", "code: [release,"))
        # Without builds: these would repeat the runs of all batches that share them.
        assert planned(finished, "sum_compare") == [
            "collect_sum_compare",
            "run_sum_compare",
            "run_sum_compare",
            "sum_compare",
        ]
    finally:
        (top / "sum.yaml").write_text(experiment)
        git(top, "branch", "-D", "release")


def record_of(project: ExampleProject, dest: str) -> dict[str, Any]:
    said = run(*KOCHI, "why", "--json", f"results/local/{dest}", cwd=project.directory).stdout
    record: dict[str, Any] = json.loads(said)["record"]
    return record


def test_the_record_names_the_code_that_ran_and_that_of_the_experiment_and_both_are_published(
    finished: ExampleProject,
) -> None:
    top = finished.directory
    record = record_of(finished, "sum/main_lcg.log")
    main, feature = (git(top, "rev-parse", name).strip() for name in ("main", "HEAD"))
    snapshot, configuration = record["snapshot"], record["configuration"]
    assert (snapshot["base"], snapshot["dirty"], snapshot["diff"]) == (main, False, "")
    assert (configuration["base"], configuration["dirty"]) == (feature, True)
    assert snapshot["tree"] == git(top, "rev-parse", "main^{tree}").strip()
    code = "refs/kochi/code"
    assert git(top, "rev-parse", f"{code}/{snapshot['tree']}").strip() == main
    assert "sum.yaml" in git(top, "ls-tree", "--name-only", f"{code}/{configuration['tree']}")
    diffs = f"kochi_artifacts_ada:ada/.kochi/diffs/{configuration['tree']}.diff"
    assert "sum.yaml" in git(top, "show", diffs)
    assert "configuration" not in record_of(finished, "sum/at_main.log")
    said = run(*KOCHI, "why", "results/local/sum/main_lcg.log", cwd=top).stdout
    assert re.search(rf"^Code +commit {main[:12]} \(main\)$", said, re.M)
    assert re.search(rf"^Scripts +of commit {feature[:12]} with changes$", said, re.M)
    (at_branch,) = record_of(finished, "sum/at_fast.log")["recipes"]
    assert at_branch["recipe"] == "at_fast"
    frame = results(top, experiment="sum", batch="compare")
    assert set(frame["code"]) == {"main", "feature"} and set(frame["machine"]) == {"local"}


def test_a_rerun_has_the_recipe_and_the_code_of_the_record_though_both_have_moved(
    finished: ExampleProject,
) -> None:
    top, generators = finished.directory, finished.directory.parent / "generators"
    was, was_there = git(top, "rev-parse", "main"), git(generators, "rev-parse", "main")
    write(top / "sum.yaml", "run: {script: 'false'}\n")
    try:
        git(top, "update-ref", "refs/heads/main", "HEAD")
        git(generators, "update-ref", "refs/heads/main", "refs/heads/feature/fast")
        files = ("sum/main_lcg.log", "sum/at_main.log")
        said = run(*KOCHI, "reproduce", "--json", *(f"results/local/{f}" for f in files), cwd=top)
        assert said.returncode == 0
        found = json.loads(said.stdout[said.stdout.index("[\n") :])
        assert [each["state"] for each in found] == ["identical", "identical"]
    finally:
        write(top / "sum.yaml", EXPERIMENT)
        git(top, "update-ref", "refs/heads/main", was.strip())
        git(generators, "update-ref", "refs/heads/main", was_there.strip())


def test_code_that_is_not_here_is_told_at_its_line_and_concerns_its_batch_only(
    finished: ExampleProject,
) -> None:
    top = finished.directory
    absent = "      absent: {code: [main, featrue, -x]}\n    build:\n"
    write(top / "sum.yaml", EXPERIMENT.replace("    build:\n", absent, 1))
    try:
        said = run(*KOCHI, "batch", "sum.yaml", "absent", cwd=top)
        assert said.returncode == 1
        expected = (
            "batches.absent.code[1]: 'featrue' is no branch, tag or commit here, did you mean"
        )
        assert expected in said.stdout and "batches.absent.code[2]: '-x' is no" in said.stdout
        library = str(REPOSITORY / "workflow" / "Snakefile")
        tried = finished.try_snakemake("--snakefile", library, "-n", "sum_absent")
        assert tried.returncode != 0 and expected in tried.stdout
        assert planned(finished, "sum_compare") == []
    finally:
        write(top / "sum.yaml", EXPERIMENT)


def test_a_job_by_hand_has_the_recipe_that_its_parameters_name(finished: ExampleProject) -> None:
    top = finished.directory
    words = ("enqueue", "-q", "nobody", "sum.yaml", "rng=lcg")
    assert run(*KOCHI, *words, cwd=top).returncode == 0
    jobs = json.loads(run(*KOCHI, "show", "jobs", "--json", "-q", "nobody", cwd=top).stdout)
    assert [job["labels"]["recipes"] for job in jobs] == ["rng:lcg"]
