"""`kochi table` and `kochi plot`: a batch from an artifact branch alone."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import git, write

from snakemake_kochi.cli.main import run

from .conftest import BRANCH, Project

SCALE = """
    default_params: {n: 1, threads: 1}
    metrics: {time: {pattern: '^time (.+)$', unit: ms}, word: 'says (\\w+)'}
    plots: [{metric: time, x: threads}, {name: words, metric: word}]
    batches:
      first:
        params: {n: [1, 2], threads: [1, 2]}
        artifacts: [{type: stdout, dest: "scale/${n}_${threads}.log"}]
    run: {depend_params: [n, threads], script: ls}
    """

RECIPE = {"dependency": "tool", "recipe": "plain", "digest": "a"}
ADDED = {"dependency": "base", "recipe": "plain", "digest": "a"}


@pytest.fixture
def scale(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Four points, of which one ran twice, and one that the batch does not have."""
    write(project.top / "scale.yaml", SCALE)
    git(project.top, "add", "--all")
    git(project.top, "commit", "--quiet", "--message=scale")
    for n, threads, time in ((1, 1, 40), (1, 1, 10), (2, 1, 20), (1, 2, 5), (2, 2, 11), (9, 1, 99)):
        parameters = {"n": str(n), "threads": str(threads)}
        made = {"snapshot": {"tree": code_of(project), "base": "c" * 40, "dirty": False}}
        project.run(f"time {time}\nsays hello\n", "scale.yaml", parameters=parameters, **made)
    project.commit()
    monkeypatch.chdir(project.top)
    return project


def code_of(project: Project) -> str:
    """The id under which the code of the checked-out commit is published, which is then there."""
    tree = git(project.top, "rev-parse", "HEAD^{tree}").strip()
    git(project.top, "update-ref", f"refs/kochi/code/{tree}", "HEAD")
    return tree


def table(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[list[str]], str]:
    """The rows of n, threads and time, and what was remarked."""
    assert run(["table", *words, "--csv"]) == 0
    said = capsys.readouterr()
    rows = csv.DictReader(io.StringIO(said.out))
    return [[row.get(key, "") for key in ("n", "threads", "time")] for row in rows], said.err


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(words) in (1, 2)
    return capsys.readouterr().err


def only_branch(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    clone = tmp_path / "clone"
    words = ("clone", "--quiet", "--single-branch", "--branch", BRANCH)
    git(tmp_path, *words, str(project.top), str(clone))
    monkeypatch.chdir(clone)
    return clone


def test_the_table_has_the_newest_run_of_each_point_that_the_batch_has(
    scale: Project, capsys: Any
) -> None:
    rows, said = table(capsys, "scale.yaml", "first")
    # In the order of the grid.
    expected = [["1", "1", "10"], ["1", "2", "5"], ["2", "1", "20"], ["2", "2", "11"]]
    assert rows == expected
    assert said == "kochi: 1 results of other points than those of the batch are left out\n"
    assert table(capsys, "scale", "first")[0] == expected
    scale_yaml = scale.top / "scale.yaml"
    scale_yaml.write_text(scale_yaml.read_text().replace("threads: [1, 2]", "threads: [2, 4]"))
    rows, said = table(capsys, "scale.yaml", "first")
    assert rows == [["1", "2", "5"], ["2", "2", "11"]]
    assert "2 of 4 runs have no result here" in said
    assert "skipped" not in said
    skipping = "      first:\n        skip_if: {condition: $n > 1, reason: too large}\n"
    scale_yaml.write_text(SCALE.replace("      first:\n", skipping))
    rows, said = table(capsys, "scale.yaml", "first")
    assert rows == expected[:2]
    assert "2 points are skipped: too large\n" in said
    scale_yaml.write_text(SCALE.replace("threads: [1, 2]", "threads: [2, 4]"))
    # The points of a commit are those of its code, with the metrics of today.
    scale_yaml.write_text(scale_yaml.read_text().replace("'^time (.+)$'", "'^time .*(.)$'"))
    rows, _ = table(capsys, "scale.yaml", "first", "--at", BRANCH)
    assert rows == [[n, threads, time[-1]] for n, threads, time in expected]


def test_a_table_has_the_results_of_one_code_and_says_how_to_see_the_others(
    project: Project, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run script was changed, and half of the batch was run again."""
    write(project.top / "scale.yaml", SCALE)
    monkeypatch.chdir(project.top)

    def ran(n: int, threads: int, time: float, script: str, **more: Any) -> None:
        made = {"run_script": script, "snapshot": {"tree": "a" * 40, "base": "c" * 40, **more}}
        parameters = {"n": str(n), "threads": str(threads)}
        project.run(f"time {time}\nsays x\n", "scale.yaml", parameters=parameters, **made)

    for n, threads in ((1, 1), (1, 2), (2, 1), (2, 2)):
        ran(n, threads, 0.4, "sleep 0.4", dirty=False)
    for n, threads in ((1, 1), (1, 2)):
        ran(n, threads, 0.9, "sleep 0.9", dirty=True)
    # A change of the documentation makes no other code.
    ran(1, 2, 0.8, "sleep 0.9", dirty=True, tree="b" * 40)
    project.commit()
    rows, said = table(capsys, "scale.yaml", "first")
    assert rows == [["1", "1", "0.9"], ["1", "2", "0.8"]]
    how = "to see them, type: kochi table scale.yaml first --all-code\n"
    left_out = "4 results of other code are left out of this table (another run script)"
    assert f"kochi: {left_out}; {how}" in said
    assert "2 of 4 runs have no result here" in said
    # The file was changed again since.
    changed = "2 of 2 results were made with another run script than scale.yaml has now"
    assert f"kochi: {changed}; to see which, type: kochi show batch scale.yaml first\n" in said
    write(project.top / "scale.yaml", SCALE.replace("script: ls", "script: sleep 0.9"))
    assert "made with another" not in table(capsys, "scale.yaml", "first")[1]

    assert run(["table", "scale.yaml", "first", "--all-code", "--csv"]) == 0
    out = capsys.readouterr()
    found = list(csv.DictReader(io.StringIO(out.out)))
    old, new = "c" * 12, "c" * 12 + "+" + "b" * 12
    assert [(row["code_commit"], row["time"]) for row in found] == [
        *((old, "0.4"), (new, "0.9"), (old, "0.4"), (new, "0.8")),
        *((old, "0.4"), (old, "0.4")),
    ]
    assert "left out" not in out.err
    assert "2 of 4 results were made with another run script" in out.err
    assert run(["table", "scale.yaml", "first", "--all-code"]) == 0
    page = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith(f"|{new}|1|2|1|") for line in page)

    # So have the figures: only one code, or a line for each.
    words = ["plot", "scale.yaml", "first", "--metric", "time", "-o"]
    assert run([*words, str(tmp_path / "one.svg")]) == 0
    assert run([*words, str(tmp_path / "all.svg"), "--all-code", "--lines", "code_commit"]) == 0
    svgs = [(tmp_path / f"{name}.svg").read_text() for name in ("one", "all")]
    one, both = (" ".join(re.findall("<!-- (.*?) -->", svg, re.DOTALL)) for svg in svgs)
    assert left_out in " ".join(one.split())
    assert [text in one for text in (old, new)] == [False, False]
    assert [text in f" {both} " for text in (f" {old} ", f" {new} ")] == [True, True]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"build_script": "cc -O3"}, "another build script"),
        ({"built": {"sources": "other"}, "build": "other"}, "other source files"),
        (
            {"recipes": [RECIPE | {"digest": "other"}], "build": "other"},
            "another recipe tool:plain",
        ),
        ({"recipes": [RECIPE | {"recipe": "fast"}], "build": "other"}, "another recipe of tool"),
        ({"recipes": [RECIPE, ADDED], "build": "other"}, "another set of recipes"),
        ({"build_parameters": {"debug": "1"}, "build": "other"}, "another build"),
        ({"build": "other"}, "another build"),
    ],
)
def test_old_results_are_known_by_what_determines_them_and_variants_stay_together(
    scale: Project, capsys: Any, changed: Mapping[str, Any], word: str
) -> None:
    then = {
        "build_script": "cc",
        "built": {"sources": "a"},
        "build": "a",
        "build_parameters": {},
        "recipes": [RECIPE],
    }
    # The first point names a recipe of its own, which did not change.
    own = {"recipes": [RECIPE | {"recipe": "2"}], "build": "own"}
    for point, made in (((1, 1), then), ((2, 1), then | changed), ((1, 2), then | changed | own)):
        if word not in ("build script", "source files") or made is not then:
            parameters = dict(zip(("n", "threads"), map(str, point), strict=True))
            scale.run("time 7\n", "scale.yaml", parameters=parameters, **made)
    scale.run("time 8\n", "scale.yaml", parameters={"n": "2", "threads": "2"}, **then)
    scale.run("time 9\n", "scale.yaml", parameters={"n": "2", "threads": "1"}, **then | changed)
    scale.commit()
    rows, said = table(capsys, "scale.yaml", "first")
    assert ["2", "2", "8"] not in rows
    assert ["2", "1", "9"] in rows
    assert ["1", "2", "7"] in rows
    assert f"({word})" in said


def test_a_default_that_was_added_later_leaves_no_result_out(scale: Project, capsys: Any) -> None:
    text = (scale.top / "scale.yaml").read_text()
    (scale.top / "scale.yaml").write_text(text.replace("{n: 1,", "{debug: 0, n: 1,"))
    assert len(table(capsys, "scale.yaml", "first")[0]) == 4


def test_a_clone_of_the_branch_alone_has_table_and_plots(
    scale: Project, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = table(capsys, "scale.yaml", "first")
    clone = only_branch(scale, tmp_path, monkeypatch)
    rows, said = table(capsys, "scale", "first")
    assert [row[2] for row in rows] == [""] * 5
    assert "the table has no metrics: scale.yaml is neither in the working tree nor" in said
    assert "type: kochi artifact fetch" in said
    git(clone, "fetch", "--quiet", "origin", "refs/kochi/code/*:refs/kochi/code/*")
    assert table(capsys, "scale.yaml", "first")[0] == expected
    assert run(["plot", "scale", "first", "-o", "figures"]) == 0
    made = sorted(path.name for path in (clone / "figures").iterdir())
    assert made == ["first,words.png", "first,words.svg", "first.png", "first.svg"]
    assert "time (ms)" in (clone / "figures/first.svg").read_text()


def test_the_experiment_of_a_run_with_other_code_is_in_its_own_snapshot(
    scale: Project, capsys: Any
) -> None:
    own = code_of(scale)
    (scale.top / "scale.yaml").unlink()
    git(scale.top, "commit", "--quiet", "--all", "--message=without")
    other = {"snapshot": {"tree": code_of(scale)}, "configuration": {"tree": own}}
    parameters = {"n": "2", "threads": "2"}
    scale.run("time 3\nsays x\n", "scale.yaml", parameters=parameters, **other)
    scale.commit()
    rows, said = table(capsys, "scale.yaml", "first")
    assert rows[-1] == ["2", "2", "3"]
    assert "no metrics" not in said


def test_the_results_of_two_people_are_told_apart(scale: Project, capsys: Any) -> None:
    branch = git(scale.top, "rev-parse", BRANCH).strip()
    other = scale.top.parent / "of bob"
    git(scale.top, "worktree", "add", "--quiet", "-b", "kochi_artifacts_bob", str(other), BRANCH)
    git(other, "mv", "ada", "bob")
    git(other, "commit", "--quiet", "--message=of bob")
    rows, _ = table(capsys, "scale", "first")
    assert len(rows) == 8
    assert len(table(capsys, "scale", "first", "-m", "bob")[0]) == 4
    assert len(table(capsys, "scale", "first", "--at", branch)[0]) == 4
    assert run(["plot", "scale", "first", "--metric", "time", "-x", "n", "-o", "f.svg"]) == 0
    text = (scale.top / "f.svg").read_text()
    assert "published_as" in text
    assert "bob" in text


def test_options_change_the_plot(scale: Project, capsys: Any) -> None:
    words = ("plot", "scale.yaml", "first", "--metric", "time", "-o", "one.svg")
    assert run([*words, "--panels", "threads", "-x", "n", "-w", "threads=2", "--scale", "log"]) == 0
    text = (scale.top / "one.svg").read_text()
    assert "The same everywhere: threads=2." in text
    # Of a metric that the file does not draw.
    assert run(["plot", "scale.yaml", "first", "--metric", "run_seconds"]) == 0
    # Where they are no source code.
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Wrote results/plots/scale/first,run_seconds.png and "
        "results/plots/scale/first,run_seconds.svg"
    )
    assert run(["plot", "scale", "first", "--metric", "time", "-o", "one.pdf"]) == 0
    assert (scale.top / "one.pdf").read_bytes().startswith(b"%PDF")
    assert not [name for name in os.listdir(scale.top) if name.startswith(".") and name != ".git"]


def test_noise_is_told_below_a_page_and_not_on_the_terminal(scale: Project, capsys: Any) -> None:
    noise = {"warnings": ["load: other processes used 1.9 CPUs"], "other_cpus": 1.9}
    parameters = {"n": "1", "threads": "1"}
    scale.run("time 3\nsays hello\n", "scale.yaml", parameters=parameters, noise=noise)
    scale.commit()
    assert run(["table", "scale", "first", "-o", "t.md"]) == 0
    assert "quiet" not in capsys.readouterr().err
    said = "(other processes are not known for 3): load in 1 of 1 (other processes used 1.9 CPUs)"
    assert f"The node was not quiet in 1 of 4 runs {said}" in (scale.top / "t.md").read_text()


def test_the_table_is_written_as_csv_markdown_or_json(scale: Project, capsys: Any) -> None:
    for name in ("t.csv", "t.md"):
        assert run(["table", "scale", "first", "-o", name]) == 0
    assert (scale.top / "t.csv").read_text().startswith("n,threads,duplicate,run_")
    text = (scale.top / "t.md").read_text()
    assert " time median (ms) |" in text
    assert "1 results of other points than those of the batch are left out." in text
    capsys.readouterr()
    assert run(["table", "scale", "first", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["time"] for row in told["runs"]] == [10, 5, 20, 11]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("table scale first --at kochi_artifacts_bda", "did you mean 'kochi_artifacts_ada'?"),
        ("table scale first --at main", "commit 'main' has no result of batch 'first' of scale"),
        ("table scale frist", "no result of experiment 'scale' is of batch 'frist', did you mean"),
        ("table sclae.yaml first", "no result is of experiment 'sclae.yaml', known: scale"),
        ("table scale first -m x", "is of machine 'x', known: ada, local"),
        ("table ../scale.yaml first", "../scale.yaml is outside of the repository"),
        ("table scale first -o t.txt", "t.txt: a file that ends in .csv or .md was expected"),
        ("table scale first --csv --json", "only one of --output, --csv and --json is possible"),
        ("plot scale first --metric tme", "scale first has no metric 'tme', did you mean 'time'?"),
        ("plot scale first -x thread", "has no parameter 'thread', did you mean 'threads'?"),
        ("plot scale first --lines duplicate", "has no parameter 'duplicate', known: n, threads"),
        ("plot scale first -w n=3", "no run has n = '3', known: 1, 2"),
        ("plot scale first -w n", "--where n: PARAM=VALUE was expected"),
        ("plot scale first -o f.png", "f.png is one file, and there are 2 figures"),
        ("plot scale first -o f.gif", "f.gif: a directory, or a file that ends in .png, .svg, .pd"),
        (
            "plot scale first -o scale.yaml/f.png --metric time",
            "scale.yaml/f.png cannot be written",
        ),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(
    scale: Project, capsys: Any, words: str, expected: str
) -> None:
    before = sorted(os.listdir(scale.top))
    assert expected in fails(capsys, *words.split())
    assert sorted(os.listdir(scale.top)) == before


def test_a_result_whose_record_was_edited_is_left_out(scale: Project, capsys: Any) -> None:
    parameters = {"n": "2", "threads": "1"}
    identity = scale.run("time 7\nsays hello\n", "scale.yaml", parameters=parameters)
    scale.commit()
    path = scale.record_path(identity)
    record = json.loads(git(scale.top, "show", f"{BRANCH}:{path}"))
    scale.edit({path: json.dumps({**record, "seconds": 9.0})})
    rows, said = table(capsys, "scale.yaml", "first")
    assert rows[2] == ["2", "1", "20"]  # that of the run before
    assert f"kochi: 1 record was edited after the run: {path}\n" in said
    assert "kochi: 1 result with an edited record is left out\n" in said


def test_a_wrong_file_is_named_with_its_line(scale: Project, capsys: Any) -> None:
    (scale.top / "scale.yaml").write_text("metrics: {t: (}\nrun: {script: x}\n")
    assert "kochi: scale.yaml:1: " in fails(capsys, "table", "scale.yaml", "first")


def test_a_record_that_names_a_file_elsewhere_reads_nothing_there(
    project: Project, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project.top.parent / "evil.yaml", SCALE)
    snapshot = {"tree": "../" * 5, "base": None, "dirty": False}
    project.run("time 1\n", "../evil.yaml", snapshot=snapshot)
    project.commit()
    monkeypatch.chdir(project.top)
    assert run(["table", "evil", "first"]) == 0
    assert "the table has no metrics: ../evil.yaml is neither" in capsys.readouterr().err


def of_two_machines(scale: Project, *spica: tuple[int, int, int]) -> None:
    """Results of `spica`, which are published under its name."""
    for n, threads, time in spica:
        parameters = {"n": str(n), "threads": str(threads)}
        scale.run(f"time {time}\n", "scale.yaml", parameters=parameters, machine="spica")
    scale.commit()
    scale_yaml = scale.top / "scale.yaml"
    named = "      first:\n        machines: [spica, local]\n"
    scale_yaml.write_text(SCALE.replace("      first:\n", named))


def test_the_results_of_several_machines_are_one_table_with_the_machine_as_a_column(
    scale: Project, capsys: Any
) -> None:
    of_two_machines(scale, (1, 1, 7), (1, 2, 3), (2, 1, 9))
    assert run(["table", "scale", "first", "--csv"]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert list(rows[0])[:4] == ["machine", "n", "threads", "duplicate"]
    assert [(row["machine"], row["time"]) for row in rows] == [
        *(("spica", "7"), ("spica", "3"), ("spica", "9")),
        *(("local", "10"), ("local", "5"), ("local", "20"), ("local", "11")),
    ]
    assert "1 of 4 runs of machine 'spica' have no result here" in said.err
    assert run(["table", "scale", "first"]) == 0
    assert "|   machine |" in capsys.readouterr().out
    assert run(["table", "scale", "first", "--csv", "-m", "spica"]) == 0
    assert "machine,n," not in capsys.readouterr().out
    # All are of one code.
    for machine, n, script in (("spica", "2", "sleep 0.4"), ("local", "1", "ls")):
        made = {"machine": machine, "run_script": script}
        scale.run("time 6\n", "scale.yaml", parameters={"n": n, "threads": "2"}, **made)
    scale.commit()
    found, remarks = table(capsys, "scale", "first")
    assert [row for row in found if row[2] == "6"] == [["1", "2", "6"]]
    assert "1 result of other code is left out of this table (another run script)" in remarks


def test_machines_are_lines_of_the_plot_unless_it_says_otherwise(
    scale: Project, capsys: Any
) -> None:
    of_two_machines(scale, (1, 1, 7), (1, 2, 3), (2, 1, 9), (2, 2, 5))
    assert run(["plot", "scale", "first", "--metric", "time", "-o", "f.svg"]) == 0
    text = (scale.top / "f.svg").read_text()
    assert "machine" in text
    assert "spica" in text
    scale_yaml = scale.top / "scale.yaml"
    scale_yaml.write_text(scale_yaml.read_text().replace("x: threads}", "x: n, panels: machine}"))
    assert run(["plot", "scale", "first", "--metric", "time", "-o", "g.svg"]) == 0
    assert "machine=spica" not in text
    assert "machine=spica" in (scale.top / "g.svg").read_text()
    scale_yaml.write_text(scale_yaml.read_text().replace("machines: [spica, local]", "queue: q"))
    failed = fails(capsys, "plot", "scale", "first")
    assert "there is no parameter 'machine'" in failed


def test_a_machine_of_the_batch_without_a_result_is_said_and_others_are_left_out(
    scale: Project, capsys: Any
) -> None:
    of_two_machines(scale, (1, 1, 7))
    scale_yaml = scale.top / "scale.yaml"
    text = scale_yaml.read_text()
    scale_yaml.write_text(text.replace("[spica, local]", "[spica, vega]"))
    rows, said = table(capsys, "scale", "first")
    assert rows == [["1", "1", "7"]]
    assert "5 results of machine 'local', which the batch does not name, are left out" in said
    assert "4 of 4 runs of machine 'vega' have no result here" in said
    assert len(table(capsys, "scale", "first", "-m", "local")[0]) == 4
