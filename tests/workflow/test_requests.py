"""What the files request for runs, builds and installations, in real runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from seen import list_jobs
from slurm_fake import FakeSlurm, says
from support import run, write

from snakemake_kochi.paths import Root
from snakemake_kochi.queue.views import JobView

from .conftest import results
from .test_records import records_of

RESOURCES = """run:
  resources: {cpus_per_task: $n, mem_mb: '`100 * $n`', runtime: 7, slurm_partition: 'p{$n}'}
  exclusive: false
"""
OF_BUILD = "build:\n  resources: {mem_mb: '`50 + $debug`'}\n  timeout: 1h\n"
OF_RECIPE = "  base:\n    resources: {mem_mb: 40}\n    timeout: 10m\n"


def jobs() -> list[JobView]:
    """The jobs that have ended, in the order of their submission."""
    found = list_jobs(Root.find().machine("local"), ended=True, limit=1000)
    return sorted(found, key=lambda each: each.name.key)


def requested() -> dict[str, dict[str, Any]]:
    """What each job requested, by its name."""
    return {each.kept["name"]: each.kept["resources"] for each in jobs()}


@pytest.mark.phases
@pytest.mark.compatibility
def test_runs_have_the_cores_that_their_parameters_say(project: Any) -> None:
    """Also in an experiment without `run`, with a default for the machine."""
    project.edit("sum.yaml", "default_name: sum", "default_name: sum_$n")
    project.edit("sum.yaml", "run:\n", "run:\n  exclusive: false\n  cores: '`$n + 1`'\n")
    text = """
        default_params: {level: [{value: 1}, {value: 9, machines: spica}]}
        build: {depend_params: [level], script: 'echo "level $KOCHI_PARAM_LEVEL" > made'}
        batches:
          all: {artifacts: [{type: file, src: made, dest: "only/${level}.txt"}]}
        """
    write(project.directory / "only.yaml", text)
    made = "results/local/only/1.txt"
    project.snakemake(*results(1, 2), made, "--kochi-cores", "4", executor="kochi")
    asked = requested()
    assert {name: asked[name]["cores"] for name in ("sum_1", "sum_2")} == {"sum_1": 2, "sum_2": 3}
    assert not asked["sum_1"]["exclusive"]
    assert (project.directory / made).read_text() == "level 1\n"
    # How many there are makes nothing stale.
    project.edit("sum.yaml", "cores: '`$n + 1`'", "cores: $n")
    assert "Nothing to be done" in project.snakemake(*results(1, 2))


def request(project: Any) -> None:
    """Let all phases of the project request something."""
    project.edit("sum.yaml", "default_name: sum", "default_name: sum_$n")
    project.edit("sum.yaml", "run:\n", RESOURCES)
    project.edit("sum.yaml", "build:\n", OF_BUILD)
    project.edit("kochi.yaml", "  base:\n", OF_RECIPE)


@pytest.mark.compatibility
def test_jobs_have_the_resources_that_the_files_say_and_options_override_them(
    project: Any,
) -> None:
    request(project)
    override = ("--set-resources", "run_sum_first:mem_mb=333", "--kochi-cores", "4")
    override = (*override, "--default-resources", "mem_mb=44")
    project.snakemake(*results(1, 2), *override, executor="kochi")
    asked = requested()
    seen = {name: (of["cores"], of["memory_mb"]) for name, of in asked.items()}
    expected = {"sum_1": (1, 333), "sum_2": (2, 333), "build_sum": (1, 50)}
    assert {name: seen[name] for name in expected} == expected
    # A default is for what the files do not say.
    assert (seen["install_base_one"], seen["install_tool_fast"]) == ((1, 40), (1, 44))
    times = {name: of["runtime_seconds"] for name, of in asked.items()}
    # With a timeout a minute more, for what is around the script.
    assert (times["sum_1"], times["build_sum"], times["install_base_one"]) == (420, 3660, 660)

    # Not one of the slower runners, because options depend on resources.
    assert {each.result.runner for each in jobs() if each.result} == {"phase"}


@pytest.mark.compatibility
def test_a_request_makes_nothing_stale(finished_project: Any) -> None:
    request(finished_project)
    assert finished_project.planned_rules(*results(1, 2)) == []


@pytest.mark.compatibility
def test_a_run_is_ended_at_its_exact_time_under_any_executor(finished_project: Any) -> None:
    project = finished_project
    project.edit("sum.yaml", "run:\n", "run:\n  timeout: '`31.5 - 6 * $n`s'\n")
    project.edit(
        "sum.yaml", 'echo "total', '[ "$KOCHI_PARAM_N" -lt 5 ] || sleep 6\n    echo "total'
    )
    project.edit("sum.yaml", "n: [1, 2]", "n: [3, 5]")
    done = project.try_snakemake(*results(3, 5), "--keep-going")
    assert done.returncode == 1
    assert "sum.yaml: the run script of sum ran for longer than its timeout of 1.5 s" in done.stdout
    (record,) = records_of(project, "failed")
    assert (record["parameters"]["n"], record["outcome"]) == ("5", "failed")
    assert record["reason"] == "timeout: the run script ran for longer than its timeout of 1.5 s"
    took = record["environment_seconds"] + record["seconds"]
    assert 1.5 <= took < 6 and record["usage"] is not None
    # Its runtime as the user wants it now replaces the timeout.
    project.snakemake(*results(5), "--set-resources", "run_sum_first:runtime=1")


def test_builds_and_installations_are_ended_after_their_time(project: Any) -> None:
    project.edit("kochi.yaml", "  base:\n", "  base:\n    timeout: 0.5s\n")
    project.edit("kochi.yaml", "script: mkdir", "script: sleep 60; mkdir")
    build = "{timeout: '`$n / 2`s', depend_params: [n], script: sleep 60}"
    only = f"default_params: {{n: 1}}\nbuild: {build}\nbatches: {{all: {{}}}}\n"
    write(project.directory / "only.yaml", only)
    done = project.try_snakemake("install_base_one", "only_all", "--keep-going")
    assert "base:one: the install script ran for longer than its timeout of 0.5 s" in done.stdout
    assert "only.yaml: the build script ran for longer than its timeout of 0.5 s" in done.stdout


@pytest.mark.compatibility
def test_a_point_on_two_nodes_fails_alone_on_this_computer(project: Any) -> None:
    project.edit("sum.yaml", "run:\n", "run:\n  resources: {nodes: '`2 if $n == 2 else 1`'}\n")
    done = project.try_snakemake(*results(1, 2), "--keep-going", executor="kochi")
    assert done.returncode == 1
    said = "sum.yaml: batch first, n=2: rule run_sum_first: 2 nodes needed, and on this computer"
    told, between, *_ = done.stdout.split(said)
    assert "These jobs will fail:" in told and "rule build" not in told
    assert "Error in rule run_sum_first:" in between
    assert project.take_ran()[-1] == "run sum 1"
    # Other executors do not look at it: the run itself does.
    done = project.try_snakemake(*results(2), executor="local")
    assert "kochi: 2 nodes were requested, and the job has 1: " in done.stdout
    assert project.take_ran() == []


def test_many_hopeless_points_are_one_message_and_nothing_is_built_for_them(project: Any) -> None:
    project.edit("sum.yaml", "run:\n", "run:\n  resources: {nodes: '`$n + 1 if $n else 1`'}\n")
    project.edit("sum.yaml", "n: [1, 2]", "n: [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]")
    hopeless = [target for n in (2, 3, 4, 10, 11, 12) for target in results(n)]
    done = project.try_snakemake(*hopeless, "--keep-going", executor="kochi")
    assert done.returncode == 1
    assert project.take_ran() == []
    lines = [line for line in done.stdout.splitlines() if "nodes needed" in line]
    assert [line.partition(", ")[2][:4] for line in lines] == ["n=2:", "n=3:", "n=4:"]
    assert "... and 3 more of rule run_sum_first, 6 in all" in done.stdout
    assert done.stdout.count("Error in rule") == 1
    assert "rule install_base_one: not begun, because all that needs it fails" in done.stdout
    command = ("-m", "snakemake_kochi.cli", "show", "batch", "sum.yaml", "first", "--json")
    shown = json.loads(run(sys.executable, *command, cwd=project.directory).stdout)
    assert shown["counts"]["failed"] == 6
    whys = {each["parameters"]["n"]: each["why"] for each in shown["points"]}
    for n in (2, 3, 4, 10, 11, 12):
        assert f"n={n}: rule run_sum_first: {n + 1} nodes needed" in whys[str(n)]
    done = project.try_snakemake(*hopeless, *results(0), "--keep-going", executor="kochi")
    ran = [line.split()[0] for line in project.take_ran()]
    assert ran == ["build", "install", "install", "run"]
    assert done.stdout.count("Error in rule") == 1


def test_the_file_of_a_hopeless_point_is_named_not_that_of_the_machine(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.edit("sum.yaml", "run:\n", "run:\n  resources: {nodes: '`$n + 5`'}\n")
    with (project.directory / "kochi.yaml").open("a") as file:
        file.write("machines: {own: {scheduler: slurm}}\n")
    programs, path = tmp_path / "programs", os.environ["PATH"]
    programs.mkdir()
    slurm = FakeSlurm(programs, monkeypatch)
    slurm.answers("sinfo", says("main*|1:00|4|4000|(null)|big|2"))
    for program in ("scontrol", "squeue", "sacct"):
        slurm.answers(program, "exit 0")
    slurm.answers("sbatch", "exit 1")
    monkeypatch.setenv("PATH", f"{programs}:{path}")
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "own")
    targets = [target.replace("local", "own") for target in results(1, 2)]
    done = project.try_snakemake(*targets, "--keep-going", executor="kochi")
    for nodes in (6, 7):
        assert f"one allocation requests {nodes} nodes, but partition main has 2" in done.stdout
    at = "machines: own: allocation: partition in kochi.yaml"
    assert f"See run: resources in sum.yaml or {at}." in done.stdout
    assert slurm.calls("sbatch") == []


def test_with_spread_the_first_run_of_each_point_comes_before_the_second_ones(
    project: Any,
) -> None:
    project.edit("sum.yaml", "default_name: sum", "default_duplicates: 2\ndefault_name: sum_$n")
    project.edit("sum.yaml", "run:\n", "run:\n  spread: nodes\n")
    second = [target.replace("_0.", "_1.") for target in results(1, 2)]
    project.snakemake(*results(1, 2), *second, executor="kochi")
    runs = [each.kept for each in jobs() if each.kept["name"].startswith("sum_")]
    assert [each["name"] for each in runs[:2]] != [each["name"] for each in runs[1:3]]
    assert sorted(each["name"] for each in runs[:2]) == ["sum_1", "sum_2"]
    labels = {(each["name"], each["labels"]["spread"]) for each in runs}
    assert len(runs) == 4
    assert len(labels) == len({label for _, label in labels}) == 2
    # How duplicates are spread determines no result.
    project.edit("sum.yaml", "  spread: nodes\n", "")
    assert project.planned_rules(*results(1, 2), *second) == []
