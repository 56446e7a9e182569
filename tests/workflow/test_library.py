"""The rules of a project under Snakemake: names, freezing, isolation, artifacts, failures."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY, git, printed, run, start, wait_until, write

from snakemake_kochi.cpu_lists import format_cpus

from .conftest import results as results_of


def base_prefix(project: Any) -> Path:
    root = Path(os.environ["KOCHI_ROOT"])
    (link,) = root.glob("projects/*/installs/local/base/one/current")
    return link.resolve() / "prefix"


def test_the_targets_have_names_a_person_would_guess(project: Any) -> None:
    said = project.snakemake("--list-target-rules")
    assert set(said.split()) >= {
        "experiments",
        "sum_first",
        "collect_sum_first",
        "install_base_one",
        "install_base_other",
        "install_tool_fast",
        "install_tool_slow",
    }


def test_two_dependencies_with_the_same_recipe_are_both_installed(project: Any) -> None:
    recipe = "{recipes: [{name: one, script: 'true'}]}"
    project.edit("kochi.yaml", "dependencies:", f"dependencies:\n  a: {recipe}\n  b: {recipe}")
    project.edit(
        "sum.yaml", "depends: [", "depends: [{name: a, recipe: one}, {name: b, recipe: one}, "
    )
    said = project.snakemake("-n", "sum_first")
    assert "rule install_a_one:" in said
    assert "rule install_b_one:" in said


@pytest.mark.compatibility
def test_a_batch_runs_through_workers_into_tables_and_a_branch(project: Any) -> None:
    before = git(project.directory, "log", "--oneline")
    write(project.directory / "notes.txt", "noted\n")
    write(project.directory / ".env", "TOKEN=hunter2\n")
    project.edit("kochi.yaml", "{CFLAGS: -O1}", "{CFLAGS: -O1, API_TOKEN: hunter2}")
    project.snakemake("sum_first", executor="kochi")
    results = project.directory / "results/local"
    assert printed((results / "sum/first/2_0.log").read_text()) == "total 20\n"
    assert (results / "sum/first/2_0.txt").read_text() == "code\nfast\n"
    rows = (results / "sum/first.csv").read_text().splitlines()
    assert rows[0] == "debug,n,duplicate,run_machine,run_node,run_started,run_seconds,total"
    assert [row.split(",")[-1] for row in rows[1:]] == ["10", "20"]
    assert "|   n |   (runs) |" in (results / "sum/first.md").read_text()
    assert (results / "sum/first.png").read_bytes().startswith(b"\x89PNG")

    branch = "kochi_artifacts_local"
    files = git(project.directory, "ls-tree", "-r", "--name-only", branch).splitlines()
    kept = sorted(file for file in files if "/.kochi/" not in file)
    assert kept == [
        f"local/sum/first/{n}_0.{ending}" for n in (1, 2) for ending in ("json", "log", "txt")
    ]
    records = [
        json.loads(git(project.directory, "show", f"{branch}:{file}"))
        for file in files
        if "/.kochi/records/" in file
    ]
    assert sorted(record["parameters"]["n"] for record in records) == ["1", "2"]
    for record in records:
        assert record["worker"] == "0"
        assert record["attempt"] == "1"
        assert record["exit_status"] == 0
        assert record["snapshot"]["base"] == git(project.directory, "rev-parse", "HEAD").strip()
        base, tool = record["recipes"]
        assert (base["dependency"], tool["dependency"]) == ("base", "tool")
        assert base["script"].startswith("mkdir -p $KOCHI_INSTALL_PREFIX")
        assert base["envs"] == {"CFLAGS": "-O1", "API_TOKEN": "(not told)"}
        assert record["build_parameters"] == {"debug": "0"}
        assert record["run_parameters"] == {"n": record["parameters"]["n"]}
        assert "cp code.txt built.txt" in record["build_script"]
        assert "cat built.txt" in record["run_script"]
        diff = record["snapshot"]["diff"]
        assert "+++ b/notes.txt\n@@ -0,0 +1 @@\n+noted\n" in diff
        assert diff.endswith(
            "[left out, as their names suggest secrets: .env]\n"
            "[lines left out, as they suggest secrets: 1]\n"
        )
    assert git(project.directory, "log", "--oneline") == before


def test_both_executors_make_the_same_files(project: Any, tmp_path: Path) -> None:
    def made() -> dict[str, str]:
        top = project.directory / "results/local/sum"
        return {
            # The header of what was printed has the number of the job.
            str(path.relative_to(top)): path.read_text().partition(") started.")[2]
            or path.read_text()
            for path in sorted(top.rglob("*.[lt]*"))
            if path.suffix in (".log", ".txt")
        }

    project.snakemake(*results_of(1, 2), executor="kochi")
    first = made()
    project.snakemake("-F", *results_of(1, 2), executor="local")
    assert made() == first
    assert len(first) == 4


def test_edits_made_after_the_start_do_not_reach_a_run(project: Any, tmp_path: Path) -> None:
    go = tmp_path / "go"
    project.edit(
        "kochi.yaml",
        "mkdir -p",
        f"touch '{go}.waits'; until [ -e '{go}' ]; do sleep 0.1; done; mkdir -p",
    )
    command = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "5")
    process = start(*command, *results_of(1, 2), cwd=project.directory)
    try:
        wait_until(lambda: Path(f"{go}.waits").exists() or process.poll() is not None)
        assert process.poll() is None
        (project.directory / "code.txt").write_text("edited meanwhile\n")
        (project.directory / "sum.yaml").write_text("run: [this is no experiment any more")
        (project.directory / "kochi.yaml").unlink()
        go.touch()
        output, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
    print(output)
    assert process.returncode == 0
    result = project.directory / "results/local/sum/first/1_0.txt"
    assert result.read_text() == "code\nfast\n"


def test_a_run_works_in_a_private_copy(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "cat built.txt", "echo run >> code.txt; pwd > where; cat built.txt")
    project.snakemake(*results_of(1, 2), executor="kochi")
    assert (project.directory / "code.txt").read_text() == "code\n"
    assert not (project.directory / "where").exists()
    left = list(Path(os.environ["KOCHI_ROOT"]).glob("projects/*/workspaces/local/*"))
    assert left == []
    # The build is not touched by what a run does to its copy.
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    project.snakemake(*results_of(3))
    assert (project.directory / "results/local/sum/first/3_0.txt").read_text() == "code\nfast\n"


@pytest.mark.parametrize(
    "executor", [pytest.param("local", marks=pytest.mark.compatibility), "kochi"]
)
def test_a_run_script_sees_the_environment_of_a_kochi_job(
    finished_project: Any, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = finished_project
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    project.edit("sum.yaml", "default_name: sum", "default_name: sum_$n")
    project.edit("sum.yaml", 'echo "total', 'env | grep -E "^KOCHI_|_THREADS"; echo "total')
    project.snakemake(*results_of(2), executor=executor)
    log = (project.directory / "results/local/sum/first/2_0.log").read_text()
    seen = dict(line.split("=", 1) for line in printed(log).splitlines() if "=" in line)
    root = os.environ["KOCHI_ROOT"]
    assert seen.pop("KOCHI_INSTALL_PREFIX_BASE").startswith(f"{root}/projects/")
    assert seen.pop("KOCHI_INSTALL_PREFIX_TOOL").endswith("/prefix")
    queue, job = seen.pop("KOCHI_QUEUE"), seen.pop("KOCHI_JOB_ID")
    assert queue.startswith("run-") if executor == "kochi" else (queue, job) == ("", "0")
    assert seen.pop("KOCHI_RUNNER") == ("phase" if executor == "kochi" else "")
    assert len(seen.pop("KOCHI_ATTEMPT_NONCE")) == (16 if executor == "kochi" else 0)
    if executor == "kochi":
        # What is there and not what one core stands for: how many threads a run has, only its own
        # parameters tell.
        assert seen.pop("KOCHI_CPUS") == format_cpus(os.sched_getaffinity(0))
        assert seen.pop("KOCHI_GPUS") == ""
    assert seen.pop("KOCHI_NODE_LOCK") == os.environ["KOCHI_NODE_LOCK"]
    assert seen.pop("KOCHI_NODE_LOCK_HELD") == platform.node()
    assert seen.pop("KOCHI_HOSTFILE").startswith(f"{root}/projects/")
    assert seen == {
        "KOCHI_NODELIST": platform.node(),
        "KOCHI_LAUNCH": "",
        "KOCHI_ROOT": root,
        "KOCHI_SITE_CONF": "",
        "KOCHI_MACHINE": "local",
        "KOCHI_WORKER_ID": "0" if executor == "kochi" else "local",
        "KOCHI_JOB_NAME": "sum_2",
        "KOCHI_ATTEMPT": "1",
        "KOCHI_PARAM_N": "2",
        "KOCHI_RECIPE_BASE": "one",
        "KOCHI_RECIPE_TOOL": "fast",
        "KOCHI_COMMIT": git(project.directory, "rev-parse", "HEAD").strip(),
        "KOCHI_DIRTY": "true",
        # Snakemake's own OMP_NUM_THREADS=1 would make each parallel benchmark a sequential one.
        "MKL_NUM_THREADS": "3",
    }


def fingerprint(directory: Path) -> dict[str, str]:
    """All of a repository that a run must leave alone."""
    index = hashlib.sha256((directory / ".git/index").read_bytes()).hexdigest()
    refs = git(directory, "for-each-ref").splitlines()
    return {
        "status": git(directory, "--no-optional-locks", "status", "--porcelain"),
        "stash": git(directory, "stash", "list"),
        "config": git(directory, "config", "-l"),
        "head": git(directory, "rev-parse", "--symbolic-full-name", "HEAD"),
        "refs": "\n".join(line for line in refs if "kochi" not in line),
        "index": index,
    }


def test_a_project_in_a_difficult_state_runs_and_is_left_alone(
    project: Any, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "lib.h").write_text("int x;\n")
    git(library, "add", "-A")
    git(library, "commit", "-qm", "library")
    top = project.directory
    git(top, "submodule", "--quiet", "add", str(library), "sub")
    (top / "deleted.txt").write_text("soon gone\n")
    project.commit("with a submodule")
    git(tmp_path, "clone", "-q", "--bare", str(top), "remote.git")
    git(top, "remote", "add", "origin", str(tmp_path / "remote.git"))
    (top / "unpushed.txt").write_text("unpushed\n")
    project.commit("not pushed")
    (top / "a file with spaces.txt").write_text("spaces\n")
    (top / "latin1.txt").write_bytes("Grüße\n".encode("latin-1"))
    (top / "big.bin").write_bytes(os.urandom(5_000_000))
    (top / "deleted.txt").unlink()
    (top / "sub" / "lib.h").write_text("int y;\n")
    (top / "staged.txt").write_text("staged\n")
    git(top, "add", "staged.txt")
    (top / "staged.txt").write_text("and edited\n")
    (top / "stashed.txt").write_text("stashed\n")
    git(top, "add", "stashed.txt")
    git(top, "stash", "push", "-q", "--", "stashed.txt")
    project.edit(
        "sum.yaml",
        "cat built.txt",
        "ls -1 sub > seen; cat sub/lib.h staged.txt >> seen; "
        "wc -c < big.bin >> seen; cat 'a file with spaces.txt' unpushed.txt >> seen; "
        "test ! -e deleted.txt; cat built.txt",
    )
    project.edit("sum.yaml", "src: out.txt", "src: seen")
    before = fingerprint(top)
    project.snakemake(*results_of(1), executor="kochi")
    assert fingerprint(top) == before
    assert (top / "results/local/sum/first/1_0.txt").read_text() == (
        "lib.h\nint y;\nand edited\n5000000\nspaces\nunpushed\n"
    )


def test_values_that_are_no_file_names_stay_apart_and_reach_the_script(project: Any) -> None:
    values = ["a b", "a/b", "", "1.10", "x=y", "$HOME", "ü", "a%2Fb", "..", "'q'", "{n}", "*"]
    project.edit("sum.yaml", "n: [1, 2]", f"n: {json.dumps(values).replace('$', '$$')}")
    project.edit("sum.yaml", 'echo "total $((KOCHI_PARAM_N * 10))"', 'printf "%s" "$KOCHI_PARAM_N"')
    project.edit("sum.yaml", "metrics: {total: 'total ([0-9]+)'}", "")
    project.snakemake("sum_first")
    seen = [
        printed(path.read_text()).removesuffix("\n")
        for path in (project.directory / "results/local/sum/first").glob("*.log")
    ]
    assert sorted(seen) == sorted(values)


@pytest.mark.compatibility
def test_artifacts_may_name_different_parameters(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2], double: '`$n * 2`'")
    project.edit(
        "sum.yaml",
        "dest: sum/${batch_name}/${n}_${duplicate}.txt",
        "dest: sum/${batch_name}/double_${double}.txt",
    )
    project.snakemake("sum_first", executor="kochi")
    names = {path.name for path in (project.directory / "results/local/sum/first").iterdir()}
    assert names >= {"1_0.log", "2_0.log", "double_2.txt", "double_4.txt"}
    assert "Nothing to be done" in project.snakemake("sum_first")


def test_file_names_that_could_be_split_in_two_ways_still_find_their_point(
    finished_project: Any,
) -> None:
    project = finished_project
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 11], m: '`$n * 10 + 1`'")
    for ending in ("log", "txt", "json"):
        project.edit("sum.yaml", "/${n}_${duplicate}." + ending, "/${n}${m}${duplicate}." + ending)
    project.snakemake("sum_first")
    results = project.directory / "results/local/sum/first"
    assert printed((results / "1110.log").read_text()) == "total 10\n"
    assert printed((results / "111110.log").read_text()) == "total 110\n"


@pytest.mark.compatibility
def test_scripts_and_names_may_hold_what_snakemake_would_take_for_a_wildcard(project: Any) -> None:
    project.edit("sum.yaml", "cp code.txt", 'echo "${HOME:+home} {n} {" > braces; cp code.txt')
    project.edit(
        "sum.yaml", "cat built.txt", 'echo "${KOCHI_PARAM_N} {n}" >> out_1.txt; cat braces'
    )
    project.edit("sum.yaml", "src: out.txt", "src: out_${debug}.txt")
    project.edit("sum.yaml", "debug: 0", "debug: 1")
    project.edit("sum.yaml", "'total ([0-9]+)'", "'total ([0-9]{2})'")
    project.edit(
        "kochi.yaml",
        "mkdir -p $K",
        "mkdir -p ${K}; echo {n}; mkdir -p $K".replace("${K}", "${HOME}"),
    )
    project.edit("kochi.yaml", "LEVEL: fast}", 'LEVEL: fast}, activate_script: "export X=${HOME}"')
    (project.directory / "sum.yaml").rename(project.directory / "my {sum}.yaml")
    project.snakemake("my__sum__first")
    result = project.directory / "results/local/sum/first/2_0.txt"
    assert result.read_text() == "2 {n}\n"
    assert "Nothing to be done" in project.snakemake("my__sum__first")


def test_a_parameter_may_have_any_name(finished_project: Any) -> None:
    project = finished_project
    names = ["n-workers", "count", "keys", "seconds", "node", "_names", "class"]
    first, *others = names
    one_each = ", ".join(f"{name}: [{number}]" for number, name in enumerate(others, 2))
    variables = [f"KOCHI_PARAM_{name.upper().replace('-', '_')}" for name in names]
    text = (project.directory / "sum.yaml").read_text()
    text = text.replace("n: [1, 2]", f"{first}: [1, 11], {one_each}")
    text = text.replace("n: 1,", f"{', '.join(f'{name}: 0' for name in names)},")
    text = text.replace("${n}", "".join(f"${{{name}}}" for name in names))
    text = text.replace("[n]", f"[{', '.join(names)}]")
    text = text.replace("$((KOCHI_PARAM_N * 10))", " ".join(f"${name}" for name in variables))
    (project.directory / "sum.yaml").write_text(text.replace('PARAM_N"', 'PARAM_COUNT"'))
    project.snakemake("sum_first")
    results = project.directory / "results/local/sum"
    assert printed((results / "first/11234567_0.log").read_text()) == "total 11 2 3 4 5 6 7\n"
    header, *rows = (results / "first.csv").read_text().splitlines()
    columns = [header.split(",").index(name) for name in names]
    assert [[row.split(",")[column] for column in columns] for row in rows] == [
        ["1", "2", "3", "4", "5", "6", "7"],
        ["11", "2", "3", "4", "5", "6", "7"],
    ]


def test_values_stay_the_texts_they_are_in_the_table(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "n: [1, 2]", "n: [1.10, 1.1, 007]")
    project.edit("sum.yaml", "$((KOCHI_PARAM_N * 10))", "10")
    project.snakemake("sum_first")
    table = (project.directory / "results/local/sum/first.csv").read_text()
    assert [row.split(",")[1] for row in table.splitlines()[1:]] == ["1.10", "1.1", "007"]
    summary = (project.directory / "results/local/sum/first.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")] for line in summary.splitlines()]
    assert [row[1:3] for row in cells[4:7]] == [["1.10", "1"], ["1.1", "1"], ["007", "1"]]


def test_long_and_repetitive_values_make_no_impossible_file_names(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "debug: 0", f"debug: {'-fsome-flag ' * 40}")
    project.edit("sum.yaml", "n: [1, 2]", "n: ['1000000000000000000000000000', 2]")
    project.edit("sum.yaml", "$((KOCHI_PARAM_N * 10))", "$KOCHI_PARAM_N")
    project.snakemake("sum_first")
    log = project.directory / "results/local/sum/first/1000000000000000000000000000_0.log"
    assert printed(log.read_text()) == "total 1000000000000000000000000000\n"
    assert "Nothing to be done" in project.snakemake("sum_first")


def test_a_batch_without_artifacts_runs_each_point_once(project: Any) -> None:
    text = (project.directory / "sum.yaml").read_text()
    start, end = text.index("    artifacts:"), text.index("build:")
    text = text[:start] + text[end:]
    (project.directory / "sum.yaml").write_text(
        text.replace("metrics: {total: 'total ([0-9]+)'}", "")
    )
    project.snakemake("sum_first")
    assert "run sum 2" in project.take_ran()
    assert "Nothing to be done" in project.snakemake("sum_first")


def test_a_point_that_is_not_in_the_grid_is_named(project: Any) -> None:
    failed = project.try_snakemake("results/local/sum/first/9_0.log")
    assert failed.returncode != 0
    assert "n=9 is not in the batch" in failed.stdout
    assert "known: 1, 2" in failed.stdout


def test_a_missing_artifact_file_fails_the_run_and_keeps_only_a_record_of_it(
    project: Any,
) -> None:
    project.edit("sum.yaml", "src: out.txt", "src: never.txt")
    failed = project.try_snakemake("sum_first", executor="kochi")
    assert failed.returncode != 0
    assert "the run left no file never.txt" in failed.stdout
    assert not (project.directory / "results/local/sum/first/1_0.log").exists()
    kept = git(project.directory, "ls-tree", "-r", "--name-only", "kochi_artifacts_local")
    records = [path for path in kept.splitlines() if "/.kochi/diffs/" not in path]
    assert len(records) == 2 and all(path.startswith("local/.kochi/failed/") for path in records)
    shown = git(project.directory, "show", f"kochi_artifacts_local:{records[0]}")
    assert "never.txt" in json.loads(shown)["reason"]


def test_a_line_that_fails_fails_the_run_unless_strict_is_off(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", 'echo "total', 'false\n    echo "total')
    failed = project.try_snakemake("sum_first")
    assert failed.returncode != 0
    assert "ended with exit status 1" in failed.stdout
    project.edit("sum.yaml", "run:\n  depend", "run:\n  strict: false\n  depend")
    project.snakemake(*results_of(1, 2))


def test_a_failed_installation_leaves_the_good_one_in_place(finished_project: Any) -> None:
    good = finished_project.snakemake("install_tool_fast")
    assert "Nothing to be done" in good
    (link,) = Path(os.environ["KOCHI_ROOT"]).glob("projects/*/installs/local/tool/fast/current")
    before = link.resolve()
    finished_project.edit("kochi.yaml", 'echo "$LEVEL" >', 'false; echo "$LEVEL" >')
    failed = finished_project.try_snakemake("install_tool_fast")
    assert failed.returncode != 0
    assert "tool:fast: the install script ended with exit status 1" in failed.stdout
    assert link.resolve() == before
    assert (before / "prefix/level").read_text() == "fast\n"
    finished_project.edit("kochi.yaml", "false; ", "")
    finished_project.snakemake("sum_first")
    assert "build sum 0" not in finished_project.take_ran()


def test_a_mirror_is_installed_as_it_stands(project: Any, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    git(mirror, "init", "-q")
    (mirror / "level").write_text("committed\n")
    git(mirror, "add", "-A")
    git(mirror, "commit", "-qm", "x")
    (mirror / "level").write_text("uncommitted\n")
    project.edit(
        "kochi.yaml",
        "- {name: slow, envs: {LEVEL: slow}}",
        "- {name: slow, mirror: true, mirror_dir: ../mirror, script: cp level "
        "$KOCHI_INSTALL_PREFIX/level}",
    )
    project.edit("sum.yaml", "recipe: fast", "recipe: slow")
    project.snakemake(*results_of(1, 2))
    result = project.directory / "results/local/sum/first/1_0.txt"
    assert result.read_text() == "code\nuncommitted\n"
    git(mirror, "commit", "-aqm", "the same, committed")
    assert "Nothing to be done" in project.snakemake(*results_of(1, 2))
    (mirror / "level").write_text("edited\n")
    project.snakemake(*results_of(1, 2))
    assert result.read_text() == "code\nedited\n"


def test_a_mirror_keeps_its_results_directory(project: Any, tmp_path: Path) -> None:
    write(tmp_path / "mirror/results/tables.c", "int t;\n")
    project.edit(
        "kochi.yaml",
        "- {name: slow, envs: {LEVEL: slow}}",
        "- {name: slow, mirror: true, mirror_dir: ../mirror, script: test -e results/tables.c}",
    )
    project.snakemake("install_tool_slow")


def test_a_run_in_a_subdirectory_does_not_take_its_outputs_for_code(project: Any) -> None:
    below = project.directory / "deep/er"
    below.mkdir(parents=True)
    (project.directory / ".gitignore").unlink()
    snakefile = str(project.directory / "Snakefile")
    command = (sys.executable, "-m", "snakemake", "--executor", "local", "--cores", "2")
    assert run(*command, "-s", snakefile, "sum_first", cwd=below).returncode == 0
    assert (below / "results/local/sum/first.md").exists()
    again = run(*command, "-s", snakefile, "sum_first", cwd=below)
    assert "Nothing to be done" in again.stdout


def test_a_root_inside_of_the_project_is_not_code(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_ROOT", str(project.directory / "root[1]"))
    project.edit("kochi.yaml", "mkdir -p $KOCHI_INSTALL_PREFIX", 'mkdir -p "$KOCHI_INSTALL_PREFIX"')
    project.edit("kochi.yaml", "> $KOCHI_INSTALL_PREFIX/level", '> "$KOCHI_INSTALL_PREFIX/level"')
    project.edit(
        "sum.yaml", "$KOCHI_INSTALL_PREFIX_TOOL/level", '"$KOCHI_INSTALL_PREFIX_TOOL/level"'
    )
    project.snakemake(*results_of(1, 2))
    assert "Nothing to be done" in project.snakemake(*results_of(1, 2))


def test_an_emptied_root_is_filled_again_when_something_is_to_be_run(
    finished_project: Any,
) -> None:
    shutil.rmtree(os.environ["KOCHI_ROOT"])
    assert "Nothing to be done" in finished_project.snakemake("sum_first")
    finished_project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    finished_project.snakemake(*results_of(3))
    ran = finished_project.take_ran()
    assert {"install base -O1", "build sum 0", "run sum 3"} <= set(ran)


def test_a_deleted_installation_is_made_again(finished_project: Any) -> None:
    shutil.rmtree(base_prefix(finished_project))
    finished_project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    finished_project.snakemake(*results_of(3))
    assert "install base -O1" in finished_project.take_ran()


def test_runs_are_alone_under_the_local_executor_too(finished_project: Any, tmp_path: Path) -> None:
    project = finished_project
    claim = f"mkdir '{tmp_path}/claimed'; sleep 0.3; rmdir '{tmp_path}/claimed'; echo"
    project.edit("sum.yaml", 'echo "total', f'{claim} "total')
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3, 4]")
    project.snakemake(*results_of(1, 2, 3, 4), executor="local")


def test_the_next_run_removes_the_files_of_a_killed_one(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", 'echo "total', 'test -e "$RAN.go" || kill -9 $PPID; echo "total')
    assert project.try_snakemake(*results_of(1, 2)).returncode != 0
    workspaces = list(Path(os.environ["KOCHI_ROOT"]).glob("projects/*/workspaces/local"))
    assert list(workspaces[0].iterdir())
    Path(f"{project.ran}.go").touch()
    project.snakemake(*results_of(1, 2))
    assert not list(workspaces[0].iterdir())


def test_rules_can_be_taken_under_other_names(project: Any) -> None:
    write(
        project.directory / "Snakefile",
        """
        from snakemake_kochi import snakefile

        module kochi:
            snakefile: snakefile()
            config: config

        rule mine:
            input: "results/local/sum/first.md"
            output: "copy.md"
            shell: "cp {input} {output}"

        use rule * from kochi as k_*
        """,
    )
    project.snakemake()
    assert (project.directory / "copy.md").exists()
    assert "k_sum_first" in project.snakemake("--list-target-rules")


@pytest.mark.compatibility
def test_the_report_holds_table_and_figures_with_captions(finished_project: Any) -> None:
    finished_project.snakemake("--report", "report.html", "sum_first")
    report = (finished_project.directory / "report.html").read_text()
    assert "first.png" in report
    assert "first.md" in report
    assert "A symbol is the median of the runs of a point" in report
    assert "the smallest and the largest run of each point" in report
    assert '"shows": "total"' in report


def test_plots_and_units_make_only_the_table_and_the_figures_again(finished_project: Any) -> None:
    project = finished_project
    project.edit(
        "sum.yaml", "{total: 'total", "{total: {unit: $bit, label: Total_x, pattern: 'total"
    )
    project.edit("sum.yaml", "([0-9]+)'}", "([0-9]+)'}, half: '([0-9]+)0'}")
    directory = project.directory / "results/local/sum"
    assert project.planned_rules("sum_first") == ["collect_sum_first", "sum_first"]
    project.snakemake("sum_first")
    assert "Total_x ($bit)" in (directory / "first.svg").read_text()
    assert (directory / "first,half.png").read_bytes().startswith(b"\x89PNG")
    plots = "plots: [{metric: half, scale: log}, {metric: word}]"
    project.edit("sum.yaml", "batches:\n", f"{plots}\nbatches:\n")
    project.edit("sum.yaml", "half: '", "word: '(tot.l)', half: '")
    said = project.snakemake("sum_first")
    assert (
        "kochi: sum.yaml: batch first: metric 'word' is no number in any run, but for example "
        "'total', so plot 'word' is empty\n"
    ) in said
    assert "half" in (directory / "first.svg").read_text()
    assert "no run has a number" in (directory / "first,word.svg").read_text()
    assert project.take_ran() == []
    assert "Nothing to be done" in project.snakemake("sum_first")
    # The branch alone has the same table and the same figures, byte for byte.
    command = (sys.executable, "-m", "snakemake_kochi.cli")
    again = run(*command, "plot", "sum.yaml", "first", "-o", "again", cwd=project.directory)
    assert again.returncode == 0
    for name in ("first.png", "first.svg", "first,word.png", "first,word.svg"):
        made = (project.directory / "again" / name).read_bytes()
        assert made == (directory / name).read_bytes()
    table = run(*command, "table", "sum.yaml", "first", "--csv", cwd=project.directory)
    assert table.stdout == (directory / "first.csv").read_text()


def test_the_rich_logger_shows_a_run(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "* 10", "* 100")
    project.snakemake("--logger", "rich", "--", *results_of(1), executor="kochi")
    assert project.take_ran() == ["run sum 1"]


def test_a_batch_names_its_queue_and_runs_without_a_worker_started_by_hand(
    finished_project: Any,
) -> None:
    project = finished_project
    project.edit("sum.yaml", "first:\n", "first:\n    queue: q_${batch_name}_${n}\n")
    project.edit("sum.yaml", "* 10", "* 100")  # a queue alone makes nothing stale
    project.snakemake(*results_of(2), executor="kochi")
    stats = json.loads((project.directory / "results/local/sum/first/2_0.json").read_text())
    assert stats["queue"] == "q_first_2"


def test_two_repositories_of_one_name_share_nothing(project: Any, tmp_path: Path) -> None:
    project.snakemake("install_base_one")
    twin = tmp_path / "elsewhere" / project.directory.name
    twin.parent.mkdir()
    git(tmp_path, "clone", "-q", str(project.directory), str(twin))
    project.take_ran()
    done = run(
        *(sys.executable, "-m", "snakemake", "--executor", "local", "--cores", "1"),
        "install_base_one",
        cwd=twin,
    )
    assert done.returncode == 0
    assert project.take_ran() == ["install base -O1"]


def test_everything_below_the_root_is_private(finished_project: Any) -> None:
    root = Path(os.environ["KOCHI_ROOT"])
    tops = [path for path in root.glob("projects/*/*") if path.is_dir()]
    assert tops
    for path in [root, *root.glob("*"), *root.glob("projects/*"), *tops]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.compatibility
def test_the_hand_written_example_runs(tmp_path: Path, snakemake: Any) -> None:
    run(str(REPOSITORY / "examples/prepare.sh"), str(tmp_path / "made"), cwd=tmp_path)
    directory = tmp_path / "made/handwritten"
    done = snakemake("--profile", str(REPOSITORY / "profiles/local"), cwd=directory)
    assert done.returncode == 0
    rows = (directory / "summary.csv").read_text().splitlines()
    assert sorted(row.split(",")[2] for row in rows[1:]) == sorted(["499500", "4999950000"] * 2)
    assert "Nothing to be done" in snakemake("-n", cwd=directory).stdout
    kochi = directory / "kochi.yaml"
    kochi.write_text(kochi.read_text().replace("-O3", "-O1"))
    assert "install_taskpool_release" in snakemake("-n", cwd=directory).stdout
