"""A colleague's clone has the results of the same code, and Snakemake knows that they are done."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON_PATH, REPOSITORY, git, run, start, write

from snakemake_kochi.artifacts.published import choose_name

from .conftest import ExampleProject, begin_project, make_project

pytestmark = pytest.mark.compatibility

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
# Both directories are beside the project, and so not in a clone.
RECIPES = """
  library:
    git: ../library
    script: mkdir -p $KOCHI_INSTALL_PREFIX; cp library.txt $KOCHI_INSTALL_PREFIX/
    recipes: [{name: here}]
  mirrored:
    mirror: true
    mirror_dir: ../mirrored
    depends: [{name: library, recipe: here}]
    script: |
      echo "install mirrored" >> "$RAN"; mkdir -p $KOCHI_INSTALL_PREFIX
      cat mirrored.txt $KOCHI_INSTALL_PREFIX_LIBRARY/library.txt > $KOCHI_INSTALL_PREFIX/text
    recipes: [{name: now}]
"""
SQUARE = """
    depends: [{name: mirrored, recipe: now}]
    sources: [square.txt]
    default_params: {n: 1}
    batches:
      first:
        params: {n: [1, 2]}
        artifacts:
          - {type: file, src: out.txt, dest: 'square/${n}_${duplicate}.txt'}
    prepare:
      script: cp square.txt "$KOCHI_PREPARED/"
    build:
      script: |
        echo "build square" >> "$RAN"
        cat square.txt $KOCHI_INSTALL_PREFIX_MIRRORED/text > built.txt
    run:
      depend_params: [n]
      script: echo "run square $KOCHI_PARAM_N" >> "$RAN"; cat built.txt > out.txt
    """
SECOND = """\
  second:
    params: {n: [7, 8]}
    artifacts:
      - {type: file, src: out.txt, dest: 'sum/second/${n}_${duplicate}.txt'}
  third:
    params: {n: 9}
    artifacts:
      - {type: file, src: out.txt, dest: 'sum/third/${n}_${duplicate}.txt'}
build:
"""
SUM = tuple(f"results/local/sum/first.{suffix}" for suffix in ("csv", "md", "png", "svg"))


@dataclass(frozen=True)
class Clone:
    """`origin` is the project whose results `clone` has restored; `said` is what that printed."""

    origin: ExampleProject
    clone: ExampleProject
    said: str

    def planned(self, *words: str) -> list[str]:
        """The rules of a dry run, which says so if there is none."""
        said = self.clone.snakemake("-n", *words)
        rules = sorted(set(re.findall(r"^(?:local)?rule (\w+):$", said, re.MULTILINE)))
        assert bool(rules) != ("Nothing to be done" in said)
        return rules

    def kochi(self, *words: str, status: int = 0) -> str:
        done = run(*KOCHI, *words, cwd=self.clone.directory)
        assert done.returncode == status
        assert "Traceback" not in done.stdout
        return done.stdout


def repository(directory: Path, file: str, text: str) -> None:
    write(directory / file, text)
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "first")


@pytest.fixture(scope="module")
def restored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    base = tmp_path_factory.mktemp("restored")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(base / "home"))
        environment.setenv("KOCHI_ROOT", str(base / "one-root"))
        environment.setenv("RAN", str(base / "ran"))
        environment.setenv("PYTHONPATH", PYTHON_PATH)
        repository(base / "one" / "library", "library.txt", "library\n")
        repository(base / "one" / "mirrored", "mirrored.txt", "mirrored\n")
        origin = make_project(base / "one")
        top = origin.directory
        with (top / "kochi.yaml").open("a") as file:
            file.write(RECIPES)
        write(top / "square.yaml", SQUARE)
        write(top / "square.txt", "square\n")
        text = (top / "sum.yaml").read_text()
        (top / "sum.yaml").write_text("sources: [code.txt]\n" + text.replace("build:\n", SECOND))
        origin.commit()
        choose_name(top, "local", "one")
        origin.snakemake("sum_first", "square_first")
        # Newer results of code that no clone has checked out.
        (top / "code.txt").write_text("changed\n")
        (top / "square.txt").write_text("changed\n")
        (base / "one" / "mirrored" / "mirrored.txt").write_text("newer\n")
        files = [f"results/local/{each}_0.txt" for each in ("sum/second/7", "square/1")]
        origin.snakemake(*files)
        git(base, "clone", "-q", "--bare", str(top), "bare")
        git(base / "bare", "branch", "-D", "kochi_artifacts_one")
        git(top, "remote", "add", "origin", str(base / "bare"))
        place = base / "two" / "elsewhere" / "clone"
        place.parent.mkdir(parents=True)
        git(base, "clone", "-q", str(base / "bare"), str(place))
        assert run(*KOCHI, "artifact", "push", cwd=top).returncode == 0
        environment.setenv("HOME", str(base / "other home"))
        environment.setenv("KOCHI_ROOT", str(base / "two-root"))
        made = Clone(origin, ExampleProject(place, base / "ran"), "")
        choose_name(place, "local", "two")
        assert "kochi artifact fetch" in made.kochi("artifact", "restore", status=1)
        made.kochi("artifact", "fetch")
        yield Clone(origin, made.clone, made.kochi("artifact", "restore"))


@pytest.fixture(autouse=True)
def here(restored: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clone's own KOCHI_ROOT; and its files as they are committed."""
    base = restored.clone.ran.parent
    monkeypatch.setenv("KOCHI_ROOT", str(base / "two-root"))
    monkeypatch.setenv("RAN", str(restored.clone.ran))
    git(restored.clone.directory, "checkout", "--quiet", ".")
    restored.clone.take_ran()


def test_with_the_same_code_nothing_is_to_be_done(restored: Clone) -> None:
    assert "sum first: 2 of 2 results in results/, 2 restored from one" in restored.said
    assert "square first: 2 of 2 results in results/, 2 restored from one" in restored.said
    assert restored.planned("sum_first", "square_first") == []
    profile = ("--profile", str(REPOSITORY / "profiles" / "local"))
    assert restored.planned(*profile, "sum_first", "square_first") == []
    assert restored.clone.take_ran() == []


def test_files_and_records_are_those_of_the_run_also_if_newer_ones_replaced_them(
    restored: Clone,
) -> None:
    top, origin = restored.clone.directory, restored.origin.directory
    there = {each.relative_to(top) for each in (top / "results").rglob("*") if each.is_file()}
    written = [f"sum/first/{n}_0.{suffix}" for n in (1, 2) for suffix in ("log", "txt", "json")]
    for path in [f"results/local/{each}" for each in written] + [SUM[0], SUM[1]]:
        assert (top / path).read_bytes() == (origin / path).read_bytes()
    square = [Path(f"results/local/square/{n}_0.txt") for n in (1, 2)]
    assert {(top / each).read_text() for each in square} == {"square\nmirrored\nlibrary\n"}
    assert (origin / square[0]).read_text() == "changed\nnewer\nlibrary\n"
    tables = {
        Path(f"results/local/square/first.{suffix}") for suffix in ("csv", "md", "png", "svg")
    }
    assert there == {*(Path("results/local") / each for each in written), *map(Path, SUM)} | {
        *square,
        *tables,
    }
    records = ".snakemake/kochi/local/records/sum"
    for file in (origin / records / "first").rglob("record.json"):
        own = top / file.relative_to(origin)
        assert json.loads(own.read_text()) == json.loads(file.read_text())


def test_of_changed_code_only_its_own_results_are_to_be_made(restored: Clone) -> None:
    top = restored.clone.directory
    (top / "square.txt").write_text("edited\n")
    rules = restored.planned("sum_first", "square_first")
    assert {"build_square", "run_square_first", "collect_square_first"} <= set(rules)
    assert not [rule for rule in rules if "sum" in rule]
    git(top, "checkout", "--quiet", ".")
    assert restored.planned("square_first") == []
    restored.clone.edit("sum.yaml", "* 10", "* 20")
    assert "run_sum_first" in restored.planned("sum_first")


def test_the_origin_of_a_restored_file_stays_known(restored: Clone) -> None:
    top = restored.clone.directory
    for file, path in (("sum/first/2_0.log", "one/sum/first/2_0.log"), ("square/1_0.txt",) * 2):
        done = subprocess.run(
            [*KOCHI, "why", "--json", f"results/local/{file}"],
            cwd=top,
            capture_output=True,
            check=True,
        )
        told = json.loads(done.stdout)
        assert told["path"] == f"one/{path.removeprefix('one/')}"
        assert told["file"] == "identical"
        assert git(top, "branch", "-r", "--contains", told["commit"]).strip().endswith("_one")


def test_a_new_run_beside_restored_results_repeats_and_claims_none_of_them(
    restored: Clone,
) -> None:
    top = restored.clone.directory
    restored.clone.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    restored.clone.edit("square.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    targets = [f"results/local/{each}_0.txt" for each in ("sum/first/3", "square/3")]
    restored.clone.snakemake(*targets)
    ran = restored.clone.take_ran()
    # The sources of its recipes are in this clone as the code of the results.
    assert [line for line in ran if not line.startswith("install")] == [
        *("build square", "build sum 0", "run square 3", "run sum 3"),
    ]
    assert "install mirrored" in ran
    assert (top / targets[1]).read_text() == "square\nmirrored\nlibrary\n"
    git(top, "checkout", "--quiet", ".")
    # The builds are younger than the restored results.
    assert restored.planned(*(f"results/local/square/{n}_0.txt" for n in (1, 2))) == []
    restored.kochi("artifact", "init", str(top.parent / "artifacts"))
    restored.kochi("artifact", "sync")
    files = git(top, "ls-tree", "-r", "--name-only", "kochi_artifacts").splitlines()
    assert {file for file in files if "/.kochi/" not in file} == {
        *(f"two/sum/first/3_0.{suffix}" for suffix in ("log", "txt", "json")),
        "two/square/3_0.txt",
    }


def test_results_of_other_code_are_left_out_and_named(restored: Clone) -> None:
    said = restored.kochi("artifact", "restore", "sum", "second", status=1)
    head = git(restored.clone.directory, "rev-parse", "HEAD").strip()
    assert "sum second: 0 of 2 results in results/" in said
    assert f"left out: 1 result of commit {head[:12]} with changes: source files" in said
    (ref,) = re.findall(r"git worktree add --detach DIR (refs/kochi/code/\w+)", said)
    assert git(restored.clone.directory, "show", f"{ref}:code.txt") == "changed\n"
    assert not (restored.clone.directory / "results/local/sum/second").exists()


def test_results_with_another_commit_of_a_remote_source_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "KOCHI_ROOT"):
        monkeypatch.setenv(name, str(tmp_path / "one" / name))
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    tool, top = tmp_path / "tool", tmp_path / "one" / "project"
    repository(tool, "version", "old\n")
    script = "mkdir -p $KOCHI_INSTALL_PREFIX; cp version $KOCHI_INSTALL_PREFIX/"
    recipe = f"{{git: 'far:tool', branch: main, script: '{script}', recipes: [{{name: main}}]}}"
    files = {
        "kochi.yaml": f"dependencies: {{tool: {recipe}}}\n",
        "far.yaml": "depends: ['tool:main']\nparams: {n: [1, 2]}\n"
        "run: cat $KOCHI_INSTALL_PREFIX_TOOL/version\n",
    }
    environment = {"GIT_CONFIG_KEY_0": f"url.{tool}.insteadOf", "GIT_CONFIG_VALUE_0": "far:tool"}
    for name, value in {**environment, "GIT_CONFIG_COUNT": "1"}.items():
        monkeypatch.setenv(name, value)
    origin = begin_project(top, tmp_path / "ran", files)
    choose_name(top, "local", "one")
    origin.snakemake("far")
    git(tmp_path, "clone", "-q", "--bare", str(top), "bare")
    git(top, "remote", "add", "origin", str(tmp_path / "bare"))
    assert run(*KOCHI, "artifact", "push", cwd=top).returncode == 0
    write(tool / "version", "new\n")
    git(tool, "commit", "-qam", "second")
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "two" / "KOCHI_ROOT"))
    clone = ExampleProject(tmp_path / "two" / "project", tmp_path / "ran")
    git(tmp_path, "clone", "-q", str(tmp_path / "bare"), str(clone.directory))
    choose_name(clone.directory, "local", "two")
    [first, second] = (f"results/local/far/default/n={n}_0.log" for n in (1, 2))
    clone.snakemake(first)
    restored = Clone(origin, clone, "")
    restored.kochi("artifact", "fetch")
    said = restored.kochi("artifact", "restore")
    assert "is not here" not in said
    assert "made with another installation or build than the one that is in use here" in said
    assert not (clone.directory / second).exists()
    assert "new" in (clone.directory / first).read_text()


def test_records_that_somebody_edited_are_named_and_end_nothing(restored: Clone) -> None:
    top = restored.clone.directory
    branch = "refs/remotes/origin/kochi_artifacts_one"
    before = git(top, "rev-parse", branch).strip()
    listed = git(top, "ls-tree", "-r", "--name-only", branch, "one/.kochi/records/").split()
    records = [json.loads(git(top, "show", f"{branch}:{path}")) for path in listed]
    first = next(each for each in records if each["batch"] == "first" and each["name"] == "sum")
    newest = {"run": "0", "ended": "2099-01-01T00:00:00+00:00"}
    without = [
        {key: value for key, value in first.items() if key not in missing} | newest
        for missing in (["snapshot", "recipes"], ["run_script", "artifacts"], ["ended"], ["run"])
    ]
    texts = [json.dumps(first | newest | each) for each in EDITED] + ["[]", "{", "[" * 100_000]
    texts += map(json.dumps, without)
    added = b"".join(_added(text, number) for number, text in enumerate(texts))
    header = f"commit {branch}\ncommitter a <b> 0 +0000\ndata 1\nm\nfrom {before}\n".encode()
    subprocess.run(["git", "fast-import", "--quiet"], cwd=top, input=header + added, check=True)
    try:
        said = restored.kochi("artifact", "restore")
    finally:
        git(top, "update-ref", branch, before)
    assert "sum first: 2 of 2 results in results/, nothing new from one" in said
    assert "left out: record sum.first.0 of one was edited: recipes[0]: 'a' is not of type" in said
    assert f"left out: {len(EDITED)} more records of one" in said


EDITED: list[dict[str, Any]] = [
    {"recipes": ["a"]},
    {"recipes": 5},
    {"snapshot": "x"},
    {"snapshot": {"tree": 1, "base": 5, "dirty": 1}},
    {"artifacts": "x"},
    {"artifacts": [1]},
    {"artifacts": [{"type": "stdout"}]},
    {"parameters": []},
    {"duplicate": "x"},
    {"ended": None},
    {"started": 5},
    {"machine": ["local"]},
    {"rule": {"name": 1}},
]


def _added(text: str, number: int) -> bytes:
    """A record in a branch, in the words of git fast-import."""
    identity = f"sum.first.{number}"
    if text.startswith("{") and text.endswith("}"):
        text = json.dumps(json.loads(text) | {"identity": identity})
    place = f"one/.kochi/records/00/{identity}.json"
    return f"M 100644 inline {place}\ndata {len(text)}\n{text}\n".encode()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["sum", "frist"], "there is no batch 'frist', did you mean 'first'"),
        (["sun"], "there is no experiment 'sun'\ndid you mean 'sum'"),
        (["sum", "third"], "has results of batch third of sum on machine 'local'"),
        (["--from", "on"], "under the name 'on'\ndid you mean 'one'"),
        (["--at", "nowhere"], "there is no commit 'nowhere'"),
        (["--at", "--output=x"], "there is no commit '--output=x'"),
    ],
)
def test_wrong_names_get_the_nearest_one(restored: Clone, words: list[str], answer: str) -> None:
    assert answer in restored.kochi("artifact", "restore", *words, status=1)


def test_of_several_people_with_results_one_has_to_be_named(restored: Clone) -> None:
    top = restored.clone.directory
    theirs = git(top, "rev-parse", "origin/kochi_artifacts_one:one").strip()
    made = subprocess.run(
        ["git", "mktree"],
        cwd=top,
        input=f"040000 tree {theirs}\tother\n",
        capture_output=True,
        text=True,
        check=True,
    )
    commit = git(top, "commit-tree", made.stdout.strip(), "-m", "other").strip()
    git(top, "update-ref", "refs/remotes/origin/kochi_artifacts_other", commit)
    try:
        said = restored.kochi("artifact", "restore", "sum", "second", status=1)
    finally:
        git(top, "update-ref", "-d", "refs/remotes/origin/kochi_artifacts_other")
    assert "sum.yaml: batch second: 1 of one, 1 of other" in said
    assert "--from NAME" in said


def test_while_a_run_goes_on_or_after_it_was_killed_nothing_is_restored(restored: Clone) -> None:
    top = restored.clone.directory
    script = "while [ ! -e /nonexistent ]; do sleep 0.1; done #"
    restored.clone.edit("square.yaml", 'echo "run square', f'{script} echo "run square')
    process = start(
        *(sys.executable, "-m", "snakemake", "--executor", "local", "--cores", "1"),
        "results/local/square/first.csv",
        cwd=top,
        start_new_session=True,
    )
    locks = top / ".snakemake" / "locks"
    try:
        deadline = time.monotonic() + 60
        while not (locks.is_dir() and any(locks.glob("*.lock"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "has locked this directory" in restored.kochi("artifact", "restore", status=1)
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    said = restored.kochi("artifact", "restore", status=1)
    assert "If it was killed, type: snakemake --unlock" in said
    git(top, "checkout", "--quiet", ".")
    restored.clone.snakemake("--unlock", "square_first")
