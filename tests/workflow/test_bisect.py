"""`kochi bisect`: the commit that changed a metric, with real runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import git, run_apart, write

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
EXPERIMENT = """
    sources: [value.txt]
    params: {n: [1, 2], mode: [a, b]}
    metrics: {time: {pattern: 'took (-?[0-9.]+)', unit: us}}
    build: |
      cp value.txt built.txt
      ! grep broken value.txt
    run: |
      noise=$RANDOM
      awk -v n=$KOCHI_PARAM_N -v s=$noise '{print "took " $1 * n * (1 + s/4e6); exit}' built.txt
      echo "$KOCHI_PARAM_MODE $(git log -1 --format=%s)"
    """


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five commits with tags c1 to c5; the third one is no slower and cannot be built, the fourth
    is slower by a tenth."""
    monkeypatch.setenv("KOCHI_ROOT", str(tmp_path / "root"))
    top = tmp_path / "project"
    write(top / "kochi.yaml", "dependencies: {}\n")
    write(top / ".gitignore", "results/\n.snakemake/\n")
    git(top, "init", "-q", "-b", "main")
    for number, value in enumerate(("100", "100", "100\nbroken", "110", "110"), 1):
        write(top / "value.txt", f"{value}\n#{number}\n")
        git(top, "add", ".")
        git(top, "commit", "-qm", f"change {number}")
        git(top, "tag", f"c{number}")
    write(top / "bench.yaml", EXPERIMENT)
    return top


def bisect(project: Path, *words: str, fails: bool = False) -> str:
    done = run_apart(*KOCHI, "bisect", *words, cwd=project)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_commit_that_made_a_batch_slower_is_named_and_nothing_runs_twice(project: Path) -> None:
    words = ("c1", "c5", "bench.yaml", "-w", "n=2", "-w", "mode=a", "--json")
    done = run_apart(*KOCHI, "bisect", *words, cwd=project)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The third one cannot be built, so it cannot be told from the fourth one.
    assert [each["subject"] for each in found["commits"]] == ["change 3", "change 4"]
    assert found["verdict"] == "commit" and found["metric"] == "time"
    assert found["recipe"] is None
    assert found["change"]["estimate"] == pytest.approx(1.1, rel=0.01)
    # An interval may miss 1.1, but no pair is farther from it than the noise of its runs.
    assert 1.09 < found["from_good_to_bad"]["lower"] < found["from_good_to_bad"]["upper"] < 1.11
    assert "build" in next(iter(found["failed"].values()))
    # What was recorded is of the commits' own files, and is no result of the batch.
    outputs = list((project / "results/local/bisect").rglob("*.log"))
    texts = {line for each in outputs for line in each.read_text().splitlines()}
    assert texts >= {"a change 1", "a change 2", "a change 4", "a change 5"}
    assert not list((project / "results/local").glob("bench/**/*.log"))
    again = run_apart(*KOCHI, "bisect", *words, cwd=project)
    assert json.loads(again.stdout) == found
    assert len(list((project / "results/local/bisect").rglob("*.log"))) == len(outputs)


DEPENDENCIES = """
    dependencies:
      library:
        git: GIT
        script: cp value.txt "$KOCHI_INSTALL_PREFIX"; ! grep broken value.txt
        recipes: [{name: main, branch: main}, {name: stable, branch: v1}, {name: newest}]
      other: {recipes: [{name: one, script: "true"}]}
      user: {recipes: [{name: one, script: "true", depends: [{name: library, recipe: main}]}]}
    """
OF_LIBRARY = EXPERIMENT.replace("}' built", "}' $KOCHI_INSTALL_PREFIX_LIBRARY/value").replace(
    "mode:", "lib: [main, stable], mode:"
)


def make_library(project: Path, *values: str, git_is: str = "../library") -> Path:
    """A repository of a dependency with a commit for each value, with tags v1, v2, ...; and
    an experiment whose runs take these values."""
    library = project.parent / "library"
    git(project.parent, "init", "-q", "-b", "main", "library")
    for number, value in enumerate(values, 1):
        write(library / "value.txt", f"{value}\n")
        git(library, "add", ".")
        git(library, "commit", "--allow-empty", "-qm", f"release {number}")
        git(library, "tag", f"v{number}")
    write(project / "kochi.yaml", DEPENDENCIES.replace("GIT", git_is))
    write_depending(project, "[{name: library, recipe: $lib}]")
    return library


def write_depending(project: Path, depends: str, more: str = "") -> None:
    write(project / "bench.yaml", f"\n    depends: {depends}{more}{OF_LIBRARY}")


def test_the_commit_of_a_dependency_that_made_a_batch_slower_is_named(project: Path) -> None:
    library = make_library(project, "100", "100", "110", "110")
    one = ("-w", "n=1", "-w", "mode=a", "-w", "lib=main")
    words = ("v1", "v4", "bench.yaml", *one, "--recipe", "library:main")
    said = bisect(project, *words)
    assert "release 3\nchanged time, with a probability of " in said
    assert git(library, "rev-parse", "v3").strip() in said
    outputs = list((project / "results/local/bisect").rglob("*.log"))
    # The search goes on although recipes of the library have another commit now.
    git(library, "commit", "--allow-empty", "-qm", "release 5")
    assert "release 3\nchanged time" in bisect(project, *words)
    assert len(list((project / "results/local/bisect").rglob("*.log"))) == len(outputs)

    said = bisect(project, *words[:-1], "library:man", fails=True)
    assert "'library' has no recipe 'man', did you mean 'main'?" in said
    said = bisect(project, *words[:-1], "other:one", fails=True)
    assert "other:one has no git repository" in said
    said = bisect(project, *words[:-4], "--recipe", "library:main", fails=True)
    assert "a point of batch default does not depend on library:main, but on library:stable" in said
    said = bisect(project, "c1", *words[1:], fails=True)
    assert "'c1' is no branch" in said, "these are commits of the library"


def test_a_commit_of_a_dependency_that_cannot_be_installed_is_passed_over(project: Path) -> None:
    address = f"file://{project.parent}/library"
    library = make_library(project, "100", "110\nbroken", "110", git_is=address)
    words = ("v1", "v3", "bench.yaml", "-w", "n=1", "-w", "mode=a", "-w", "lib=main")
    done = run_apart(*KOCHI, "bisect", *words, "--recipe", "library:main", "--json", cwd=project)
    found = json.loads(done.stdout)
    assert (found["verdict"], found["recipe"]) == ("commit", "library:main")
    assert [each["subject"] for each in found["commits"]] == ["release 2", "release 3"]
    assert [*found["failed"]] == [git(library, "rev-parse", "v2").strip()]
    assert "install_library" in next(iter(found["failed"].values()))


def test_a_recipe_that_not_only_runs_use_is_refused(project: Path) -> None:
    make_library(project, "100", "110")
    words = ("v1", "v2", "bench.yaml", "-w", "n=1", "-w", "mode=a", "-w", "lib=main")
    words = (*words, "--recipe", "library:main")
    own, user = "{name: library, recipe: main}", "{name: user, recipe: one}"
    write_depending(project, f"[{own}]", '\n    prepare: {script: "true"}')
    said = bisect(project, *words, fails=True)
    assert "bench.yaml:2: prepare: it runs once, with library:main" in said
    write_depending(project, f"[{user}]")
    said = bisect(project, *words, fails=True)
    assert "needs library:main not directly, but for user:one" in said
    write_depending(project, f"[{own}, {user}]")
    said = bisect(project, *words, fails=True)
    assert "needs library:main also for user:one" in said


def test_what_cannot_be_compared_is_told(project: Path) -> None:
    assert "'nothing' is no branch" in bisect(project, "nothing", "c5", "bench.yaml", fails=True)
    said = bisect(project, "c5", "c1", "bench.yaml", fails=True)
    assert "'c1' is no descendant of 'c5'" in said
    assert "is no descendant" in bisect(project, "c1", "c1", "bench.yaml", fails=True)
    said = bisect(project, "c1", "c5", "bench.yaml", "-w", "n=7", fails=True)
    assert "no point with n=7" in said
    write(project / "bench.yaml", EXPERIMENT.replace("mode:", "code:").replace("_MODE", "_CODE"))
    assert "named 'code'" in bisect(project, "c1", "c5", "bench.yaml", fails=True)


def test_ends_without_a_result_or_with_one_that_has_no_ratio_are_told(project: Path) -> None:
    one = ("-w", "n=1", "-w", "mode=a")
    said = bisect(project, "c2", "c3", "bench.yaml", *one, fails=True)
    assert "(change 3) has no result to compare: not run because" in said
    said = bisect(project, "c1", "c2", "bench.yaml", *one, "--metric", "tim", fails=True)
    assert "has no metric 'tim', did you mean 'time'?" in said
    write(project / "bench.yaml", EXPERIMENT.replace('took " $1', 'took -" $1'))
    said = bisect(project, "c1", "c2", "bench.yaml", *one, fails=True)
    assert "a ratio needs values above 0" in said


def test_what_keeps_all_runs_from_their_results_is_no_property_of_a_commit(project: Path) -> None:
    ran, is_mended = project.parent / "ran", project.parent / "mended"
    only = f"echo >> {ran}; [ -e {is_mended} ] || [ $(wc -l < {ran}) -le 20 ] || exit 3\n"
    text = EXPERIMENT.replace("      noise=", f"      {only}      noise=")
    write(project / "bench.yaml", text)
    words = ("c1", "c5", "bench.yaml", "-w", "n=2", "-w", "mode=a")
    said = bisect(project, *words, fails=True)
    assert "(change 1) has no result to compare: " in said and "exit status 3" in said
    assert "type the same line again" in said
    is_mended.touch()
    assert "One of 2 commits" in bisect(project, *words)
