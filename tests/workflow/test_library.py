"""The rules of a project under Snakemake: names, freezing, isolation, artifacts, failures."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import REPOSITORY, git, printed, run, start, wait_until, write

from snakemake_kochi.cpu_lists import format_cpus

from .conftest import base_prefix
from .conftest import results as results_of


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
        assert record["worker"] == "1"
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
    changes = "echo run >> code.txt; echo run >> built.txt; pwd > where"
    project.edit("sum.yaml", "cat built.txt", f"cp built.txt was; {changes}; cat was")
    project.snakemake(*results_of(1, 2), executor="kochi")
    assert (project.directory / "code.txt").read_text() == "code\n"
    assert not (project.directory / "where").exists()
    left = list(Path(os.environ["KOCHI_ROOT"]).glob("projects/*/workspaces/local/*"))
    assert left == []
    # The build is not touched by what the first run does to its copy.
    for file in results_of(1, 2):
        assert (project.directory / file).read_text() == "code\nfast\n"


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
        assert len(seen.pop("KOCHI_WORKER_NONCE")) == 16
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
        "KOCHI_WORKER_ID": "1" if executor == "kochi" else "local",
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


VALUES = ["a b", "a/b", "", "1.10", "x=y", "$HOME", "ü", "a%2Fb", "..", "'q'", "{n}", "*"]
TEXTS = ["1.10", "1.1", "007"]
NAMES = ["n-workers", "count", "keys", "seconds", "node", "_names", "class"]
LONG = "1000000000000000000000000000"


def odd_experiment() -> str:
    """Batches whose parameters, values or artifacts are unusual, each in its own way."""
    defaults = ", ".join(f"{name}: {number}" for number, name in enumerate(NAMES, 1))
    variables = [f"$KOCHI_PARAM_{name.upper().replace('-', '_')}" for name in NAMES]
    stdout = "artifacts: [{type: stdout, dest: 'odd/${batch_name}/%s.log'}]"
    named = "".join(f"${{{name}}}" for name in NAMES)
    return f"""
    depends: [{{name: a, recipe: one}}, {{name: b, recipe: one}}]
    default_params: {{n: 0, debug: 0, {defaults}}}
    batches:
      values:
        params: {{n: {json.dumps(VALUES, ensure_ascii=False).replace("$", "$$")}}}
        {stdout % "${n}"}
      split:
        params: {{n: [1, 11], m: '`$n * 10 + 1`'}}
        {stdout % "${n}${m}${duplicate}"}
      long:
        params: {{n: ['{LONG}'], debug: {"-fsome-flag " * 40}}}
        {stdout % "${n}"}
      names:
        params: {{n-workers: [{", ".join(TEXTS)}]}}
        {stdout % named}
      bare:
        params: {{n: [bare]}}
        artifacts: []
    build:
      depend_params: [debug]
      script: test -e $KOCHI_INSTALL_PREFIX_A/a && test -e $KOCHI_INSTALL_PREFIX_B/b
    run:
      depend_params: [n, {", ".join(NAMES)}]
      script: |
        echo "run $KOCHI_PARAM_N" >> "$RAN"
        printf '%s\\n' "$KOCHI_PARAM_N" "{" ".join(variables)}"
    """


def test_unusual_parameters_values_and_artifacts(project: Any) -> None:
    recipes = [
        f"  {name}: {{recipes: [{{name: one, script: touch $KOCHI_INSTALL_PREFIX/{name}}}]}}\n"
        for name in "ab"
    ]
    project.edit("kochi.yaml", "dependencies:\n", f"dependencies:\n{''.join(recipes)}")
    write(project.directory / "odd.yaml", odd_experiment())
    batches = [f"odd_{batch}" for batch in ("values", "split", "long", "names", "bare")]
    project.snakemake(*batches)
    results = project.directory / "results/local/odd"
    usual = "1 2 3 4 5 6 7"

    # Values that are no file names stay apart and reach the script.
    seen = [printed(path.read_text()) for path in (results / "values").glob("*.log")]
    assert sorted(seen) == sorted(f"{value}\n{usual}\n" for value in VALUES)
    # File names that could be split in two ways still find their point.
    seen = [printed((results / f"split/{name}.log").read_text()) for name in ("1110", "111110")]
    assert seen == [f"1\n{usual}\n", f"11\n{usual}\n"]
    # A long and repetitive value makes no impossible file name.
    assert printed((results / f"long/{LONG}.log").read_text()) == f"{LONG}\n{usual}\n"
    # A parameter may have any name.
    assert printed((results / "names/007234567.log").read_text()) == "0\n007 2 3 4 5 6 7\n"
    header, *rows = (results / "names.csv").read_text().splitlines()
    columns = [header.split(",").index(name) for name in NAMES]
    cells = [[row.split(",")[column] for column in columns] for row in rows]
    # Values stay the texts they are in the table.
    assert cells == [[text, "2", "3", "4", "5", "6", "7"] for text in TEXTS]
    summary = (results / "names.md").read_text().splitlines()
    found = [[cell.strip() for cell in line.split("|")] for line in summary]
    assert [row[1:3] for row in found[4:7]] == [[text, "1"] for text in TEXTS]
    # A batch without artifacts runs each point once.
    assert project.take_ran().count("run bare") == 1
    assert "Nothing to be done" in project.snakemake(*batches)


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
    # Artifacts may name different parameters.
    project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2], double: '`$n * 2`'")
    project.edit("sum.yaml", "${n}_${duplicate}.txt", "double_${double}.txt")
    (project.directory / "sum.yaml").rename(project.directory / "my {sum}.yaml")
    project.snakemake("my__sum__first")
    results = project.directory / "results/local/sum/first"
    assert (results / "double_4.txt").read_text() == "2 {n}\n"
    assert {path.name for path in results.iterdir()} >= {"1_0.log", "2_0.log", "double_2.txt"}
    assert "Nothing to be done" in project.snakemake("my__sum__first")


def test_a_point_that_is_not_in_the_grid_is_named(project: Any) -> None:
    failed = project.try_snakemake("results/local/sum/first/9_0.log")
    assert failed.returncode != 0
    assert "n=9 is not in the batch" in failed.stdout
    assert "known: 1, 2" in failed.stdout


def test_a_failed_job_says_why_and_keeps_only_a_record_of_a_run(project: Any) -> None:
    """A file that is missing, a line that fails, with `strict` and without, and a program that is
    not there."""
    top = project.directory
    text = (top / "sum.yaml").read_text().replace("n: [1, 2]", "n: [1]")
    false = text.replace('echo "total', 'false\n    echo "total')
    for name, experiment in {
        "sum": text.replace("src: out.txt", "src: never.txt"),
        "strict": false,
        "lax": false.replace("run:\n", "run:\n  strict: false\n"),
        "compiler": text.replace("cp code.txt built.txt", "no-such-gcc -o built.txt code.txt"),
    }.items():
        write(top / f"{name}.yaml", experiment.replace("dest: sum/", f"dest: {name}/"))
    files = [f"results/local/{name}/first/1_0.txt" for name in ("sum", "strict", "lax", "compiler")]
    failed = project.try_snakemake("--keep-going", *files, executor="kochi")
    assert failed.returncode != 0
    for said in (
        "the run left no file never.txt",
        "strict.yaml: the run script of sum ended with exit status 1",
        "no-such-gcc: command not found",
        "compiler.yaml: the build script ended with exit status 127",
    ):
        assert said in failed.stdout
    assert "Traceback" not in failed.stdout
    made = [path.parts[-3] for path in (top / "results/local").glob("*/first/1_0.*")]
    assert set(made) == {"lax"}
    kept = git(top, "ls-tree", "-r", "--name-only", "kochi_artifacts_local").splitlines()
    records = [path for path in kept if path.startswith("local/.kochi/failed/")]
    shown = [json.loads(git(top, "show", f"kochi_artifacts_local:{path}")) for path in records]
    reasons = {record["experiment"]: record["reason"] for record in shown}
    assert len(shown) == 2 and "never.txt" in reasons["sum.yaml"]
    assert reasons["strict.yaml"] == "the run script ended with exit status 1"
    artifacts = {path.split("/")[1] for path in kept if "/.kochi/" not in path}
    assert artifacts == {"lax"}


def test_a_mirror_is_installed_as_it_stands(project: Any, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    git(mirror, "init", "-q")
    (mirror / "level").write_text("committed\n")
    git(mirror, "add", "-A")
    git(mirror, "commit", "-qm", "x")
    (mirror / "level").write_text("uncommitted\n")
    write(mirror / "results/tables.c", "int t;\n")  # code, as it is not in a project
    project.edit(
        "kochi.yaml",
        "- {name: slow, envs: {LEVEL: slow}}",
        "- {name: slow, mirror: true, mirror_dir: ../mirror, "
        "script: test -e results/tables.c && cp level $KOCHI_INSTALL_PREFIX/level}",
    )
    project.edit("sum.yaml", "recipe: fast", "recipe: slow")
    project.snakemake(*results_of(1))
    result = project.directory / "results/local/sum/first/1_0.txt"
    assert result.read_text() == "code\nuncommitted\n"
    git(mirror, "add", "-A")
    git(mirror, "commit", "-qm", "the same, committed")
    assert "Nothing to be done" in project.snakemake(*results_of(1))
    (mirror / "level").write_text("edited\n")
    project.snakemake(*results_of(1))
    assert result.read_text() == "code\nedited\n"


def test_outputs_in_a_subdirectory_and_a_root_inside_of_the_project_are_no_code(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_ROOT", str(project.directory / "root[1]"))
    project.edit("kochi.yaml", "mkdir -p $KOCHI_INSTALL_PREFIX", 'mkdir -p "$KOCHI_INSTALL_PREFIX"')
    project.edit("kochi.yaml", "> $KOCHI_INSTALL_PREFIX/level", '> "$KOCHI_INSTALL_PREFIX/level"')
    project.edit(
        "sum.yaml", "$KOCHI_INSTALL_PREFIX_TOOL/level", '"$KOCHI_INSTALL_PREFIX_TOOL/level"'
    )
    below = project.directory / "deep/er"
    below.mkdir(parents=True)
    (project.directory / ".gitignore").unlink()
    target = ("-s", str(project.directory / "Snakefile"), *results_of(1))
    inside = replace(project, directory=below)
    inside.snakemake(*target)
    assert (below / results_of(1)[0]).exists()
    assert "Nothing to be done" in inside.snakemake(*target)


def test_a_deleted_installation_is_made_again(finished_project: Any) -> None:
    shutil.rmtree(base_prefix(finished_project))
    finished_project.edit("sum.yaml", "n: [1, 2]", "n: [1, 2, 3]")
    finished_project.snakemake(*results_of(3))
    assert "install base -O1" in finished_project.take_ran()


def test_runs_are_alone_under_the_local_executor_too(finished_project: Any, tmp_path: Path) -> None:
    project = finished_project
    claim = f"mkdir '{tmp_path}/claimed'; sleep 0.3; rmdir '{tmp_path}/claimed'; echo"
    project.edit("sum.yaml", 'echo "total', f'{claim} "total')
    project.snakemake(*results_of(1, 2), executor="local")


def test_the_next_run_removes_the_files_of_a_killed_one(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", 'echo "total', 'test -e "$RAN.go" || kill -9 $PPID; echo "total')
    assert project.try_snakemake(*results_of(1)).returncode != 0
    workspaces = list(Path(os.environ["KOCHI_ROOT"]).glob("projects/*/workspaces/local"))
    assert list(workspaces[0].iterdir())
    Path(f"{project.ran}.go").touch()
    project.snakemake(*results_of(1))
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
    # Targets have names a person would guess.
    assert set(project.snakemake("--list-target-rules").split()) >= {
        "k_experiments",
        "k_sum_first",
        "k_collect_sum_first",
        "k_install_base_one",
        "k_install_base_other",
        "k_install_tool_fast",
        "k_install_tool_slow",
    }


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
    project.snakemake("sum_first")
    assert "Total_x ($bit)" in (directory / "first.svg").read_text()
    assert (directory / "first,half.png").read_bytes().startswith(b"\x89PNG")
    plots = "plots: [{metric: half, scale: log}, {metric: word}]"
    project.edit("sum.yaml", "batches:\n", f"{plots}\nbatches:\n")
    project.edit("sum.yaml", "half: '", "word: '(tot.l)', half: '")
    project.snakemake("sum_first")
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


def test_a_batch_names_its_queue_and_runs_without_a_worker_and_with_another_logger(
    finished_project: Any,
) -> None:
    project = finished_project
    project.edit("sum.yaml", "first:\n", "first:\n    queue: q_${batch_name}_${n}\n")
    project.edit("sum.yaml", "* 10", "* 100")  # a queue alone makes nothing stale
    project.snakemake("--logger", "rich", "--", *results_of(2), executor="kochi")
    assert project.take_ran() == ["run sum 2"]
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
