"""Runs with workers through an alloc_script, as with any scheduler."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, wait_until, write

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.project.machines import Machine
from snakemake_kochi.queue.views import list_workers
from snakemake_kochi.schedulers.interface import AllocationSettings, Lack
from snakemake_kochi.schedulers.script import AllocScript

PROFILE = REPOSITORY / "profiles" / "cluster"
SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(4))

    rule job:
        output: "out/{i}"
        shell: "echo ${{SLURM_JOB_ID-none}} > {output}"
"""
IN_BACKGROUND = "nohup $KOCHI_WORKER_LAUNCH_CMD </dev/null >/dev/null 2>&1 &"
STAYING = "env | grep KOCHI_ALLOC; eval $KOCHI_WORKER_LAUNCH_CMD"
OVER = "the run that started it is over"
BY_SBATCH = 'sbatch --wrap="$KOCHI_WORKER_LAUNCH_CMD" -o /dev/null -t ${KOCHI_ALLOC_TIME_LIMIT:-0}'


SLURM = {"nodes": 1}


@pytest.fixture
def machine(isolated_environment: Path) -> MachinePaths:
    return Root(isolated_environment).machine("own")


@pytest.fixture
def run(tmp_path: Path, machine: MachinePaths, snakemake) -> Iterator[Callable]:
    """Run a workflow on a machine with an alloc_script; no test leaves a worker."""

    def call(
        script: str,
        more: str = "",
        snakefile: str = SNAKEFILE,
        cores: str = "cores: 2, ",
        **variables: str,
    ):
        git(tmp_path, "init", "--quiet")
        lines = ["machines:", " own:", "  alloc_script: |", f"   {script}"]
        lines.append(f"  allocation: {{{cores}time: 10, max_workers: 1{more}}}")
        (tmp_path / "kochi.yaml").write_text("\n".join([*lines, ""]))
        write(tmp_path / "Snakefile", snakefile)
        environment = {"KOCHI_DEFAULT_MACHINE": "own", **variables}
        return snakemake("--profile", str(PROFILE), cwd=tmp_path, env=environment)

    yield call
    wait_until(lambda: all(worker.is_gone for worker in list_workers(machine)))


def test_a_script_that_leaves_the_worker_in_the_background_serves_a_run(
    run: Callable, machine: MachinePaths, tmp_path: Path
) -> None:
    done = run(IN_BACKGROUND)
    assert done.returncode == 0, done.stdout
    assert len(list((tmp_path / "out").iterdir())) == 4
    workers = list_workers(machine)
    assert {worker.capacity.cores for worker in workers} == {2}
    # They leave by themselves: the directory of their controller is gone.
    wait_until(lambda: all(worker.state == "left" for worker in list_workers(machine)))
    assert {worker.reason for worker in list_workers(machine)} == {OVER}


def test_a_script_that_stays_is_ended_with_the_run(
    run: Callable, machine: MachinePaths, tmp_path: Path
) -> None:
    done = run(STAYING, ", node_spec: big")
    assert done.returncode == 0, done.stdout
    assert [worker.state for worker in list_workers(machine)] == ["left"]
    (output,) = machine.allocations.glob("*.out")
    assert sorted(output.read_text().split()) == [
        "KOCHI_ALLOC_CORES=2",
        f"KOCHI_ALLOC_NAME={output.stem[output.stem.index('kochi-') :]}",
        "KOCHI_ALLOC_NODES=1",
        "KOCHI_ALLOC_NODE_SPEC=big",
        "KOCHI_ALLOC_TIME_LIMIT=0:10:00",
    ]


# What the schedulers' programs do as far as the templates need it: note the arguments, and execute
# the last ones on a "node".
FAKE = """#!/bin/bash
printf '%s\\n' "$@" > "$0.called"
while [ $# -gt 0 ] && [ "$1" != -- ] && [[ "$1" != bash\\ * ]]; do shift; done
[ "$1" = -- ] && shift
nohup bash -c "$*" </dev/null >/dev/null 2>&1 &
"""
REQUESTS = """
    rule all:
        output: "out/all"
        threads: 4
        resources: %s
        shell: "echo > {output}"
"""


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            "qsub",
            "-l select=2:ncpus=8:mpiprocs=2:mem=3584mb:ngpus=2 -l walltime=0:10:00 -q long -A me",
        ),
        (
            "bsub",
            "-n 16 -R span[ptile=8] -R rusage[mem=3584MB] -W 11 -gpu num=2 -q long -P me",
        ),
    ],
)
def test_the_templates_pass_on_all_that_a_job_requests(
    run: Callable, tmp_path: Path, program: str, expected: str
) -> None:
    page = (REPOSITORY / "docs" / "pbs-lsf.md").read_text()
    (template,) = (each for each in page.split("```") if f"{program} -" in each)
    text = template.removeprefix("yaml\n").partition("alloc_script: |\n")[2]
    script = text.partition("    allocation:")[0].strip().replace("\n      ", "\n   ")
    fake = tmp_path / "bin" / program
    fake.parent.mkdir()
    fake.write_text(FAKE)
    fake.chmod(0o755)
    wanted = (
        'mem_mb=3072, runtime=10, gpu=2, nodes=2, tasks=4, mpi="mpirun", '
        'slurm_partition="long", slurm_account="me"'
    )
    path = f"{fake.parent}:{os.environ['PATH']}"
    run(script, ", gpus: 2", REQUESTS % wanted, "cores: 8, ", PATH=path)
    called = fake.with_suffix(".called").read_text().split("\n")
    assert expected in " ".join(called)
    assert any(each.startswith("kochi-") for each in called)


def test_what_a_script_does_not_pass_on_is_refused_before_anything_is_submitted(
    run: Callable, machine: MachinePaths
) -> None:
    wanted = 'nodes=2, tasks=4, mpi="mpirun", gpu=1, slurm_partition="long"'
    done = run(IN_BACKGROUND, ", gpus: 1", REQUESTS % wanted)
    assert done.returncode == 1
    assert (
        "rule all: it needs partition long, 2 nodes, 4 tasks and 1 GPU, but machines: own: "
        "alloc_script in kochi.yaml never reads $KOCHI_ALLOC_PARTITION, $KOCHI_ALLOC_NODES, "
        "$KOCHI_ALLOC_TASKS and $KOCHI_ALLOC_GPUS"
    ) in done.stdout
    assert "Traceback" not in done.stdout
    assert not machine.allocations.exists()


def test_a_script_that_reads_the_cores_gets_those_of_the_jobs_where_no_node_is_described(
    run: Callable, machine: MachinePaths
) -> None:
    snakefile = REQUESTS % "mem_mb=100"
    script = f": $KOCHI_ALLOC_CORES; {STAYING}"
    done = run(script, snakefile=snakefile, cores="")
    assert done.returncode == 0, done.stdout
    (output,) = machine.allocations.glob("*.out")
    assert {"KOCHI_ALLOC_CORES=4", "KOCHI_ALLOC_MEMORY_MB=612"} < set(output.read_text().split())


def test_a_script_that_submits_to_a_scheduler_serves_a_run(
    run: Callable, cluster: SlurmCluster, tmp_path: Path
) -> None:
    done = run(BY_SBATCH, **cluster.environment)
    assert done.returncode == 0, done.stdout
    allocations = {file.read_text().strip() for file in (tmp_path / "out").iterdir()}
    assert len(allocations) == 1
    assert allocations.isdisjoint({"none"})
    wait_until(lambda: not cluster.jobs())


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such queue >&2; exit 3", "exit status 3, and printed:\nno such queue"),
        ("exit 4", "exit status 4 and no output"),
        ("kill -9 $$", "ended by signal 9 and no output"),
    ],
)
def test_a_script_that_fails_ends_the_run_with_its_output(
    run: Callable, machine: MachinePaths, script: str, said: str
) -> None:
    done = run(script)
    assert done.returncode == 1
    assert f"alloc_script failed, with {said}" in done.stdout
    assert "Traceback" not in done.stdout
    assert list_workers(machine) == []


def test_a_job_larger_than_a_node_fails_and_the_script_is_not_run(
    run: Callable, machine: MachinePaths
) -> None:
    done = run("exit 3", snakefile=SNAKEFILE.replace("shell:", "threads: 3\n        shell:"))
    assert done.returncode == 1
    assert "no allocation on machine own can run it: 3 cores needed, 2 available" in done.stdout
    limit = "machines: own: allocation: cores in kochi.yaml"
    assert f"Request less by the rule's resources, or change {limit}." in done.stdout
    assert not machine.allocations.exists()


def test_a_worker_whose_allocation_begins_after_the_run_leaves_at_once(
    run: Callable, machine: MachinePaths
) -> None:
    assert run(IN_BACKGROUND).returncode == 0
    script = min(machine.allocations.glob("*.sh"))
    before = len(list_workers(machine))
    subprocess.run(["bash", str(script)], check=True, timeout=120)
    workers = list_workers(machine)
    assert len(workers) == before + 1
    assert (workers[-1].state, workers[-1].reason) == ("left", OVER)


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("qsub -l nodes=$KOCHI_ALLOC_NODE_SPEC -- $CMD", "-n SPEC"),
        (
            "qsub -l ${KOCHI_ALLOC_NODE_SPEC:?which nodes} -t $KOCHI_ALLOC_TIME_LIMIT",
            "-n SPEC -t LIMIT",
        ),
        ("qsub <<EOF\n#PBS -l nodes=$KOCHI_ALLOC_NODE_SPEC\n$CMD\nEOF", "-n SPEC"),
        ("spec=$KOCHI_ALLOC_NODE_SPEC\nqsub -l nodes=$spec -- $CMD", "-n SPEC"),
        ("qsub -t ${KOCHI_ALLOC_TIME_LIMIT-10} -w $KOCHI_ALLOC_NODE_SPEC -- $CMD", "-n SPEC"),
        # Without the variable these do something else, as when a person runs them.
        (
            'if [ -n "$KOCHI_ALLOC_NODE_SPEC" ]; then w="-w $KOCHI_ALLOC_NODE_SPEC"; fi; qsub $w',
            None,
        ),
        ("[[ $KOCHI_ALLOC_NODE_SPEC ]] && w=$KOCHI_ALLOC_NODE_SPEC; qsub ${w:+-w $w}", None),
        ("test -z $KOCHI_ALLOC_NODE_SPEC || w=$KOCHI_ALLOC_NODE_SPEC; qsub $w", None),
        ("case $KOCHI_ALLOC_NODE_SPEC in ?*) w=$KOCHI_ALLOC_NODE_SPEC;; esac; qsub $w", None),
        (': "${KOCHI_ALLOC_TIME_LIMIT:=1:00:00}"\nqsub -t $KOCHI_ALLOC_TIME_LIMIT', None),
        ("qsub ${KOCHI_ALLOC_TIME_LIMIT:+-t $KOCHI_ALLOC_TIME_LIMIT} -- $CMD", None),
        ("KOCHI_ALLOC_NODE_SPEC=node1\nqsub -w $KOCHI_ALLOC_NODE_SPEC -- $CMD", None),
        ('spec="${KOCHI_ALLOC_NODE_SPEC}"; [ "$spec" ] && w="-w $spec"; qsub $w', None),
        ("# $KOCHI_ALLOC_NODE_SPEC is not used\nqsub -- $CMD  # nor $KOCHI_ALLOC_TIME_LIMIT", None),
        ("#qsub -w $KOCHI_ALLOC_NODE_SPEC -- $CMD\nqsub -- $CMD", None),
    ],
)
def test_a_script_waits_for_a_person_only_without_a_required_variable(
    script: str, options: str | None
) -> None:
    own = Machine("own")

    def lack(settings: AllocationSettings) -> Lack | None:
        return AllocScript("name", script, settings, own.script_at, own.allocation_at).lacks

    lacks = lack(AllocationSettings())
    assert (None if lacks is None else lacks.options) == options
    if lacks is not None and options == "-n SPEC":
        assert lacks.reason == (
            "machines: own: alloc_script in kochi.yaml reads $KOCHI_ALLOC_NODE_SPEC, but "
            "machines: own: allocation: node_spec in kochi.yaml is not set"
        )
    assert lack(AllocationSettings(node_spec="node1", time=60)) is None
