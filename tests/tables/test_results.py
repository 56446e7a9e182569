"""`snakemake_kochi.results`: the records and metrics of all runs as a table for pandas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas
import pytest
from support import git, write

import snakemake_kochi
from snakemake_kochi.artifacts.large import Store
from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.artifacts.record import RECORD_VERSION
from snakemake_kochi.errors import ConfigError, GitError, KochiError, NameNotFoundError
from snakemake_kochi.tables import records

from .conftest import BRANCH, FIB, Project


def clone_of(project: Project, tmp_path: Path) -> Path:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(project.top), str(clone))
    return clone


def test_a_row_per_run_with_typed_columns_and_the_exact_texts(project: Project) -> None:
    given = {"n": "1", "ratio": "1.10", "on": "true", "flags": "-O2", "note": ""}
    first = project.run(parameters=given)
    project.run(parameters={**given, "n": "007", "ratio": "2", "on": "false"})
    project.commit()
    frame = project.results()
    assert list(frame.columns) == [
        *("experiment", "batch", "rule", "name", "machine", "published_as", "duplicate"),
        *("outcome",),
        *("n", "ratio", "on", "flags", "note", "time", "word"),
        *("reason", "seconds", "environment_seconds", "started", "node", "user_seconds"),
        *("system_seconds", "peak_memory_mb", "exit_status", "cpus", "load", "cpu_model", "kernel"),
        *("allocation", "commit", "dirty", "tree", "rerun_of", "identity"),
        *("text.n", "text.ratio", "text.on", "text.flags", "text.note"),
    ]
    kinds = ("duplicate", "n", "ratio", "on", "time", "seconds", "dirty")
    assert [str(frame[name].dtype) for name in kinds] == [
        *("Int64", "Int64", "float64", "boolean", "float64", "float64", "boolean")
    ]
    assert frame["n"].tolist() == [1, 7]
    assert frame["text.n"].tolist() == ["1", "007"]
    assert frame["text.ratio"].tolist() == ["1.10", "2"]
    assert frame["on"].tolist() == [True, False]
    row = frame.iloc[0].to_dict()
    assert row["started"] == pandas.Timestamp("2026-01-01T00:00:01.5+00:00")
    expected: dict[str, object]
    expected = {"experiment": "fib", "batch": "first", "machine": "local", "published_as": "ada"}
    expected |= {"flags": "-O2", "note": "", "time": 1.5, "word": "hello", "identity": first}
    expected |= {"commit": "c" * 40, "tree": "a" * 40, "dirty": True, "node": "n1"}
    assert {key: row[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("texts", "dtype", "values"),
    [
        (["1", "-20"], "Int64", [1, -20]),
        (["1", ""], "Int64", [1, pandas.NA]),
        (["1e3", ".5"], "float64", [1000.0, 0.5]),
        (["1", "auto"], None, ["1", "auto"]),
        (["nan", "1"], None, ["nan", "1"]),
        (["1_000", "1"], None, ["1_000", "1"]),
        (["0x10", "1"], None, ["0x10", "1"]),
        # More digits than 64 bits have, as of a hash.
        (["12345678901234567890", "1"], "float64", [12345678901234567890.0, 1.0]),
        (["true", "false"], "boolean", [True, False]),
        (["true", "1"], None, ["true", "1"]),
        (["", ""], None, ["", ""]),
    ],
)
def test_a_column_is_typed_only_if_all_its_texts_have_that_type(
    project: Project, texts: list[str], dtype: str | None, values: list[Any]
) -> None:
    for text in texts:
        project.run(parameters={"x": text})
    project.commit()
    frame = project.results(metrics=False)
    if dtype is not None:
        assert str(frame["x"].dtype) == dtype
    assert frame["x"].tolist() == values
    assert frame["text.x"].tolist() == texts


def test_what_a_record_says_of_the_node_and_the_usage_is_typed(project: Project) -> None:
    usage = {"user_seconds": 1, "system_seconds": 0.5, "peak_memory_mb": 12}
    node = {"hardware": {"cpu_model": "EPYC"}, "system": {"load": 0.25, "kernel": "6.1"}}
    facts = {"compiler": {"command": "cc", "output": "cc 12\n", "exit_status": 0, "at": ""}}
    allocation = {"scheduler": "slurm", "id": "17_2"}
    project.run(
        usage=usage,
        **node,
        facts=facts,
        allocation=allocation,
        cpus="0-3",
        exit_status=0,
        environment={"OMP": "2"},
    )
    project.run(version=1)
    project.run(usage={"peak_memory_mb": "much"}, hardware=None)
    project.commit()
    frame = project.results(metrics=False)
    names = ("user_seconds", "system_seconds", "peak_memory_mb", "load", "exit_status")
    assert [str(frame[name].dtype) for name in names] == [
        *("float64", "float64", "Int64", "float64", "Int64")
    ]
    row = frame.iloc[0]
    assert [row[name] for name in names] == [1.0, 0.5, 12, 0.25, 0]
    names = ("cpu_model", "kernel", "allocation", "cpus", "fact.compiler", "environment.OMP")
    assert [row[name] for name in names] == ["EPYC", "6.1", "17_2", "0-3", "cc 12", "2"]
    assert frame["peak_memory_mb"].isna().tolist() == [False, True, True]
    # Only successes left a record in version 1.
    assert frame["outcome"].iloc[1] == "success"


def test_the_commit_of_each_dependency_is_a_column(project: Project) -> None:
    def recipe(name: str, source: dict[str, str]) -> dict[str, object]:
        return {"dependency": name, "recipe": "main", "digest": "d" * 32, "source": source}

    mirror = {"mirror": "/lib", "tree": "e" * 40, "base": ""}
    for commit in ("1" * 40, "2" * 40):
        source = {"git": "../library", "commit": commit}
        project.run(recipes=[recipe("library", source), recipe("mirrored", mirror)])
    project.run(recipes=[recipe("none", {})])
    project.run()
    project.commit()
    frame = project.results(metrics=False)
    assert frame["commit.library"].fillna("").tolist() == ["1" * 40, "2" * 40, "", ""]
    assert {"commit.mirrored", "commit.none"}.isdisjoint(frame.columns)


def test_outputs_of_own_rules_are_rows_with_their_rule(project: Project) -> None:
    project.run()
    project.run(experiment="", batch="", rule={"name": "count"}, parameters={"sample": "a"})
    project.commit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = project.results()
    assert frame["rule"].iloc[1] == "count"
    assert frame["sample"].iloc[1] == "a"
    assert frame["time"].isna().tolist() == [False, True]
    assert project.results(experiment="")["rule"].tolist() == ["count"]


def test_attempts_that_failed_are_rows_if_they_are_wanted(project: Project) -> None:
    project.run(outcome="success")
    project.run(outcome="failed", reason="the run script ended with exit status 3", artifacts=[])
    project.commit()
    assert project.results()["outcome"].tolist() == ["success"]
    frame = project.results(failed=True)
    assert frame["outcome"].tolist() == ["success", "failed"]
    assert frame["reason"].iloc[1] == "the run script ended with exit status 3"
    assert frame["time"].isna().tolist() == [False, True]


def test_names_that_two_columns_would_have_are_told_apart(project: Project) -> None:
    project.run(parameters={"seconds": "3", "n": "1"})
    # A parameter of one batch is a metric of another one.
    project.run(output="speed 7\n", batch="second", parameters={"time": "4"})
    project.commit()
    frame = project.results()
    assert "time" not in frame
    assert frame["seconds"].tolist() == [0.25, 0.25]
    assert frame["param.seconds"].tolist() == [3, pandas.NA]
    assert frame["text.seconds"].iloc[0] == "3"
    assert frame["param.time"].tolist() == [pandas.NA, 4]
    assert frame["metric.time"].iloc[0] == 1.5
    assert pandas.isna(frame["metric.time"].iloc[1])
    assert frame["speed"].iloc[1] == 7.0


def test_runs_are_selected_by_experiment_batch_machine_and_commit(project: Project) -> None:
    project.run()
    project.commit()
    before = git(project.top, "rev-parse", BRANCH).strip()
    project.run(batch="second")
    project.run(experiment="experiments/sort.yaml", machine="spica")
    project.commit()

    def count(**options: Any) -> int:
        return len(project.results(metrics=False, **options))

    assert count() == 3
    assert count(experiment="fib") == count(experiment="fib.yaml") == count(machine="local") == 2
    assert count(experiment="sort") == count(experiment="experiments/sort.yaml") == 1
    assert count(batch="first") == 2
    assert count(batch="first", experiment="fib") == 1
    assert count(machine="ada") == 3
    assert count(machine="spica") == 1
    assert count(at=before) == count(at=f"{BRANCH}~1") == 1
    for options, said in (
        ({"experiment": "fob"}, "no result is of experiment 'fob', did you mean 'fib'?"),
        ({"batch": "frist"}, "no result is of batch 'frist', did you mean 'first'?"),
        ({"machine": "adda"}, "no result is of machine 'adda', did you mean 'ada'?"),
        (
            {"experiment": "sort", "batch": "second"},
            "no result of experiment 'sort' is of batch 'second', known: first",
        ),
        (
            {"batch": "second", "machine": "spica"},
            "no result of batch 'second' is of machine 'spica', known: ada, local",
        ),
        ({"at": "kochi_artifacts_adda"}, "did you mean 'kochi_artifacts_ada'?"),
        ({"at": "--output=x"}, "there is no commit '--output=x'"),
        ({"at": "main"}, "commit 'main' has no records of results"),
    ):
        with pytest.raises(NameNotFoundError) as caught:
            count(**options)  # type: ignore[arg-type]
        assert said in str(caught.value)


def test_an_experiment_with_a_long_name_is_found(project: Project) -> None:
    name = "x" * 90
    write(project.top / f"{name}.yaml", FIB)
    for batch in ("first", "second"):
        label = f"{name}.{batch}"[:80]
        number = next(project.numbers)
        identity = f"{label}.20260101T000000.{number:012x}"
        project.run(experiment=f"{name}.yaml", batch=batch, identity=identity)
    project.commit()
    assert len(project.results(experiment=name, metrics=False)) == 2
    assert len(project.results(experiment=name, batch="second", metrics=False)) == 1


def test_metrics_are_those_of_the_working_tree_now_or_the_given_ones(project: Project) -> None:
    project.run(output="time 3\ntime 4\nspeed x\n", batch="second")
    project.commit()
    assert project.results()[["time", "speed"]].values.tolist() == [[4.0, "x"]]
    assert "speed" not in project.results(metrics=["time"])
    assert "time" not in project.results(metrics=False)
    frame = project.results(metrics={"first": r"\Atime (.+)"})
    assert frame["first"].tolist() == [3.0]
    assert "time" not in frame
    text = (project.top / "fib.yaml").read_text()
    (project.top / "fib.yaml").write_text(text.replace("speed (.+)", "time (3)"))
    assert project.results()["speed"].tolist() == [3.0]
    assert str(project.results(metrics={"none": "(nothing)"})["none"].dtype) == "float64"
    with pytest.raises(NameNotFoundError, match="no experiment has a metric 'tmie', did you mean"):
        project.results(metrics=["tmie"])
    for wrong in ("(", "no group", "(a)(b)"):
        with pytest.raises(ConfigError, match="metric 'm': "):
            project.results(metrics={"m": wrong})


def test_a_value_that_is_no_number_is_missing_and_named_in_a_warning(project: Project) -> None:
    for time in ("1.5", "1,502.1", "2"):
        project.run(output=f"time {time}\nsays {time[0]}_\n")
    project.commit()
    said = r"metric 'time': '1,502\.1' in ada/fib\.first/2\.log is no number, so its value is mis"
    with pytest.warns(UserWarning, match=said):
        frame = project.results()
    assert frame["time"].tolist() == pytest.approx([1.5, float("nan"), 2.0], nan_ok=True)
    # Most of its values are texts, so it is no number with misprints.
    assert frame["word"].tolist() == ["1_", "1_", "2_"]


def test_an_experiment_that_is_gone_or_wrong_has_no_metrics_and_a_warning(
    project: Project, tmp_path: Path
) -> None:
    write(tmp_path / "outside.yaml", "metrics: {time: 'time (.+)'}\nrun: {script: ls}\n")
    project.run()
    project.run(experiment="../outside.yaml")
    project.commit()
    with pytest.warns(UserWarning, match=r"no metrics are known: \.\./outside\.yaml"):
        frame = project.results()
    assert frame["time"].notna().tolist() == [True, False]
    (project.top / "fib.yaml").write_text("runn: {}\n")
    with pytest.warns(UserWarning, match=r"the metrics of fib\.yaml were left out: .*runn"):
        assert "time" not in project.results(experiment="fib")


def test_the_output_of_a_run_that_was_repeated_is_found_in_the_history(project: Project) -> None:
    for number in range(3):
        project.run(output=f"time {number}\n", dest="fib/same.log")
        project.commit()
    # The same output once more changes no file.
    project.run(output="time 2\n", dest="fib/same.log")
    project.commit()
    assert project.results()["time"].tolist() == [0.0, 1.0, 2.0, 2.0]
    assert project.results(at=f"{BRANCH}~2")["time"].tolist() == [0.0, 1.0]


def test_results_that_were_fetched_and_own_ones_are_one_table(
    project: Project, tmp_path: Path
) -> None:
    project.run()
    project.commit()
    clone = clone_of(project, tmp_path)
    frame = snakemake_kochi.results(clone)
    assert frame["published_as"].tolist() == ["ada"]
    choose_name(clone, "local", "bob")
    other = Project(clone, tmp_path / "other-root", project.numbers)
    other.run()
    other.commit()
    project.run()
    project.commit()
    git(clone, "fetch", "--quiet")
    frame = other.results()
    assert frame["published_as"].tolist() == ["ada", "bob", "ada"]
    # Two clones with different results under one name.
    git(clone, "branch", "--quiet", "--no-track", BRANCH, f"origin/{BRANCH}~1")
    (clone / ".git" / "kochi" / "published" / "local").write_text("ada\n")
    other.run()
    other.commit()
    assert other.results()["published_as"].tolist() == ["ada", "bob", "ada", "ada"]


def test_kochi_artifacts_alone_is_enough(project: Project, tmp_path: Path) -> None:
    project.run()
    project.commit()
    git(project.top, "branch", "kochi_artifacts", BRANCH)
    git(project.top, "branch", "--quiet", "-D", BRANCH)
    assert project.results()["time"].tolist() == [1.5]
    assert snakemake_kochi.results(clone_of(project, tmp_path))["time"].tolist() == [1.5]


def test_a_result_that_was_removed_from_the_branch_is_not_taken_from_an_older_one(
    project: Project, tmp_path: Path
) -> None:
    removed = project.run()
    project.run()
    project.commit()
    other = tmp_path / "bare"
    git(tmp_path, "clone", "--quiet", "--bare", str(project.top), str(other))
    git(project.top, "remote", "add", "origin", str(other))
    git(project.top, "fetch", "--quiet", "origin")
    project.edit({project.record_path(removed): None})
    assert removed not in project.results()["identity"].tolist()


def test_records_that_cannot_be_used_are_named_in_a_warning(project: Project) -> None:
    good, newer, damaged, odd, huge = (project.run() for _ in range(5))
    project.commit()
    paths = {name: project.record_path(name) for name in (newer, damaged, odd, huge)}
    record = json.loads(git(project.top, "show", f"{BRANCH}:{paths[newer]}"))
    project.edit(
        {
            paths[newer]: json.dumps({**record, "version": RECORD_VERSION + 1}),
            paths[damaged]: "{",
            paths[odd]: json.dumps({**record, "parameters": {"n": ["1"]}}),
            paths[huge]: json.dumps({**record, "exit_status": 10**400, "seconds": 10**400}),
        }
    )
    with pytest.warns(UserWarning) as caught:
        frame = project.results()
    assert frame["identity"].tolist() == [good, huge]
    assert frame["exit_status"].isna().all()
    assert frame["seconds"].isna().tolist() == [False, True]
    said = sorted(str(each.message) for each in caught)
    assert said[0].startswith("1 record was left out: written by a newer snakemake_kochi (format ")
    assert said[0].endswith(paths[newer])
    assert said[1].startswith("2 records were left out: not a record, or damaged: ")
    assert paths[damaged] in said[1] and paths[odd] in said[1]
    assert said[2].startswith("4 records were edited after the run: ")


def test_a_text_with_bytes_that_are_not_utf_8_stays_as_it_is(project: Project) -> None:
    project.run(parameters={"x": os.fsdecode(b"caf\xe9")})
    project.commit()
    frame = project.results()
    assert os.fsencode(frame["text.x"].iloc[0]) == b"caf\xe9"


def test_an_edited_record_leads_to_no_other_file(project: Project) -> None:
    identity = project.run()
    project.commit()
    path = project.record_path(identity)
    record = json.loads(git(project.top, "show", f"{BRANCH}:{path}"))
    for dest in ("../fib.yaml", "/etc/passwd", "a\nb", "--output=x"):
        record["artifacts"][0]["dest"] = dest
        project.edit({path: json.dumps(record)})
        with pytest.warns(UserWarning, match="the output of a run is not in this clone"):
            assert project.results()["time"].isna().all()
    record["output"] = {"start": "x"}
    record["artifacts"][0]["dest"] = f"{identity.rsplit('.', 2)[0]}/1.log"
    project.edit({path: json.dumps(record)})
    assert project.results()["time"].isna().all()


def test_an_output_that_is_a_large_file_is_read_if_it_is_here(project: Project) -> None:
    project.run()
    project.commit()
    path = "ada/fib.first/1.log"
    content = git(project.top, "show", f"{BRANCH}:{path}")
    store = Store.of(project.top)
    with (project.root.parent / "outputs" / "1").open("rb") as stream:
        pointer = store.put(stream)
    project.edit({path: pointer.text.decode()})
    assert content != pointer.text.decode()
    # Without the earlier commit, in which it was no large file.
    orphan = git(project.top, "commit-tree", f"{BRANCH}^{{tree}}", "-m", "x").strip()
    git(project.top, "branch", "--force", BRANCH, orphan)
    assert project.results()["time"].tolist() == [1.5]
    store.path(pointer).unlink()
    with pytest.warns(UserWarning, match="the output of a run is not in this clone"):
        assert project.results()["time"].isna().all()


def test_a_shallow_and_a_partial_clone_give_what_they_have(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        project.run(output=f"time {number}\n", dest="fib/same.log")
        project.commit()
    address = f"file://{project.top}"
    words = ("clone", "--quiet", "--depth=1", "--no-single-branch", address, "shallow")
    git(tmp_path, *words)
    with pytest.warns(UserWarning, match="the output of a run is not in this clone"):
        frame = snakemake_kochi.results(tmp_path / "shallow")
    assert frame["time"].isna().tolist() == [True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snakemake_kochi.results(tmp_path / "shallow", metrics=False)  # reads no output
    git(project.top, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", "--no-checkout", address, "partial")
    monkeypatch.setattr(records, "_PARSED", {})
    with pytest.warns(UserWarning, match="2 records were left out: not in this clone"):
        assert len(snakemake_kochi.results(tmp_path / "partial")) == 0


def test_a_wrong_place_is_told(project: Project, tmp_path: Path) -> None:
    with pytest.raises(KochiError, match="there is no such directory"):
        snakemake_kochi.results(tmp_path / "nowhere")
    (tmp_path / "plain").mkdir()
    with pytest.raises(GitError, match="is not in a git repository"):
        snakemake_kochi.results(tmp_path / "plain")
    with pytest.raises(GitError, match="has no artifact branch") as caught:
        project.results()
    assert str(caught.value).endswith("\nTo make results, type: kochi batch FILE.yaml BATCH")
    git(project.top, "remote", "add", "origin", str(tmp_path / "bare"))
    with pytest.raises(GitError, match=r"no artifact branch(.*\n)+.*type: kochi artifact fetch$"):
        project.results()


def test_a_branch_without_records_is_an_empty_table_with_its_columns(project: Project) -> None:
    git(project.top, "branch", BRANCH)
    frame = project.results()
    assert len(frame) == 0
    assert str(frame["started"].dtype).startswith("datetime64")


def test_it_reads_only(project: Project) -> None:
    project.run()
    project.commit()
    before = {path: path.stat().st_mtime_ns for path in project.top.rglob("*")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        project.results()
    assert {path: path.stat().st_mtime_ns for path in project.top.rglob("*")} == before


def test_to_import_the_package_imports_no_pandas() -> None:
    program = "import sys, snakemake_kochi; print([m for m in sys.modules if m in %r])"
    modules = ("pandas", "git", "typing", "snakemake_kochi.tables")
    done = subprocess.run(
        [sys.executable, "-c", program % (modules,)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'reslts'"):
        snakemake_kochi.reslts  # noqa: B018
