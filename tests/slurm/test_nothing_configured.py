"""A Slurm without any configuration, and the commands that users type there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, printed, run, write

from snakemake_kochi.paths import Root

SOURCES = (
    *(path.name for path in REPOSITORY.glob("snakemake_*") if path.is_dir()),
    *("workflow", "profiles", "setup.py", "pyproject.toml", "MANIFEST.in", "LICENSE"),
)
SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(3))

    rule job:
        output: "out/{i}"
        shell: "echo $KOCHI_MACHINE ${{SLURM_JOB_ID-none}} > {output}"
"""
SILENT = "Jobs run on this computer, although Slurm is installed here"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in no repository, of a user who has set no variable."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.delenv("KOCHI_ROOT")
    write(directory / "Snakefile", SNAKEFILE)
    return directory


def environment(cluster: SlurmCluster, **more: str) -> dict[str, str]:
    return {**cluster.environment, **more}


def outputs(directory: Path) -> list[list[str]]:
    return [file.read_text().split() for file in (directory / "out").iterdir()]


def beginning_of_the_guide() -> str:
    return (REPOSITORY / "docs" / "cluster.md").read_text("utf-8").partition("\n## ")[0]


def new_user(directory: Path, home: Path) -> dict[str, str]:
    """An interpreter with the libraries of this one but without this project, which lies in the
    home; and a pip that needs no network."""
    for name in SOURCES:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        target = home / "snakemake_kochi" / name
        target.parent.mkdir(exist_ok=True)
        copy(REPOSITORY / name, target)
    run(sys.executable, "-m", "venv", "--without-pip", str(directory), cwd=home)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    programs = directory / "bin"
    python = shlex.quote(str(programs / "python"))
    offline = "--no-deps --no-build-isolation --no-index --ignore-installed"
    for program, command in {
        "pip": f'{sys.executable} -m pip --python {python} "$@" {offline}',
        "snakemake": f'{python} -P -m snakemake "$@"',
    }.items():
        (programs / program).write_text(f"#!/bin/sh\nexec {command}\n")
        (programs / program).chmod(0o755)
    return {"PATH": str(programs)}


def test_three_commands_of_the_guide_lead_from_pip_to_two_hundred_jobs(
    here: Path, tmp_path: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `new_user` has made the virtual environment of the preceding lines.
    typed = re.findall(r"^\$ (.*)$", beginning_of_the_guide(), re.M)
    commands = [line for line in typed if line.split()[0] not in ("python3", ".")][:3]
    assert [command.split()[0] for command in commands] == ["pip", "kochi", "snakemake"]
    (snakefile,) = re.findall(r"^```snakemake\n(.*?)^```", beginning_of_the_guide(), re.M | re.S)
    write(here / "Snakefile", snakefile)
    home = Path(os.environ["HOME"])
    paths = [new_user(tmp_path / "new user", home)["PATH"], cluster.environment["PATH"]]
    monkeypatch.delenv("PYTHONPATH")
    submitted = len(cluster.calls("sbatch"))
    for command in commands:
        done = run(
            *("bash", "-c", command),
            cwd=here,
            env=environment(cluster, PATH=os.pathsep.join(paths)),
        )
        assert done.returncode == 0, done.stdout
    assert len(list((here / "squares").iterdir())) == 200
    assert "This run uses machine own, the cluster of Slurm, " in done.stdout
    assert len(cluster.calls("sbatch")) - submitted in range(1, 5)
    assert cluster.jobs() == {}
    assert (home / ".kochi" / "machines" / "own").is_dir()


def test_a_project_without_machines_has_its_results_on_the_machine_that_was_found(
    here: Path, cluster: SlurmCluster, snakemake, kochi
) -> None:
    git(here, "init", "--quiet")
    write(here / "kochi.yaml", "")
    (here / "Snakefile").unlink()
    assert kochi("init", cwd=here).returncode == 0
    write(
        here / "hello.yaml",
        """
        batches:
          all:
            artifacts: [{type: stdout, dest: "hello.log"}]
        build: {depend_params: [], script: "true"}
        run: {depend_params: [], script: 'echo "$KOCHI_MACHINE ${SLURM_JOB_ID-}"'}
        """,
    )
    words = ("--profile", str(REPOSITORY / "profiles" / "cluster"), "hello_all")
    done = snakemake(*words, cwd=here, env=environment(cluster))
    assert done.returncode == 0, done.stdout
    (log,) = here.glob("results/own/**/hello.log")
    assert re.fullmatch(r"own \d+\n", printed(log.read_text()))
    assert (
        "Nothing to be done" in snakemake(*words, "-n", cwd=here, env=environment(cluster)).stdout
    )
    again = kochi("batch", "hello.yaml", "all", cwd=here, env=environment(cluster))
    assert "Nothing to be done" in again.stdout
    assert not (here / "results" / "local").exists()
    # What is said to type works as it stands.
    assert "build_hello" in kochi("show", "jobs", "-t", cwd=here).stdout
    said = re.search(r"kochi show log job \d+(\.\d+)?", done.stdout)
    assert said is not None
    assert kochi(*said[0].split()[1:], cwd=here).returncode == 0


def test_a_kochi_root_that_the_first_node_does_not_see_ends_the_run_with_the_line_to_type(
    here: Path, snakemake
) -> None:
    home = os.environ["HOME"]
    with SlurmCluster(nodes=1, cpus=1, apart=True) as cluster:
        cluster.run_on("node1", "mount", "-t", "tmpfs", "none", home)
        words = ("--profile", str(REPOSITORY / "profiles" / "cluster"))
        done = snakemake(*words, cwd=here, env=environment(cluster))
        assert done.returncode == 1
        assert f"KOCHI_ROOT {home}/.kochi cannot be used: node1 does not see it" in done.stdout
        assert "export KOCHI_ROOT=DIRECTORY" in done.stdout
        assert "Traceback" not in done.stdout
        assert len(cluster.calls("sbatch")) == 1
        # A directory of the node's own, at the same path.
        allocations = f"{home}/.kochi/machines/own/allocations"
        cluster.run_on("node1", "mkdir", "-p", allocations)
        done = snakemake(*words, cwd=here, env=environment(cluster))
        assert "node1 does not see it" in done.stdout
        said = cluster.run_on("node1", "bash", "-c", f"cat {allocations}/*_1.log")
        settings = f"{home}/.kochi/machines/own/worker-settings/"
        assert f"kochi worker: this node does not see {settings}" in said


def test_a_slurm_that_is_down_is_reported_only_if_allocations_are_requested(
    here: Path, cluster: SlurmCluster, snakemake, kochi
) -> None:
    cluster.stop_controller()
    try:
        words = ("--profile", str(REPOSITORY / "profiles" / "cluster"))
        for done in (
            snakemake(*words, cwd=here, env=environment(cluster)),
            kochi("launch", cwd=here, env=environment(cluster)),
        ):
            assert done.returncode == 1
            assert "Slurm is installed here, and does not answer" in done.stdout
            assert "export KOCHI_DEFAULT_MACHINE=local" in done.stdout
            assert "Traceback" not in done.stdout
        asked = len(cluster.calls("scontrol"))
        kochi("show", "jobs", cwd=here, env=environment(cluster))
        call = ("--executor", "kochi", "--jobs", "4", "--kochi-where", "here")
        assert snakemake(*call, cwd=here, env=environment(cluster)).returncode == 0
        assert len(cluster.calls("scontrol")) == asked
    finally:
        cluster.start_controller()


def test_every_way_to_run_uses_the_allocations_of_the_same_machine(
    here: Path, cluster: SlurmCluster, snakemake, kochi
) -> None:
    variables = environment(cluster)
    call = ("--executor", "kochi", "--jobs", "4")
    for run_all in (
        lambda: kochi("launch", "--follow", "--", "all", cwd=here, env=variables),
        lambda: snakemake(*call, cwd=here, env=variables),
    ):
        done = run_all()
        assert done.returncode == 0, done.stdout
        assert SILENT not in done.stdout
        assert {machine for machine, job in outputs(here) if job != "none"} == {"own"}
        assert len(outputs(here)) == 3
        shutil.rmtree(here / "out")
    done = kochi("enqueue", "-q", "q", "--", "hostname", cwd=here, env=variables)
    assert "To start one, type: kochi alloc -q q" in done.stdout
    assert kochi("alloc", "-q", "q", "-f", cwd=here, env=variables).returncode == 0


def test_jobs_run_on_the_login_node_if_that_is_requested(
    here: Path, cluster: SlurmCluster, snakemake
) -> None:
    call = ("--executor", "kochi", "--jobs", "4", "--kochi-where", "here")
    done = snakemake(*call, cwd=here, env=environment(cluster))
    assert done.returncode == 0
    assert SILENT not in done.stdout
    assert outputs(here) == [["local", "none"]] * 3


def test_that_jobs_run_on_a_login_node_of_no_machine_is_said_once(
    here: Path, cluster: SlurmCluster, snakemake, kochi
) -> None:
    write(Root.find().configuration, "machines: {vega: {scheduler: slurm}}")
    done = kochi("launch", "--follow", "--", "all", cwd=here, env=environment(cluster))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(SILENT) == 1
    assert "machines: vega: hosts: " in done.stdout
    assert outputs(here) == [["local", "none"]] * 3
    shutil.rmtree(here / "out")
    done = snakemake("--executor", "kochi", "--jobs", "4", cwd=here, env=environment(cluster))
    assert done.returncode == 0
    assert SILENT not in done.stdout


def test_the_found_machine_is_written_into_kochi_yaml_with_partitions_and_limits(
    here: Path, cluster: SlurmCluster, snakemake, kochi
) -> None:
    git(here, "init", "--quiet")
    mine = "# mine\nmachines:\n    vega: {}  # another one\n"
    write(here / "kochi.yaml", mine)
    done = kochi("init", "--machine", cwd=here, env=environment(cluster))
    assert f"Added the machine own to {here}/kochi.yaml" in done.stdout
    written = (here / "kochi.yaml").read_text()
    assert written.startswith("# mine\nmachines:\n    own:  # as Slurm calls its cluster\n")
    assert written.endswith("    vega: {}  # another one\n")
    assert "partition: main  # Slurm's default\n" in written
    of_each = "of 2 cores, 4,096 MiB, features big\n"
    assert f"#   short: longest time 0:02:00; 2 nodes {of_each}" in written
    assert f"#   long: longest time no limit; 1 node {of_each}" in written
    again = kochi("init", "--machine", cwd=here, env=environment(cluster))
    assert "which has the machine own" in again.stdout
    assert (here / "kochi.yaml").read_text() == written
    write(here / "Snakefile", SNAKEFILE)
    # From now on this host is one of its login nodes.
    done = snakemake("--executor", "kochi", "--jobs", "4", cwd=here, env=environment(cluster))
    assert done.returncode == 0
    assert {machine for machine, job in outputs(here) if job != "none"} == {"own"}
    assert "--partition=main" in cluster.calls("sbatch")[-1]


def test_outside_of_a_repository_the_found_machine_is_written_for_all_projects(
    here: Path, cluster: SlurmCluster, kochi
) -> None:
    done = kochi("init", "--machine", cwd=here, env=environment(cluster))
    file = Path(os.environ["HOME"], ".kochi", "conf.yaml")
    assert done.stdout == f"Added the machine own to {file}\n"
    assert kochi("show", "path", "root", "-m", "own", cwd=here).returncode == 0
    assert [file.name for file in here.iterdir()] == ["Snakefile"]
