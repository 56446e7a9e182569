"""A batch of which some runs failed ends with the table of the others, and says how many miss."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import run_apart, write

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.library.library import Part

# n fails while a file of its name is there.
FAILS = """\
    if [ -e "$RAN.fails-$KOCHI_PARAM_N" ]; then
      echo "no more beans for $KOCHI_PARAM_N"; exit 3
    fi
"""


def fails(project: Any, n: int) -> Path:
    return write(Path(f"{project.ran}.fails-{n}"), "")


def files_of_table(project: Any, ending: str, below: str = "") -> Path:
    return project.directory / below / f"results/local/sum/first.{ending}"


def values_in_table(project: Any, below: str = "") -> list[str]:
    rows = files_of_table(project, "csv", below).read_text().splitlines()[1:]
    return [row.split(",")[-1] for row in rows]


def why(project: Any) -> dict[str, tuple[str, list[str]]]:
    """The reasons of the points that are not done, and the last lines of their output."""
    words = ("-m", "snakemake_kochi.cli", "show", "batch", "sum.yaml", "first", "--json")
    done = run_apart(sys.executable, "-P", *words, cwd=project.directory)
    assert done.returncode == 0, done.stderr
    points = [each for each in json.loads(done.stdout)["points"] if each["state"] != "done"]
    return {each["parameters"]["n"]: (each["why"], each["output"]) for each in points}


# As `kochi batch` asks for it.
OF_BATCH = ("--config", "kochi_batch=sum_first")


def make_failing(project: Any) -> Any:
    project.edit("sum.yaml", '    echo "total', f'{FAILS}    echo "total')
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 3]")
    return project


@pytest.fixture
def failing_project(finished_project: Any) -> Any:
    """All of its results are to be made again."""
    return make_failing(finished_project)


def test_a_failed_run_is_left_out_of_the_table_and_named_until_it_is_there(
    failing_project: Any,
) -> None:
    project = failing_project
    project.edit("sum.yaml", "n: [1, 3]", "n: [1, 2, 3, 4]")
    text = (project.directory / "sum.yaml").read_text()
    cause = fails(project, 2)
    plot = files_of_table(project, "png")

    # The second time, all others are there from before.
    for executor, ran in (("local", ["1", "2", "3", "4"]), ("kochi", ["2"])):
        plot.unlink()
        project.take_ran()
        done = project.try_snakemake("--keep-going", "sum_first", *OF_BATCH, executor=executor)
        assert done.returncode == 1
        assert project.take_ran() == [f"run sum {n}" for n in ran]
        assert values_in_table(project) == ["10", "30", "40"]
        assert plot.read_bytes().startswith(b"\x89PNG")
        text_of_table = files_of_table(project, "md").read_text()
        table, _, missing = text_of_table.partition("1 of 4 runs has no result; to see why, type: ")
        assert "|   n |" in table
        assert missing.startswith("kochi show batch sum.yaml first.\n")
        *_, said = done.stdout.partition("kochi: sum.yaml: batch first")
        assert said.startswith(
            ": 1 of 4 runs has no result; "
            "table and plot of the other 3: results/local/sum/first.md\n"
            "kochi: to see why, type: kochi show batch sum.yaml first\n"
        )
        assert why(project)["2"][0] == "the run script ended with exit status 3"
        assert "no more beans for 2" in why(project)["2"][1]
        if executor == "local":
            # What failed is taken out: the table is made again, and is of all there is.
            project.edit("sum.yaml", "n: [1, 2, 3, 4]", "n: [1, 3, 4]")
            project.snakemake("sum_first")
            assert project.take_ran() == []
            assert "no result" not in files_of_table(project, "md").read_text()
            (project.directory / "sum.yaml").write_text(text)

    # Mended: the missing run, and the whole table.
    cause.unlink()
    project.snakemake("sum_first", executor="kochi")
    assert project.take_ran() == ["run sum 2"]
    assert values_in_table(project) == ["10", "20", "30", "40"]
    assert "no result" not in files_of_table(project, "md").read_text()
    assert "Nothing to be done" in project.snakemake("sum_first")


def test_snakemake_alone_notes_failures_and_makes_no_table_of_a_part(failing_project: Any) -> None:
    project = failing_project
    fails(project, 3)
    before = files_of_table(project, "md").read_text()
    done = project.try_snakemake("--keep-going", "sum_first")
    assert done.returncode == 1
    assert "have no result" not in done.stdout
    assert files_of_table(project, "md").read_text() == before
    (noted,) = (project.directory / ".snakemake/kochi").rglob("record.json.failed")
    assert "the run script ended with exit status 3" in noted.read_text()


@pytest.mark.compatibility
def test_runs_whose_build_failed_are_left_out_with_what_the_build_printed(
    finished_project: Any,
) -> None:
    project = finished_project
    project.edit("sum.yaml", "params: {n: [1, 2]}", "params: {debug: [0, 1]}")
    project.edit("sum.yaml", "${n}_${duplicate}", "${debug}_${duplicate}")
    build = 'echo "build sum $KOCHI_PARAM_DEBUG" >> "$RAN"\n'
    project.edit(
        "sum.yaml", build, f'{build}    echo cc; [ ! -e "$RAN.fails-$KOCHI_PARAM_DEBUG" ]\n'
    )
    cause = fails(project, 1)
    done = project.try_snakemake("--keep-going", "sum_first", *OF_BATCH, executor="kochi")
    assert done.returncode == 1
    assert values_in_table(project) == ["10"]
    assert "1 of 2 runs has a stale result; to see" in files_of_table(project, "md").read_text()
    reason = "not run because build_sum failed: the build script ended with exit status 1"
    (noted,) = (project.directory / ".snakemake/kochi").rglob("record.json.failed")
    assert reason in noted.read_text()
    # Broken altogether, nothing is there of the code as it is now: the table of before stays.
    project.edit("sum.yaml", "echo cc;", "echo cc; exit 5;")
    before = files_of_table(project, "md").read_text()
    done = project.try_snakemake("--keep-going", "sum_first", *OF_BATCH, executor="local")
    assert done.returncode == 1
    assert (
        "2 of 2 runs have a stale result; "
        "the table of an earlier run stays: results/local/sum/first.md\n"
    ) in done.stdout
    assert files_of_table(project, "md").read_text() == before
    project.edit("sum.yaml", "echo cc; exit 5;", "echo cc;")
    cause.unlink()
    project.snakemake("sum_first", executor="kochi")
    assert values_in_table(project) == ["10", "10"]


def test_without_keep_going_the_table_has_the_existing_results_at_the_end(
    failing_project: Any,
) -> None:
    project = failing_project
    # Elsewhere, where Snakemake is no longer when it ends.
    elsewhere = ("--snakefile", "Snakefile", "--directory", "below", "sum_first", *OF_BATCH)
    project.snakemake(*elsewhere)
    project.edit("sum.yaml", "n: [1, 3]", "n: [1, 2, 3]")
    fails(project, 2)
    done = project.try_snakemake(*elsewhere)
    assert done.returncode == 1
    assert values_in_table(project, "below") == ["10", "30"]
    assert "1 of 3 runs has no result; table and plot of the other 2: " in done.stdout


def test_a_batch_of_which_every_run_failed_says_so_and_makes_no_table(project: Any) -> None:
    make_failing(project)  # and has had no table yet
    fails(project, 1)
    # The rules have names of their own.
    project.edit("Snakefile", "use rule * from kochi", "use rule * from kochi as k_*")
    # Without a chance to say why.
    project.edit(
        "sum.yaml", '    echo "total', '    echo beans; kill -9 $PPID; sleep 60\n    echo "total'
    )
    done = project.try_snakemake("--keep-going", "k_sum_first", *OF_BATCH, executor="kochi")
    assert done.returncode == 1
    assert "batch first: 2 of 2 runs have no result\nkochi: to see why, type: " in done.stdout
    assert why(project)["1"][0] == "the run script ended with exit status 3"
    assert why(project)["3"][0] == "killed by SIGKILL"
    assert not files_of_table(project, "md").exists()

    # Failed otherwise, they say that.
    project.edit("sum.yaml", "n: [1, 3]", "n: [1, 2, 3, 4]")
    project.edit("sum.yaml", "cp code.txt built.txt", "exit 9")
    done = project.try_snakemake("k_sum_first", *OF_BATCH)
    assert done.returncode == 1
    assert "batch first: 4 of 4 runs have no result\n" in done.stdout
    reason = "not run because k_build_sum failed: the build script ended with exit status 9"
    assert {said for said, _ in why(project).values()} == {reason}


def test_a_job_that_fails_before_it_begins_has_no_reason_of_an_earlier_run(
    failing_project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = failing_project
    project.edit("sum.yaml", '    echo "total', '    [ $KOCHI_PARAM_N = 1 ]\n    echo "total')
    assert project.try_snakemake("--keep-going", "sum_first", *OF_BATCH).returncode == 1
    no_start = 'case "$BASH_EXECUTION_STRING" in *"phases run"*) exit 7;; esac\n'
    monkeypatch.setenv("BASH_ENV", str(write(project.directory.parent / "no-start", no_start)))
    done = project.try_snakemake("--keep-going", "sum_first", *OF_BATCH)
    assert done.returncode == 1
    (noted,) = (project.directory / ".snakemake/kochi").rglob("record.json.failed")
    assert "the run script ended" not in noted.read_text()


@pytest.mark.compatibility
def test_a_part_is_run_by_snakemake_itself_with_any_executor(project: Any) -> None:
    make_failing(project)
    cause = fails(project, 3)
    where = ["--config", "kochi_batch=sum_first", 'kochi_where=["n>2"]']
    assert project.try_snakemake("sum_first", *where).returncode == 1
    assert why(project)["3"][0] == "the run script ended with exit status 3"
    assert why(project)["1"][0] == "not run yet"
    cause.unlink()
    project.take_ran()
    project.snakemake("sum_first", "--config", "kochi_retry=failed", "kochi_batch=sum_first")
    assert project.take_ran() == ["run sum 3"]
    assert values_in_table(project) == ["30"]
    # The next run of all makes the missing one, and the table of all.
    project.snakemake("sum_first")
    assert project.take_ran() == ["run sum 1"]
    assert values_in_table(project) == ["10", "30"]
    # A result of other code is no missing one.
    project.edit("sum.yaml", '    echo "total', '    true\n    echo "total')
    said = project.snakemake("sum_first", *where)
    assert "batch first: 1 of 2 runs has a stale result; table and plot of the other 1: " in said
    assert "1 of 2 runs has a stale result; to see" in files_of_table(project, "md").read_text()
    assert why(project)["1"][0] == "run script changed"
    for config, said in (
        ('kochi_where=["m=1"]', "'m=1': batch first of sum has no parameter 'm'"),
        ("kochi_retry=failed", "no point of batch first of sum has failed"),
    ):
        done = project.try_snakemake("-n", "sum_first", "--config", config)
        assert done.returncode == 1
        assert said in done.stdout


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"kochi_where": 7},
            'config kochi_where: a list of conditions such as "n=100" was expected, not 7',
        ),
        ({"kochi_retry": "all"}, "config kochi_retry: 'failed' was expected, not 'all'"),
    ],
)
def test_what_selects_no_part_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Part.of(config)
    assert str(refused.value) == said
