"""`kochi rerun` and `kochi reproduce`: recorded results are made again from their records."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON_PATH, REPOSITORY, git, run, run_apart, start, wait_until, write

from snakemake_kochi import results
from snakemake_kochi.artifacts.promises import promises
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import find_location
from snakemake_kochi.paths import Root
from snakemake_kochi.reproduction.comparison import relative_difference
from snakemake_kochi.reproduction.rerun import Rerun
from snakemake_kochi.reproduction.restoration import groups_of
from snakemake_kochi.reproduction.subject import subject_of

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
SNAKEMAKE = (sys.executable, "-P", "-m", "snakemake")
KOCHI_YAML = """
    facts: {touched: 'touch "$CHANGES/../executed"'}
    dependencies:
      library:
        git: ../library
        recipes: [{name: release, branch: main, script: cp factor $KOCHI_INSTALL_PREFIX/}]
      sources:
        depends: [{name: library, recipe: release}]
        recipes:
          - name: mirrored
            mirror: true
            mirror_dir: ../mirrored
            script: cat offset $KOCHI_INSTALL_PREFIX_LIBRARY/factor > $KOCHI_INSTALL_PREFIX/both
      distant:
        git: remote://distant
        recipes: [{name: release, script: 'true'}]
    """
EXPERIMENT = """
    depends: [{name: sources, recipe: mirrored}]
    default_params: {n: 1, size: 5}
    metrics: {result: 'result ([0-9]+)', seconds: 'took ([0-9.]+) s'}
    batches:
      small:
        params: {n: [1, 2]}
        artifacts:
          - {type: stdout, dest: 'sum/${batch_name}/${n}_${duplicate}.log'}
          - {type: file, src: out.txt, dest: 'sum/${batch_name}/${n}_${duplicate}.txt'}
          - {type: stats, dest: 'sum/${batch_name}/${n}_${duplicate}.json'}
      bare:
        params: {n: [7]}
        artifacts: []
    build:
      script: cat code.txt link.txt inner/inner.txt untracked.txt > built.txt
    run:
      depend_params: [n, size]
      script: |
        [ ! -e "$CHANGES/$KOCHI_PARAM_N" ] || . "$CHANGES/$KOCHI_PARAM_N"
        echo "result $((KOCHI_PARAM_N * 10))"
        echo "took ${TOOK:-1.5} s"
        cat built.txt $KOCHI_INSTALL_PREFIX_SOURCES/both > out.txt
        echo "$KOCHI_PARAM_N $KOCHI_PARAM_SIZE $KOCHI_COMMIT $KOCHI_DIRTY" >> out.txt
        git log -1 --format=%H >> out.txt
    """
DISTANT = """
    depends: [{name: distant, recipe: release}]
    default_params: {n: 1}
    batches: {far: {}}
    run: {depend_params: [n], script: 'true'}
    """
RECIPE = {
    "dependency": "a",
    "recipe": "c",
    "source": {},
    "digest": "0",
    "prefix": "/p",
    "activate_script": "",
}
BATCHES = ("sum_small", "sum_bare", "distant_far")
NOW = "refs/remotes/origin/kochi_artifacts_ada"


@dataclass(frozen=True)
class Site:
    """Two people. The one made results in `top`; the other has only the clone, another home, and no
    sources of recipes.

    `changes`: scripts for runs, by their `n`, which say what is different there. `records`: those
    of the results, by `n` and whether the code was edited.
    """

    top: Path
    clone: Path
    changes: Path
    variables: Mapping[str, str]
    records: Mapping[tuple[str, bool], dict[str, Any]]

    def identity(self, n: object, edited: bool) -> str:
        return str(self.records[str(n), edited]["identity"])

    def kochi(self, *words: str, status: int = 0, **variables: str) -> str:
        """What a command of the other person says."""
        done = run(*KOCHI, *words, cwd=self.clone, env={**self.variables, **variables})
        assert done.returncode == status, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout

    def reproduce(self, *words: str, status: int = 0) -> list[dict[str, Any]]:
        words = (*KOCHI, "reproduce", "--json", *words)
        done = run_apart(*words, cwd=self.clone, env=self.variables)
        assert done.returncode == status, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found


def fingerprint(directory: Path) -> list[str]:
    """What a user sees of the own repository."""
    asked = (
        ("status", "--porcelain", "-uall"),
        ("rev-parse", "HEAD"),
        ("for-each-ref", "refs/heads/main", "refs/tags", "refs/stash", "refs/remotes"),
        ("worktree", "list"),
        ("ls-files", "--stage", "--debug"),
        ("config", "--list", "--local"),
    )
    return [git(directory, *words) for words in asked]


def make_repository(directory: Path, file: str) -> None:
    write(directory / file, f"{directory.name} 1\n")
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "first")


def make_project(top: Path) -> None:
    for name, file in (("library", "factor"), ("module", "inner.txt"), ("distant", "file")):
        make_repository(top.parent / name, file)
    write(top.parent / "mirrored" / "offset", "offset 1\n")
    write(top / "kochi.yaml", KOCHI_YAML)
    write(top / "sum.yaml", EXPERIMENT)
    write(top / "distant.yaml", DISTANT)
    write(top / "code.txt", "code\n")
    write(top / "untracked.txt", "")
    write(top / ".gitignore", "results/\n.snakemake/\n")
    (top / "link.txt").symlink_to("code.txt")
    git(top, "init", "-q", "-b", "main")
    git(top, "submodule", "--quiet", "add", "../module", "inner")
    git(top, "add", "--all", ":!untracked.txt")
    git(top, "commit", "-qm", "first")
    choose_name(top, "local", "ada")


def edit_everything(top: Path) -> None:
    (top / "code.txt").write_text("edited\n")
    (top / "untracked.txt").write_text("untracked\n")
    (top / "inner" / "inner.txt").write_text("edited in the submodule\n")
    write(top.parent / "mirrored" / "offset", "offset 2\n")


def records_of(top: Path) -> dict[tuple[str, bool], dict[str, Any]]:
    """The records that are or were in the branch."""
    found = {}
    for commit in git(top, "rev-list", "kochi_artifacts_ada").split():
        listed = git(top, "ls-tree", "-r", "--name-only", commit, "ada/.kochi/records/")
        for path in listed.splitlines():
            record = json.loads(git(top, "show", f"{commit}:{path}"))
            n = "far" if record["batch"] == "far" else record["parameters"]["n"]
            code = git(top, "show", f"refs/kochi/code/{record['snapshot']['tree']}:code.txt")
            found[n, code == "edited\n"] = record
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    base = tmp_path_factory.mktemp("reproduce")
    top, here, changes = base / "there" / "project", base / "here", base / "changes"
    for directory in (top, here, changes):
        directory.mkdir(parents=True)
    common = {"PYTHONPATH": PYTHON_PATH, "CHANGES": str(changes)}
    homes = {
        home: {**common, "HOME": str(home), "KOCHI_ROOT": str(home / "kochi-root")}
        for home in (top.parent, here)
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in homes[top.parent].items():
            environment.setenv(name, value)
        for home in homes:
            url = f"url.{top.parent / 'distant'}.insteadOf"
            git(base, "config", "--file", str(home / ".gitconfig"), url, "remote://distant")
        make_project(top)
        until = ("--until", "run_sum_small", "run_sum_bare", "run_distant_far")
        batch = (*SNAKEMAKE, "--snakefile", str(REPOSITORY / "workflow" / "Snakefile"), *until)
        batch = (*batch, "--executor", "kochi", "--jobs", "10")
        assert run(*batch, *BATCHES, cwd=top).returncode == 0
        git(here, "init", "-q", "--bare", "-b", "main", "pushed")
        git(top, "remote", "add", "origin", str(here / "pushed"))
        git(top, "push", "-q", "origin", "main")
        edit_everything(top)
        assert run(*batch, "sum_small", cwd=top).returncode == 0
        assert run(*KOCHI, "artifact", "push", cwd=top).returncode == 0
    git(here, "clone", "-q", str(here / "pushed"), "clone")
    for name in ("library", "mirrored"):
        (top.parent / name).rename(base / name)
    # Its only commit is replaced, and no longer served.
    shutil.rmtree(top.parent / "distant")
    make_repository(top.parent / "distant", "other")
    yield Site(top, here / "clone", changes, homes[here], records_of(top))


def test_without_the_code_the_answer_says_what_to_fetch(site: Site) -> None:
    git(site.clone, "fetch", "-q", "origin", "refs/heads/*:refs/remotes/origin/*")
    said = site.kochi("reproduce", site.identity(2, True), status=1)
    assert "the code of" in said and "kochi artifact fetch" in said
    site.kochi("artifact", "fetch")


def test_a_clone_makes_outputs_again_byte_for_byte_without_sources_and_tells_whose(
    site: Site,
) -> None:
    site.kochi("artifact", "fetch")
    before, top = fingerprint(site.clone), site.clone
    clean, edited = site.identity(2, False), site.identity(2, True)
    made = {each["record"]: each for each in site.reproduce(clean, f"small@{NOW}")}
    assert {each["state"] for each in made.values()} == {"identical"}
    assert set(made) == {clean, edited, site.identity(1, True)}
    assert fingerprint(top) == before
    # Each came from its own code and its own sources.
    for identity, code in (
        (clean, "code\ncode\nmodule 1\n"),
        (edited, "edited\nedited\nedited in"),
    ):
        outputs = {each["dest"]: each["state"] for each in made[identity]["outputs"]}
        assert outputs == {"sum/small/2_0.log": "identical", "sum/small/2_0.txt": "identical"}
        (text,) = (file for file in made[identity]["files"] if file.endswith(".txt"))
        assert (top / text).read_text().startswith(code)
        offset = "offset 1" if identity == clean else "offset 2"
        assert f"{offset}\nlibrary 1\n2 5 " in (top / text).read_text()
    # It is a new result, beside the others, in results/ and in the branch.
    story = json.loads(run(*KOCHI, "why", "--json", text, cwd=top, env=site.variables).stdout)
    assert story["file"] == "identical"
    assert story["record"]["rerun_of"] == edited
    assert story["record"]["recipes"] == [
        {**each, "prefix": new["prefix"], "install": new["install"]}
        for each, new in zip(
            site.records["2", True]["recipes"], story["record"]["recipes"], strict=True
        )
    ]
    assert f"Rerun of    {edited}" in site.kochi("why", text)
    assert not list(Path(site.variables["KOCHI_ROOT"]).glob("projects/*/installs/*/*/*/current"))
    # A sample is drawn from first results only.
    executed = site.changes.parent / "executed"
    executed.unlink()
    root = Path(site.variables["KOCHI_ROOT"])
    facts = list(root.glob("machines/*/facts/*/*.json"))
    for file in facts:
        known = json.loads(file.read_text())
        known["facts"]["cc"]["output"] = "compiler 99"
        file.write_text(json.dumps(known))
    said = site.kochi("reproduce", "--sample", "19", "--dry-run")
    assert f"To run again: {len(site.records)} records" in said
    # Facts that runs of the same builds found here are compared before.
    assert re.search(r"^  cc: .* -> compiler 99 \(5 of 6 records\)$", said, re.MULTILINE)
    for file in facts:
        file.unlink()
    said = site.kochi("reproduce", "--sample", "19", "--dry-run")
    assert "  cc: " not in said
    # Nothing of the repository was executed for that.
    assert not executed.exists()
    table = results(top)
    assert sorted(table["rerun_of"].dropna()) == sorted(made)


def test_what_is_not_the_same_is_told_for_each_point(site: Site) -> None:
    site.kochi("artifact", "fetch")
    (site.changes / "1").write_text("TOOK=4.5\n")
    (site.changes / "2").write_text("echo another line\n")
    (site.changes / "7").write_text("echo reason >&2; exit 3\n")
    wanted = [(1, True), (2, True), (7, False), ("far", False)]
    try:
        found = site.reproduce(*(site.identity(*each) for each in wanted), status=1)
    finally:
        for each in site.changes.iterdir():
            each.unlink()
    one, two, seven, far = found
    assert one["state"] == "metrics"
    log = one["outputs"][0]
    changes = {each["name"]: (each["recorded"], each["relative"]) for each in log["metrics"]}
    assert changes == {"result": ("10", 0.0), "seconds": ("1.5", 2.0)}
    assert two["state"] == "differs"
    assert [each["state"] for each in two["outputs"]] == ["differs", "identical"]
    assert seven["state"] == far["state"] == "failed"
    assert "ended with exit status 3\nreason" in seven["reason"]
    assert "has no commit" in far["reason"] and "install_distant_release" in far["reason"]
    for each in (seven, far):
        assert each["rerun"] == "" and each["files"] == []


def test_a_record_without_outputs_is_not_reproduced_because_nothing_is_compared(
    site: Site,
) -> None:
    site.kochi("artifact", "fetch")
    bare = site.identity(7, False)
    said = site.kochi("reproduce", bare, status=1)
    assert f"{bare} has no output to compare; its run succeeded" in said
    assert "\n1 uncompared\n" in said


def test_an_interrupted_rerun_goes_on_and_leaves_one_directory(site: Site) -> None:
    site.kochi("artifact", "fetch")
    words = ("rerun", site.identity(1, True), site.identity(2, True))
    there = set((site.clone / "results" / "local" / "reruns").glob("*"))
    begun = site.changes.parent / "begun"
    (site.changes / "2").write_text(f"touch {begun}; sleep 600\n")
    process = start(*KOCHI, *words, cwd=site.clone, env=site.variables, start_new_session=True)
    try:
        wait_until(begun.exists)
        # One of Snakemake, and one for the time between two groups of records.
        paths = Root(Path(site.variables["KOCHI_ROOT"])).project(site.clone)
        assert len(promises(paths, "local")) == 2
        site.kochi("clean", "--runs", "0", "-y")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    (site.changes / "2").unlink()
    said = site.kochi(*words)
    assert "Going on with the rerun of" in said
    new = set((site.clone / "results" / "local" / "reruns").glob("*")) - there
    assert len(new) == 1
    # The next one is another one.
    assert "Going on" not in site.kochi(*words, "--dry-run")


def test_a_machine_that_the_old_configuration_does_not_know_is_taken_from_the_new_one(
    site: Site,
) -> None:
    site.kochi("artifact", "fetch")
    with (site.clone / "kochi.yaml").open("a") as file:
        file.write("machines: {later: {load_env_script: 'export LATER=1'}}\n")
    try:
        said = site.kochi("rerun", "-n", "-m", "later", site.identity(2, True))
    finally:
        git(site.clone, "checkout", "-q", "kochi.yaml")
    assert "machine: local -> later" in said
    # What its environment changes is told, too.
    assert "recipe library:release: " in said
    said = site.kochi("rerun", "-n", "-m", "never", site.identity(2, True), status=1)
    assert "there is no machine 'never'" in said


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "what to run again?"),
        (["sum.yaml"], "is no result"),
        (["sum.small.2026"], "records begin like this"),
        (["nothing"], "there is no such file and no such record"),
        ([f"smal@{NOW}"], "did you mean 'sum/small'"),
        (["small@nowhere"], "there is no commit 'nowhere'"),
        (["small@--output=x"], "there is no commit '--output=x'"),
        (["small@HEAD"], "no records"),
    ],
)
def test_what_is_no_record_gets_a_clear_answer(site: Site, words: list[str], answer: str) -> None:
    site.kochi("artifact", "fetch")
    said = site.kochi("reproduce", *words, status=2 if not words else 1)
    assert answer in said


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"version": 99}, "written by a newer snakemake_kochi"),
        ({"identity": "../../x"}, "'identity' is missing, or no name"),
        ({"batch": ""}, "a job by hand"),
        ({"duplicate": "0; rm"}, "duplicate: '0; rm' is not of type"),
        ({"duplicate": 10**9}, "no number of a duplicate"),
        ({"parameters": {"n": 1}}, "n: 1 is not of type"),
        ({"parameters": []}, "parameters: [] is not of type"),
        ({"snapshot": {"tree": "--output=x", "base": None, "dirty": False}}, "snapshot"),
        ({"snapshot": {}}, "'tree' is a required property"),
        ({"snapshot": "x"}, "snapshot: 'x' is not of type"),
        ({"recipes": ["a"]}, "recipes[0]: 'a' is not of type"),
        ({"recipes": None}, "recipes: None is not of type"),
        ({"rule": {"name": 1}}, "rule"),
        ({"seconds": float("inf")}, "seconds: inf"),
        ({"started": 5}, "started: 5 is not of type"),
        ({"facts": "x"}, "facts: 'x' is not of type"),
        (
            {"artifacts": [{"type": "file", "dest": "../x", "src": None}]},
            "'../x': a relative path",
        ),
        ({"artifacts": [{"type": "file", "dest": "../x"}]}, "'src' is a required property"),
        ({"recipes": [{**RECIPE, "dependency": "a/b"}]}, "no name of a recipe"),
        ({"recipes": [{**RECIPE, "source": {"x": "y"}}]}, "keys x"),
        ({"machine": "../x"}, "is no name"),
    ],
)
def test_a_record_that_was_edited_is_refused(
    site: Site, change: Mapping[str, Any], answer: str
) -> None:
    with pytest.raises(KochiError) as caught:
        subject_of({**site.records["2", True], **change}, "ada", ())
    assert answer in str(caught.value)


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        ({"experiment": "../../etc/passwd"}, "no such file in snapshot"),
        ({"batch": "tiny"}, "there is no batch 'tiny'"),
        ({"parameters": {"n": "1", "other": "2"}}, "differs in other, size"),
        ({"recipes": "git"}, "is not that of its code"),
        ({"recipes": "unknown"}, "there is no dependency 'unknown'"),
    ],
)
def test_a_record_that_does_not_fit_its_code_is_refused_before_anything_runs(
    site: Site, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], answer: str
) -> None:
    site.kochi("artifact", "fetch")
    record = json.loads(json.dumps(site.records["2", True]))
    if change.get("recipes"):
        change = {"recipes": record["recipes"]}
        git_of = change["recipes"][0]
        if "code" in answer:
            git_of["source"] = {"git": "/etc", "commit": git_of["source"]["commit"]}
        else:
            git_of["dependency"] = "unknown"
    for name, value in site.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(site.clone)
    (group,) = groups_of([subject_of({**record, **change}, "ada", ())])
    with pytest.raises(KochiError) as caught:
        dict(Rerun.prepare(find_location(), group).records)
    assert answer in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "relative"),
    [("2", "3", 0.5), ("-2", "-3", -0.5), ("0", "0.0", 0.0), ("0", "1", None), ("a", "b", None)],
)
def test_the_difference_of_metrics_is_relative(
    before: str, after: str, relative: float | None
) -> None:
    assert relative_difference(before, after) == relative
