"""Points are repeated until they are known well enough."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pandas
import pytest
import support
from support import git, run, run_apart, write

from .conftest import ExampleProject, begin_project

# Of `noisy`, the numbers of the runs are far apart; of `quiet`, they are all the same.
EXPERIMENT = """
    params: {kind: [quiet, noisy]}
    run: |
      echo "$KOCHI_PARAM_KIND" >> "$RAN"
      case $KOCHI_PARAM_KIND in
        quiet) echo "took 100 us";;
        noisy) echo "took $((100 + $(grep -c noisy "$RAN") * 37 % 60)) us";;
      esac
    metrics: {time: 'took ([0-9.]+) us'}
    repeat: {until: 2%, max: 20}
    """
KOCHI = ("-P", "-m", "snakemake_kochi.cli")


@pytest.fixture
def repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExampleProject:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    files = {"kochi.yaml": "dependencies: {}\n", "times.yaml": EXPERIMENT}
    return begin_project(tmp_path / "project", tmp_path / "ran", files)


def counts(project: ExampleProject) -> tuple[int, int]:
    """How often the quiet and the noisy point ran since this was asked last."""
    lines = project.take_ran()
    return lines.count("quiet"), lines.count("noisy")


def table_counts(project: ExampleProject) -> dict[str, int]:
    """How many runs of each point its table has."""
    table = pandas.read_csv(project.directory / "results/local/times/default.csv")
    return dict(table["kind"].value_counts())


def kochi(project: ExampleProject, *words: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, *KOCHI, *words, cwd=project.directory)


@pytest.mark.compatibility
@pytest.mark.phases
def test_only_points_that_are_not_known_well_run_again_up_to_the_maximum(
    repeated: ExampleProject,
) -> None:
    # Snakemake itself needs pandas.
    own = '"scipy", "snakemake_kochi.statistics", "snakemake_kochi.tables"'
    with (repeated.directory / "Snakefile").open("a") as file:
        file.write(f"\nimport sys\nonsuccess: print('loaded:', {{{own}}} & {{*sys.modules}})\n")
    output = repeated.snakemake("times")
    assert counts(repeated) == (10, 20)
    assert "loaded: set()" in output, "looks have processes of their own"
    assert "after 10 runs 1 of 2 points are known within 2 % of their median time" in output
    assert "kind=noisy: ± " in output
    assert "after 15 runs: 5 more" in output and "after 20 runs: the maximum" in output
    assert "Nothing to be done" in repeated.snakemake("-n", "times")
    results = repeated.directory / "results/local/times"
    table = pandas.read_csv(results / "default.csv")
    assert table.groupby("kind")["time_n"].first().to_dict() == {"noisy": 20, "quiet": 10}
    page = (results / "default.md").read_text()
    assert "Time: 1 of 2 points are not known within 2 % (up to ± " in page
    assert "all equal at this resolution" in page
    assert re.search(
        "## Repetition\n\nAfter 20 runs 1 of 2 points are known within 2 % of their median time."
        "\n\n- kind=noisy: ± .* after 20 runs: the maximum\n",
        page,
    )

    shown = kochi(repeated, "show", "batch", "times.yaml").stdout
    assert "30  done" in shown
    assert "Repeat: after 20 runs 1 of 2 points are known within 2 % of their median time" in shown
    assert "kind=noisy" in shown and "after 20 runs: the maximum" in shown
    found = json.loads(kochi(repeated, "show", "batch", "times.yaml", "--json").stdout)
    assert [each["runs"] for each in found["repeat"]] == [10, 20]
    assert found["repeat_seconds"] == 0, "that is of the runs until the next look"

    # Less is asked for: nothing runs, and the table has all runs. Another script: everything again.
    repeated.edit("times.yaml", "until: 2%", "until: 50%, confidence: 90%")
    repeated.snakemake("times")
    assert counts(repeated) == (0, 0)
    page = (results / "default.md").read_text()
    assert "Time: all 2 points are known within 50 %" in page and "time 90 % interval" in page
    table = pandas.read_csv(results / "default.csv")
    assert table.groupby("kind")["time_n"].first().to_dict() == {"noisy": 20, "quiet": 10}
    repeated.edit("times.yaml", "100 us", "101 us")
    found = json.loads(kochi(repeated, "show", "batch", "times.yaml", "--json").stdout)
    assert (found["counts"]["stale"], found["repeat"]) == (20, None), "the looks are stale, too"
    repeated.snakemake("times")
    assert counts(repeated) == (10, 10)


def test_a_look_counts_at_most_max_runs_up_to_the_first_missing_one(
    repeated: ExampleProject,
) -> None:
    repeated.snakemake("times")
    assert counts(repeated) == (10, 20)
    repeated.edit("times.yaml", "max: 20", "max: 15")
    repeated.snakemake("times")
    assert counts(repeated) == (0, 0)
    assert table_counts(repeated) == {"noisy": 15, "quiet": 10}
    (log,) = (repeated.directory / "results/local/times").rglob("kind=noisy_12.log")
    log.unlink()
    repeated.edit("times.yaml", "until: 2%", "until: 50%, confidence: 90%")
    repeated.snakemake("times")
    assert counts(repeated) == (0, 0)
    assert table_counts(repeated) == {"noisy": 12, "quiet": 10}
    repeated.edit("times.yaml", "[quiet, noisy]", "[quiet, noisy, new]")
    shown = kochi(repeated, "show", "batch", "times.yaml").stdout
    assert "after 12 runs 2 of 3 points are known within 50 % of their median time" in shown
    assert "1 point without a look: 10 runs of each" in shown


def test_a_partial_table_has_no_run_of_an_earlier_script(repeated: ExampleProject) -> None:
    repeated.snakemake("times")
    repeated.edit("times.yaml", "noisy) echo", "noisy) exit 3; echo")
    done = kochi(repeated, "batch", "times.yaml")
    assert done.returncode != 0
    assert "10 of 20 runs have no result" in done.stdout
    assert table_counts(repeated) == {"quiet": 10}


def test_runs_beyond_the_last_look_are_neither_made_again_nor_failed(
    repeated: ExampleProject,
) -> None:
    repeated.edit("times.yaml", "case $K", '[ "$(grep -c noisy "$RAN")" != 13 ] || exit 3; case $K')
    assert kochi(repeated, "batch", "times.yaml").returncode != 0
    done = kochi(repeated, "batch", "times.yaml", "--again", "kind=quiet,duplicate=15")
    assert done.returncode != 0
    assert "has the selected points, but needs fewer runs of them" in done.stdout
    repeated.edit("times.yaml", "100 us", "101 us")
    done = kochi(repeated, "batch", "times.yaml", "--retry", "failed")
    assert done.returncode == 0
    assert done.stdout == "No point of batch default of times.yaml has failed.\n"


@pytest.mark.parametrize("is_after_a_look", [False, True])
def test_a_killed_batch_goes_on_with_what_is_there_under_any_executor(
    repeated: ExampleProject, is_after_a_look: bool
) -> None:
    """`kochi batch` is killed, and `snakemake` goes on; between two looks, the other way round."""
    repeated.edit(
        "times.yaml", '  echo "$KOCHI_PARAM_KIND"', '  sleep 0.2; echo "$KOCHI_PARAM_KIND"'
    )
    batch = (sys.executable, *KOCHI, "batch", "times.yaml")
    workflow = (sys.executable, "-m", "snakemake", "--cores", "2", "times")
    command = workflow if is_after_a_look else batch
    process = support.start(*command, cwd=repeated.directory, start_new_session=True)
    size = 125 if is_after_a_look else 50  # 20 lines are 120 bytes
    support.wait_until(lambda: repeated.ran.exists() and len(repeated.ran.read_text()) > size)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    run(sys.executable, "-m", "snakemake", "--unlock", "times", cwd=repeated.directory)
    if is_after_a_look:
        assert len([*repeated.directory.glob(".snakemake/kochi/*/looks/**/*.json")]) == 1
        assert run(*batch, cwd=repeated.directory).returncode == 0
    else:
        repeated.snakemake("--rerun-incomplete", "times", executor="local")
    quiet, noisy = counts(repeated)
    # What ran when it was killed runs once more.
    assert 30 <= quiet + noisy <= 32


def test_restored_results_are_those_of_all_looks(repeated: ExampleProject) -> None:
    repeated.commit()
    kochi(repeated, "artifact", "init", "../branch")
    kochi(repeated, "batch", "times.yaml")
    assert counts(repeated) == (10, 20)
    for name in ("results", ".snakemake"):
        shutil.rmtree(repeated.directory / name)
    assert "30 of 30" in kochi(repeated, "artifact", "restore", "times.yaml").stdout
    kochi(repeated, "batch", "times.yaml")
    assert counts(repeated) == (0, 0)


def test_each_machine_looks_at_its_own_runs_and_all_of_them_are_told_exported_and_reproduced(
    repeated: ExampleProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repeated.directory / "kochi.yaml", "dependencies: {}\nmachines: {one: {}, two: {}}\n")
    repeated.commit()
    kochi(repeated, "artifact", "init", "../branch")
    for machine in ("one", "two"):
        monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", machine)
        repeated.snakemake("times", executor="local")
        assert counts(repeated) == (10, 20)
    found = json.loads(kochi(repeated, "show", "batch", "times.yaml", "-m", "one", "--json").stdout)
    assert [each["runs"] for each in found["repeat"]] == [10, 20]
    monkeypatch.delenv("KOCHI_DEFAULT_MACHINE")
    expected = {"noisy": 20, "quiet": 10}
    table = run_apart(
        sys.executable, *KOCHI, "table", "times.yaml", "--csv", cwd=repeated.directory
    )
    runs = pandas.read_csv(io.StringIO(table.stdout))
    for _, of_machine in runs.groupby("machine"):
        assert of_machine.groupby("kind")["time_n"].first().to_dict() == expected
    assert kochi(repeated, "export", "--ro-crate", "../crate").returncode == 0
    (file,) = (repeated.directory.parent / "crate/tables/two").rglob("default.csv")
    exported = pandas.read_csv(file)
    assert exported.groupby("kind")["time_n"].first().to_dict() == expected
    (last,) = (repeated.directory / "results/two/times").rglob("kind=noisy_19.log")
    repeated.take_ran()
    assert kochi(repeated, "reproduce", str(last)).returncode == 0
    assert counts(repeated) == (0, 1)


def test_an_interrupted_comparison_waits_until_its_run_has_ended(repeated: ExampleProject) -> None:
    slow = "trap 'sleep 1; exit 1' TERM; sleep 60 & wait"
    repeated.edit("times.yaml", "case $KOCHI", f"{slow}; case $KOCHI")
    command = (sys.executable, *KOCHI, "compare", "times.yaml", "--run")
    process = support.start(*command, cwd=repeated.directory, start_new_session=True)
    support.wait_until(repeated.ran.exists)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() != 0
    locks = list((repeated.directory / ".snakemake/locks").glob("*"))
    assert not locks, "Snakemake ended by itself"


def test_points_that_cannot_be_compared_are_not_said_to_be_known(repeated: ExampleProject) -> None:
    text = """
        params: {kind: [zero, one], side: [a, b]}
        run: echo "$KOCHI_PARAM_SIDE took $([ $KOCHI_PARAM_KIND = zero ] && echo 0 || echo 1) us"
        metrics: {time: 'took ([0-9.]+) us'}
        repeat: {until: 2%, by: side, min: 6}
        """
    write(repeated.directory / "times.yaml", text)
    output = repeated.snakemake("times")
    assert "after 6 runs 2 of 4 points are known within 2 % of their ratios by side" in output
    assert "not comparable: a ratio needs values above 0" in output


def test_a_budget_ends_the_rounds_and_names_what_is_missing(repeated: ExampleProject) -> None:
    repeated.edit("times.yaml", "max: 20", "max: 20, budget: 0.00001 node-minutes")
    output = repeated.snakemake("times")
    assert counts(repeated) == (10, 10)
    assert "after 10 runs: the budget is spent" in output
    repeated.edit("times.yaml", "0.00001 node-minutes", "1 node-hours")
    repeated.snakemake("times")
    assert counts(repeated) == (0, 10)
    repeated.edit("times.yaml", "max: 20", "max: 23")
    repeated.snakemake("times")
    assert counts(repeated) == (0, 3)


def test_a_part_runs_what_the_last_look_asked_for(repeated: ExampleProject) -> None:
    kochi(repeated, "batch", "times.yaml", "-w", "kind=noisy")
    assert counts(repeated) == (0, 10)
    kochi(repeated, "batch", "times.yaml")
    assert counts(repeated) == (10, 10)


@pytest.mark.parametrize("text", ["echo took no time", "echo"])
def test_a_metric_without_numbers_is_told_at_the_first_look(
    repeated: ExampleProject, text: str
) -> None:
    write(
        repeated.directory / "times.yaml",
        f"""
        params: {{kind: [quiet]}}
        run: {text} $KOCHI_PARAM_KIND
        metrics: {{time: 'took (.+)'}}
        repeat: {{until: 2%, min: 2}}
        """,
    )
    done = repeated.try_snakemake("times")
    assert done.returncode == 1
    assert "metric 'time' is a number in 0 of 2 runs, so none is repeated" in done.stdout


def test_a_number_is_that_of_the_duplicates(repeated: ExampleProject) -> None:
    repeated.edit("times.yaml", "repeat: {until: 2%, max: 20}", "repeat: 3")
    repeated.snakemake("times")
    assert counts(repeated) == (3, 3)


def test_a_target_checks_the_results_against_the_references(repeated: ExampleProject) -> None:
    text = """
        params: {kind: [quiet, noisy]}
        run: echo "took 112 us"
        metrics: {time: 'took ([0-9.]+) us'}
        duplicates: 6
        references: [{value: 112, where: {kind: quiet}}, {value: VALUE, where: {kind: noisy}}]
        """
    write(repeated.directory / "times.yaml", text.replace("VALUE", "100"))
    done = repeated.try_snakemake("times_check")
    assert done.returncode == 1
    assert re.search(r"kind=noisy\) +\| 112 +\| 100 +\| \+12 % .* \| worse +\|", done.stdout)
    checks = ElementTree.parse(repeated.directory / "results/local/times/default_check.xml")
    assert checks.getroot().get("failures") == "1", "JUnit XML stays where the target failed"
    write(repeated.directory / "times.yaml", text.replace("VALUE", "113"))
    output = repeated.snakemake("times_check")
    assert "worse" not in output
    checks = ElementTree.parse(repeated.directory / "results/local/times/default_check.xml")
    assert [case.tag for case in checks.getroot()] == ["testcase"] * 2
    assert checks.getroot().get("failures") == "0"


def test_a_target_checks_the_results_against_those_of_a_commit(repeated: ExampleProject) -> None:
    repeated.commit()
    kochi(repeated, "artifact", "init", "../branch")
    text = """
        params: {kind: [quiet]}
        run: echo "took 112 us"
        metrics: {time: 'took ([0-9.]+) us'}
        duplicates: 6
        references: REFERENCES
        """
    write(repeated.directory / "times.yaml", text.replace("REFERENCES", "[{value: 112}]"))
    repeated.snakemake("times")
    commit = git(repeated.directory, "rev-parse", "kochi_artifacts_local").strip()
    text = text.replace("REFERENCES", f"[{{commit: {commit}}}]")
    write(repeated.directory / "times.yaml", text)
    assert "as expected" in repeated.snakemake("times_check")
    write(repeated.directory / "times.yaml", text.replace("112", "122"))
    done = repeated.try_snakemake("times_check")
    assert done.returncode == 1
    assert f"| 112 ({commit[:12]}) | +8.93 %" in done.stdout
    checks = repeated.directory / "results/local/times/default_check.xml"
    assert checks.exists()
    repeated.edit("times.yaml", "'took", "'tuck")
    assert "matches in none of the 6 runs" in repeated.try_snakemake("times_check").stdout
    assert not checks.exists(), "that of an earlier check says nothing of this one"
    repeated.edit("times.yaml", "'tuck", "'took")
    repeated.edit("times.yaml", commit, "nothing")
    assert "there is no commit 'nothing'" in repeated.try_snakemake("times_check").stdout
    assert not checks.read_bytes()


def test_a_batch_with_the_name_of_a_target_that_checks_is_refused(
    repeated: ExampleProject,
) -> None:
    text = """
        default_params: {kind: quiet}
        run: echo "took 112 us"
        metrics: {time: 'took ([0-9.]+) us'}
        references: [{value: 112}]
        batches: {default: {}, check: {}}
        """
    write(repeated.directory / "times.yaml", text)
    done = repeated.try_snakemake("--dry-run", "times_check")
    assert done.returncode == 1
    assert "would both become the rule 'times_check'" in done.stdout


def test_a_warm_up_that_fails_is_told_as_one(repeated: ExampleProject) -> None:
    text = """
        params: {kind: [quiet]}
        run:
          warmup: 1
          script: echo >> cache; [ "$(wc -l < cache)" != FAILS ] || exit 3
        """
    for number, script in ((1, "a warm-up of the run script"), (2, "the run script")):
        write(repeated.directory / "times.yaml", text.replace("FAILS", str(number)))
        assert repeated.try_snakemake("times").returncode == 1
        shown = kochi(repeated, "show", "batch", "times.yaml").stdout
        assert f"failed  {script} ended with exit status 3" in shown


@pytest.mark.phases
def test_warm_ups_run_in_the_same_directory_and_only_the_last_run_counts(
    repeated: ExampleProject,
) -> None:
    text = """
        params: {kind: [quiet]}
        run:
          warmup: 2
          script: |
            echo "$KOCHI_PARAM_KIND" >> "$RAN"
            echo x >> cache
            echo "took $(wc -l < cache) us"
        metrics: {time: 'took (.+) us'}
        """
    write(repeated.directory / "times.yaml", text)
    repeated.snakemake("times")
    assert counts(repeated) == (3, 0)
    results = repeated.directory / "results/local/times"
    assert pandas.read_csv(results / "default.csv")["time"].tolist() == [3]
    assert (results / "default/0.log").read_text().count("took") == 1
    (record,) = (repeated.directory / ".snakemake/kochi/local/records").glob("**/record.json")
    assert json.loads(record.read_text())["warmup_seconds"] > 0
    assert "Nothing to be done" in repeated.snakemake("-n", "times")
    repeated.edit("times.yaml", "warmup: 2", "warmup: 1")
    repeated.snakemake("times")
    assert counts(repeated) == (2, 0)


def test_a_comparison_runs_pairs_until_their_ratio_is_known(repeated: ExampleProject) -> None:
    """The same twice, which never varies; and what is noisy, with a factor of three."""
    text = """
        params: {kind: [quiet, noisy], side: [a, b]}
        run: |
          echo "$KOCHI_PARAM_KIND" >> "$RAN"
          if [ $KOCHI_PARAM_KIND = quiet ]; then echo "took 100 us"; exit; fi
          factor=1; [ $KOCHI_PARAM_SIDE = a ] || factor=3
          echo "took $((factor * (100 + $(wc -l < "$RAN") * 37 % 60))) us"
        metrics: {time: 'took ([0-9.]+) us'}
        repeat: {until: 2%, by: side}
        """
    write(repeated.directory / "times.yaml", text)
    repeated.commit()
    run(sys.executable, *KOCHI, "artifact", "init", "../branch", cwd=repeated.directory)
    words = (*KOCHI, "compare", "times.yaml", "--by", "side", "--run", "--json")
    done = run_apart(sys.executable, *words, cwd=repeated.directory)
    quiet, noisy = counts(repeated)
    # The latter is decided long before its ratio is within 2 %.
    assert quiet == 20 and 20 <= noisy <= 46
    assert "of their ratios by side time" in done.stderr
    (found,) = json.loads(done.stdout)["comparisons"]
    verdicts = {each["point"]["kind"]: each["verdict"] for each in found["points"]}
    assert verdicts == {"quiet": "the same", "noisy": "slower"}
    assert kochi(repeated, "compare", "times.yaml", "--by", "side", "--run").returncode == 0
    assert counts(repeated) == (0, 0)
