"""Outputs of rules that a user wrote, marked with artifact(): kept in the artifact branch."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import PYTHON_PATH, git, run, write

from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.artifacts.record import contradictions
from snakemake_kochi.errors import ConfigError
from snakemake_kochi.own_rules.watch import check_output

KOCHI = (sys.executable, "-P", "-m", "snakemake_kochi.cli")
BRANCH = "kochi_artifacts_local"
SNAKEFILE = """
    from snakemake_kochi import artifact

    rule all:
        input: "sum.txt", "tables/a.csv", "safe.txt"

    rule prepare:
        input: "data/{s}.txt"
        output: temp("prepared/{s}.txt")
        shell: "sort {input} > {output}"

    rule count:
        input: "prepared/{s}.txt", "big.txt"
        output: artifact("counts/{s}.csv"), side="side/{s}.log"
        params: "first", sep=",", api_token="hunter2", twice=lambda wildcards: wildcards.s * 2
        log: "logs/{s}.log"
        shell: "wc -l < {input[0]} > {output[0]}; touch {output.side} {log}"

    rule add:
        input: expand("counts/{s}.csv", s=["a", "b"])
        output: total=artifact("sum.txt")
        run:
            with open(output.total, "w") as file:
                file.write(str(sum(int(open(path).read()) for path in input)))

    rule tables:
        input: "counts/{s}.csv"
        output: artifact(multiext("tables/{s}", ".csv", ".md"))
        shell: "cp {input} {output[0]}; cp {input} {output[1]}"

    rule safe:
        output: artifact(protected("safe.txt"))
        shell: "echo safe > {output}"
    """
KEPT = ["counts/a.csv", "counts/b.csv", "safe.txt", "sum.txt", "tables/a.csv", "tables/a.md"]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class OwnProject:
    directory: Path

    def snakemake(self, *words: str, executor: str = "local", **env: str) -> str:
        """Run snakemake; return its output, and "failed" at the end if it failed."""
        cores = ["--cores", "2"] if executor == "local" else ["--jobs", "20"]
        command = (sys.executable, "-m", "snakemake", "--executor", executor, *cores, *words)
        done = run(*command, cwd=self.directory, env=env)
        assert "Traceback" not in done.stdout
        return done.stdout + ("failed" if done.returncode else "")

    def records(self) -> dict[str, dict[str, Any]]:
        """The records in the branch by their artifacts; there is one for each."""
        found: dict[str, dict[str, Any]] = {}
        for file in self.listed():
            if file.startswith("local/.kochi/records/"):
                record = json.loads(git(self.directory, "show", f"{BRANCH}:{file}"))
                key = " ".join(each["dest"] for each in record["artifacts"])
                assert key not in found
                found[key] = record
        return found

    def listed(self) -> list[str]:
        return git(self.directory, "ls-tree", "-r", "--name-only", BRANCH).splitlines()

    def kept(self) -> list[str]:
        return [f.removeprefix("local/") for f in self.listed() if "/.kochi/" not in f]

    def commits(self) -> int:
        return len(git(self.directory, "log", "--format=%H", BRANCH).split())


def make_project(base: Path, snakefile: str = SNAKEFILE) -> OwnProject:
    directory = base / "own"
    write(directory / "kochi.yaml", "dependencies: {}\n")
    write(directory / "Snakefile", snakefile)
    write(directory / "data" / "a.txt", "1\n")
    write(directory / "data" / "b.txt", "1\n2\n")
    with (directory / "big.txt").open("wb") as file:
        file.truncate(101 << 20)
    ignored = ["/big.txt", "/prepared/", "/side/", "/logs/", "/.snakemake/"]
    ignored += ["/counts/", "/tables/", "/sum.txt", "/safe.txt"]
    (directory / ".gitignore").write_text("\n".join(ignored) + "\n")
    git(directory, "init", "-q", "-b", "main")
    git(directory, "add", "-A")
    git(directory, "commit", "-qm", "start")
    choose_name(directory, "local", "local")
    return OwnProject(directory)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("local", marks=pytest.mark.compatibility),
        pytest.param("kochi", marks=pytest.mark.compatibility),
    ],
)
def counted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[OwnProject, str]]:
    """A project after its rules have run, and the executor that ran them."""
    base = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(base))
        environment.setenv("KOCHI_ROOT", str(base / "kochi-root"))
        environment.setenv("PYTHONPATH", PYTHON_PATH)
        project = make_project(base)
        assert not project.snakemake(executor=request.param).endswith("failed")
        yield project, request.param


@pytest.fixture
def root_of_counted(counted: tuple[OwnProject, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOCHI_ROOT", str(counted[0].directory.parent / "kochi-root"))


def test_marked_outputs_are_in_the_branch_with_a_record_of_each_job(
    counted: tuple[OwnProject, str],
) -> None:
    project, executor = counted
    assert project.kept() == KEPT
    for file in KEPT:
        assert git(project.directory, "show", f"{BRANCH}:local/{file}") == (
            (project.directory / file).read_text()
        )
    records = project.records()
    assert sorted(records) == [*KEPT[:4], "tables/a.csv tables/a.md"]
    for record in records.values():
        assert contradictions(record) == []
        assert record["node"] == platform.node()
        assert 0 <= record["seconds"] < 100
        assert bool(record["queue"]) == (executor == "kochi")
    runners = {records[name]["runner"] for name in ("counts/a.csv", "sum.txt")}
    assert runners == ({"shell", "zygote"} if executor == "kochi" else {""})


def test_a_record_says_rule_command_inputs_and_params_without_secrets(
    counted: tuple[OwnProject, str],
) -> None:
    project, _ = counted
    record = project.records()["counts/b.csv"]
    assert (record["name"], record["parameters"]) == ("count", {"s": "b"})
    rule = record["rule"]
    assert rule["command"] == "wc -l < prepared/b.txt > counts/b.csv; touch side/b.log logs/b.log"
    assert rule["params"] == {
        "sep": ",",
        "api_token": "[left out]",
        "twice": "bb",
        "0": "first",
    }
    assert rule["log"] == ["logs/b.log"]
    # The first was temporary and is gone; the second is too large to be read for every job.
    first, second = rule["inputs"]
    assert (first["path"], first["sha256"]) == ("prepared/b.txt", sha256("1\n2\n"))
    assert second == {"path": "big.txt", "size": 101 << 20}
    assert project.records()["sum.txt"]["rule"]["command"] == "run: Snakefile"
    (artifact,) = record["artifacts"]
    assert (artifact["dest"], artifact["size"], artifact["sha256"]) == (
        "counts/b.csv",
        2,
        sha256("2\n"),
    )


def test_the_code_of_the_run_is_published(counted: tuple[OwnProject, str]) -> None:
    project, _ = counted
    tree = project.records()["sum.txt"]["snapshot"]["tree"]
    shown = git(project.directory, "show", f"refs/kochi/code/{tree}:Snakefile")
    assert shown == (project.directory / "Snakefile").read_text()


@pytest.mark.usefixtures("root_of_counted")
def test_nothing_is_committed_twice_and_a_deleted_branch_comes_back(
    counted: tuple[OwnProject, str], tmp_path: Path
) -> None:
    project, executor = counted
    records, commits = project.records(), project.commits()
    project.snakemake(executor=executor)
    assert (project.records(), project.commits()) == (records, commits)
    if executor == "local":
        git(project.directory, "branch", "-D", BRANCH)
        collected = str(tmp_path / "collected")
        assert run(*KOCHI, "artifact", "init", collected, cwd=project.directory).returncode == 0
        for _ in range(2):
            assert run(*KOCHI, "artifact", "sync", cwd=project.directory).returncode == 0
            assert (project.records(), project.kept(), project.commits()) == (records, KEPT, 1)


@pytest.mark.usefixtures("root_of_counted")
def test_why_tells_the_story_of_an_own_output_here_and_in_a_clone(
    counted: tuple[OwnProject, str], tmp_path: Path
) -> None:
    project, executor = counted
    if executor == "kochi":
        return
    told = run(*KOCHI, "why", "counts/b.csv", cwd=project.directory).stdout
    assert "local/counts/b.csv: byte for byte as the run wrote it" in told
    assert "count, s=b" in told and "wc -l < prepared/b.txt" in told
    assert ", commit " in told
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(project.directory), str(clone))
    assert run(*KOCHI, "artifact", "fetch", cwd=clone).returncode == 0
    write(clone / "counts" / "b.csv", "3\n")
    done = run(*KOCHI, "why", "counts/b.csv", cwd=clone)
    assert done.returncode == 1
    assert "local/counts/b.csv: CHANGED since the run wrote it" in done.stdout
    done = run(*KOCHI, "why", "side/b.log", cwd=project.directory)
    assert done.returncode == 1 and "nor an output marked with artifact()" in done.stdout


# ---- killed

# Kills the main process at one step of keeping the first result.
KILLED = """
    import os
    if at := os.environ.get("KILL_AT"):
        import snakemake_kochi.phases.outputs
        from snakemake_kochi.own_rules import record

        def end(*_):
            os.kill(os.getpid(), 9)

        if at == "keep":
            record.keep = end
        elif at == "record":
            record.write_atomically = end
        elif at == "commit":
            snakemake_kochi.phases.outputs.commit_journal = end
    """


@pytest.mark.parametrize("step", ["keep", "record", "commit"])
def test_what_a_killed_process_left_is_kept_once_by_the_next_one(tmp_path: Path, step: str) -> None:
    project = make_project(tmp_path, KILLED + SNAKEFILE)
    project.snakemake("--nolock", "safe.txt", KILL_AT=step)
    assert (project.directory / "safe.txt").exists()
    branches = git(project.directory, "branch", "--list", BRANCH)
    assert branches == ""
    # Another target: its DAG does not have the job.
    project.snakemake("counts/a.csv")
    assert project.kept() == ["counts/a.csv", "safe.txt"]
    records = project.records()
    assert len(records) == 2
    assert not list((project.directory / ".snakemake/kochi/local/own-jobs").iterdir())
    if step == "keep":
        project.snakemake("counts/a.csv", "safe.txt")
        assert project.records() == records


def test_a_file_that_changed_after_its_job_is_named_and_not_kept(tmp_path: Path) -> None:
    project = make_project(tmp_path, KILLED + SNAKEFILE)
    project.snakemake("--nolock", "counts/a.csv", KILL_AT="keep")
    (project.directory / "counts/a.csv").write_text("a better number\n")
    said = project.snakemake("safe.txt")
    assert "kochi: not kept: counts/a.csv was changed after its job (rule count)" in said
    assert project.kept() == ["safe.txt"]


def test_what_cannot_be_journaled_now_is_committed_later(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    project.snakemake("counts/a.csv")
    (journal,) = Path(os.environ["KOCHI_ROOT"]).glob("projects/*/artifacts/local/journal")
    shutil.rmtree(journal)
    journal.write_text("in the way")
    said = project.snakemake("--quiet", "progress", "--", "counts/b.csv")
    assert "kochi: not kept yet: " in said
    assert project.kept() == ["counts/a.csv"]
    journal.unlink()
    project.snakemake("counts/b.csv")
    assert project.kept() == ["counts/a.csv", "counts/b.csv"]
    assert len(project.records()) == 2


# ---- refused


@pytest.mark.parametrize(
    ("path", "flags", "said"),
    [
        ("/tmp/x.csv", {}, "relative to the working directory"),
        ("a/../x.csv", {}, "without '..'"),
        ("a//x.csv", {}, "without empty parts"),
        ("./x.csv", {}, "without '.'"),
        ("x.csv", {"temp": True}, "Snakemake deletes it"),
        ("x", {"directory": True}, "only files can be kept"),
        ("x", {"pipe": True}, "only files can be kept"),
        ("x", {"storage_object": object()}, "only files of this computer"),
    ],
)
def test_what_cannot_be_kept_is_refused(path: str, flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_output(path, flags)
    assert f'artifact("{path}")' in refused.value.message and said in refused.value.message
    check_output("counts/{s,[a-z]{2}/..}.csv", {})


RULE = """
    from snakemake_kochi import artifact

    rule own:
        output: {output}
        shell: "echo x > {{output}}"
    """


def test_a_dry_run_does_nothing_and_a_run_without_a_project_is_refused_at_its_start(
    tmp_path: Path,
) -> None:
    write(tmp_path / "Snakefile", RULE.format(output='artifact("x.txt")'))
    project = OwnProject(tmp_path)
    assert not project.snakemake("-n").endswith("failed")
    assert not Path(os.environ["KOCHI_ROOT"]).exists()
    said = project.snakemake()
    assert said.endswith("failed")
    assert "git init && kochi init" in said
    assert not (tmp_path / "x.txt").exists()


def test_a_temporary_output_and_one_that_a_batch_writes_are_refused_before_anything_runs(
    project: Any,
) -> None:
    own, top = OwnProject(project.directory), project.directory
    write(top / "Snakefile", RULE.format(output='temp(artifact("x.txt"))'))
    assert 'artifact("x.txt"): this output is temporary' in own.snakemake("x.txt")
    for path, whose in (
        ("sum/first/2_0.txt", "batch 'first' of sum.yaml"),
        ("sum/first", "batch 'first' of sum.yaml"),
        ("sum/first.csv", "batch 'first' of sum.yaml"),
    ):
        write(top / "Snakefile", RULE.format(output=f'artifact("{path}")'))
        said = own.snakemake(path)
        assert said.endswith("failed")
        assert f'artifact("{path}"): {whose} has this path in the artifact branch' in said
        assert not (top / path).exists()


def test_outputs_that_count_as_code_and_damaged_notes_are_named(
    tmp_path: Path,
) -> None:
    project = make_project(tmp_path, RULE.format(output='artifact("kept/x.txt")'))
    told = "git does not ignore kept/x.txt, so these outputs count as code"
    said = project.snakemake()
    assert told in said  # before the file is there
    assert f"Type in {project.directory}: echo /kept/ >> .gitignore" in said
    write(project.directory / ".snakemake/kochi/local/own-jobs/1.jsonl", "not ours")
    said = project.snakemake("--forceall")
    assert "own-jobs/1.jsonl: outputs are not kept" in said
    assert told in said
    (project.directory / ".gitignore").write_text("/kept/\n")
    assert "git does not ignore" not in project.snakemake("--forceall")


def test_own_outputs_are_kept_beside_the_results_of_batches(finished_project: Any) -> None:
    project = OwnProject(finished_project.directory)
    file = project.directory / "Snakefile"
    own = 'artifact("results/own.txt")'
    write(project.directory / "other.yaml", "run: {scrpt: x}\n")  # nobody's concern
    file.write_text(file.read_text() + "\n" + textwrap.dedent(RULE.format(output=own)))
    before = project.kept()
    result = "results/local/sum/first/1_0.txt"
    assert not project.snakemake("results/own.txt", result).endswith("failed")
    assert sorted(project.kept()) == sorted([*before, "results/own.txt"])
    told = subprocess.run(
        [*KOCHI, "why", "--json", "results/own.txt"],
        cwd=project.directory,
        capture_output=True,
        check=True,
    )
    assert json.loads(told.stdout)["record"]["rule"]["name"] == "own"
