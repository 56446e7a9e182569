"""Jobs that no allocation can run, among others that run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from seen import FIRST_OF_RUN
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, write

PROFILE = REPOSITORY / "profiles" / "cluster"
CONFIGURATION = """
    machines:
      own: {scheduler: slurm, allocation: {time: 10, idle_timeout: 1s}}
"""


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster, snakemake: Callable):
    git(tmp_path, "init", "--quiet")
    write(tmp_path / "kochi.yaml", CONFIGURATION)

    def call(snakefile: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        write(tmp_path / "Snakefile", snakefile)
        environment = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
        command = ("--profile", str(PROFILE), *arguments)
        return snakemake(*command, cwd=tmp_path, env=environment)

    return call


def test_all_rules_that_can_never_run_are_named_before_anything_is_submitted(run, tmp_path):
    done = run(
        """
        localrules: here
        rule all:
            input: "large", "long", "asked", "grouped", "here", expand("wide{n}", n=[1, 2, 64]),
                expand("heavy{n}", n=[1, 2, 3])
        rule first:
            output: "first"
            shell: "touch {output}"
        # It begins later: a Snakemake that ends by an error while a local job ends may print a
        # traceback of its own.
        rule here:
            input: "first"
            output: "here"
            threads: 64
            shell: "touch {output}"
        rule large:
            input: "first"
            output: "large"
            resources: mem_mb=8000
            shell: "touch {output}"
        rule long:
            input: "first"
            output: "long"
            resources: runtime=lambda wildcards, attempt: 5 * attempt, slurm_partition="short"
            shell: "touch {output}"
        rule asked:
            input: "first"
            output: "asked"
            resources: slurm_extra="--wrap=date"
            shell: "touch {output}"
        rule grouped:
            input: "first"
            output: "grouped"
            group: "one"
            shell: "touch {output}"
        rule wide:
            input: "first"
            output: "wide{n}"
            threads: lambda wildcards: int(wildcards.n)
            shell: "touch {output}"
        rule heavy:
            input: "first"
            output: "heavy{n}"
            resources:
                mem_mb=lambda wildcards: 9000 if wildcards.n == "3" else 100,
                gpu=lambda wildcards: int(wildcards.n == "2"),
            shell: "touch {output}"
        """
    )
    assert done.returncode == 1
    limit = "no allocation on machine own can run it"
    assert f"rule large: {limit}: 8000 MiB of memory needed, 4096 available" in done.stdout
    # MaxTime of that partition, neither a node's nor `time` of the machine.
    hint = "2 minutes available. The limit is that of the partition. Request less by the rule's "
    assert f"rule long: {limit}: 5 minutes needed, {hint}" in done.stdout
    assert "rule asked, resource slurm_extra: --wrap=date cannot be used" in done.stdout
    assert f"rule wide: {limit}: 64 cores needed, 2 available" in done.stdout
    assert f"rule heavy: {limit}: 9000 MiB of memory needed, 4096 available" in done.stdout
    assert f"rule heavy: {limit}: 1 GPU needed, none available" in done.stdout
    # The profile has --keep-going: all others run.
    told, _, ran = done.stdout.partition(f"kochi job {FIRST_OF_RUN} in queue ")
    assert (told.count(limit), ran.count(limit)) == (5, 5)
    assert ".py" not in ran
    names = ("first", "here", "grouped", "wide1", "wide2", "heavy1")
    assert all((tmp_path / name).exists() for name in names)


def test_resources_that_depend_on_missing_files_count_when_the_files_exist(run, tmp_path):
    done = run(
        """
        def memory(wildcards, input):
            return int(open(input[0]).read())

        rule all:
            input: "one", "two"
        rule first:
            output: "first"
            shell: "echo 100 > {output}"
        rule read:
            input: "first"
            output: "one"
            resources: mem_mb=memory
            shell: "echo {resources.mem_mb} > {output}"
        rule sized:
            input: "first"
            output: "two"
            resources: mem_mb=lambda wildcards, input: 200 if input.size > 0 else 90000
            shell: "echo {resources.mem_mb} > {output}"
        """
    )
    assert done.returncode == 0
    assert (tmp_path / "one").read_text() == "100\n"
    assert (tmp_path / "two").read_text() == "200\n"


def test_a_job_that_turns_out_too_large_fails_alone_and_is_reported_once(run, tmp_path):
    done = run(
        """
        rule all:
            input: "large", "other"
        checkpoint first:
            output: "first"
            shell: "echo 9000 > {output}"
        rule large:
            input: "first"
            output: "large"
            resources: mem_mb=lambda wildcards, input: int(open(input[0]).read())
            shell: "touch {output}"
        rule other:
            output: "other"
            shell: "while [ ! -e first ]; do sleep 0.1; done; sleep 2; touch {output}"
        """,
        "--keep-going",
    )
    assert done.returncode == 1
    limit = "rule large: no allocation on machine own can run it: 9000 MiB of memory needed"
    assert done.stdout.count(limit) == 1
    assert (tmp_path / "other").exists()
    assert not (tmp_path / "large").exists()
    assert "Cancelled" not in done.stdout
    assert done.stdout.count("kochi ran 2 jobs: ") == 1
    assert done.stdout.count("core-hours") == 1
    assert "Traceback" not in done.stdout


def test_a_job_whose_allocation_is_pending_is_not_reported_to_wait_in_vain(run, tmp_path, cluster):
    done = run(
        """
        rule all:
            input: "small", "wide"
        rule small:
            output: "small"
            shell: "touch began; while [ ! -e wide ]; do sleep 0.1; done; touch {output}"
        rule begin:
            output: touch("ready")
            shell: "while [ ! -e began ]; do sleep 0.1; done"
        rule wide:
            input: "ready"
            output: "wide"
            threads: 2
            shell: "touch {output}"
        """
    )
    assert done.returncode == 0
    assert "can ever run" not in done.stdout
