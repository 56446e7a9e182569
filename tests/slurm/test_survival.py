"""One run with all faults: no job is lost, none is done twice, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from cluster_project import ClusterProject
from seen import find_worker, list_jobs, list_workers
from slurm_cluster import SlurmCluster
from support import open_runs, wait_until

from snakemake_kochi.queue.views import WorkerView

COUNT = 72
WORKERS = 3
# Each job notes its beginning and its end. Short ones come first; a long one takes four seconds,
# until everything has happened, and does not end while it is held. A `run:` is a Snakemake of its
# own: the jobs' memory leaves none for a zygote.
SNAKEFILE = """
    rule all:
        input: "report"

    rule short:
        output: "short/{i}"
        shell:
            "echo $KOCHI_WORKER_ID >> began-short.{wildcards.i}; touch {output}; "
            "echo $KOCHI_WORKER_ID >> done-short.{wildcards.i}"

    rule long:
        input: "short/{i}"
        output: "long/{i}"
        shell:
            "echo $KOCHI_WORKER_ID >> began-long.{wildcards.i}; "
            "for _ in $(seq 40); do [ -e go ] && break; sleep 0.1; done; "
            "while [ -e hold ]; do sleep 0.1; done; "
            "echo {wildcards.i} > {output}; echo $KOCHI_WORKER_ID >> done-long.{wildcards.i}"

    rule total:
        input: lambda wildcards: [f"long/{i}" for i in range(COUNT) if i % 6 == int(wildcards.n)]
        output: "total/{n}"
        run:
            import os
            from pathlib import Path

            def note(what):
                with open(f"{what}-total.{wildcards.n}", "a") as notes:
                    print(os.environ["KOCHI_WORKER_ID"], file=notes)

            note("began")
            total = sum(int(Path(path).read_text()) for path in input)
            Path(output[0]).write_text(f"{total}\\n")
            note("done")

    rule report:
        input: expand("total/{n}", n=range(6))
        output: "report"
        shell:
            "echo $KOCHI_WORKER_ID >> began-report.0; cat {input} | sort -n > {output}; "
            "echo $KOCHI_WORKER_ID >> done-report.0"
"""
JOBS = {
    *(f"short.{i}" for i in range(COUNT)),
    *(f"long.{i}" for i in range(COUNT)),
    *(f"total.{n}" for n in range(6)),
    "report.0",
}


SLURM = {"nodes": 3}


@pytest.fixture
def project(
    tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster
) -> Iterator[ClusterProject]:
    with ClusterProject(tmp_path / "project", isolated_environment, cluster) as project:
        project.configure(max_workers=WORKERS, time=1, idle_timeout="30s")
        project.write_jobs(COUNT, SNAKEFILE)
        yield project


def busy(project: ClusterProject) -> list[WorkerView]:
    """The workers with a long job that has not ended."""
    done = project.lines("done")
    began = {name: lines for name, lines in project.lines("began").items() if name not in done}
    numbers = {int(lines[-1]) for name, lines in began.items() if name[:4] == "long" and lines}
    return [find_worker(project.machine, number) for number in sorted(numbers)]


@contextlib.contextmanager
def held(project: ClusterProject) -> Iterator[list[WorkerView]]:
    """All workers, each with jobs that do not end meanwhile. If a worker died at that moment, or
    its time was over, a job that has noted its end, and whose process has not ended, would be
    repeated."""
    hold = project.directory / "hold"
    hold.touch()
    wait_until(lambda: len(busy(project)) == WORKERS)
    time.sleep(1)  # for those that had found nothing to hold them
    yield busy(project)
    hold.unlink()


def processes(cluster: SlurmCluster, job: str | None = None) -> list[psutil.Process]:
    """The processes of one of Slurm's jobs, or of all."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            variables = process.environ()
            if variables.get("SLURM_CONF") == str(cluster.configuration):
                of = variables.get("SLURM_JOB_ID")
                if of is not None and job in (None, of):
                    found.append(process)
    return found


def kill_node(cluster: SlurmCluster, worker: WorkerView) -> str:
    """End all processes on the node of a worker at once, as by a power failure; returns its
    name."""
    process = psutil.Process(worker.process.pid)
    variables = process.environ()
    node = variables["SLURMD_NODENAME"]
    # First the processes that would tell Slurm how the others ended.
    watching = [each for each in process.parents() if each.name().startswith("slurmstepd")]
    assert watching
    cluster.stop_node(node, signal.SIGKILL)
    while left := watching + processes(cluster, variables["SLURM_JOB_ID"]):
        watching = []
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")
    return node


def endings(project: ClusterProject) -> list[str]:
    """The reasons of ended attempts that cost their jobs nothing."""
    views = list_jobs(project.machine, ended=True, limit=1000)
    found = [each.cause for view in views for each in view.attempts if each.cause]
    return [*found, *("lost" for view in views for _ in range(view.name.losses))]


def out_of_time(project: ClusterProject) -> int:
    """The number of workers that left because their time was over, by their own clock or by Slurm's
    signal."""
    reasons = [worker.reason for worker in list_workers(project.machine) if worker.state == "left"]
    return sum(reason in ("its walltime is over", "told by SIGUSR1") for reason in reasons)


def test_a_run_survives_the_failures_of_nodes_of_slurm_and_of_itself(
    project: ClusterProject, kochi: Callable, snakemake: Callable
) -> None:
    cluster = project.cluster
    project.start("--quiet", "rules", "reason", "progress")
    with held(project) as (cancelled, failing, _):
        cluster.run("scancel", str(cancelled.allocation))
        node = kill_node(cluster, failing)
        wait_until(lambda: find_worker(project.machine, cancelled.worker).state == "left")
        wait_until(lambda: "lost" in endings(project))
        wait_until(lambda: f"{failing.allocation} (NODE_FAIL)" in project.said)
        # Others are requested at once.
        wait_until(lambda: len(list_workers(project.machine)) > WORKERS)

        cluster.stop_controller()
        back = time.monotonic() + 60
        try:
            # The workers learn the end of their time only from themselves.
            wait_until(lambda: out_of_time(project) >= 2, seconds=50)
            assert project.runs[-1].poll() is None, project.said
            assert len(project.lines("done")) < len(JOBS)
            time.sleep(max(0, back - 10 - time.monotonic()))
            assert project.said.count("The scheduler does not answer") <= 1
            os.killpg(project.runs[-1].pid, signal.SIGKILL)
            project.runs[-1].wait()
            assert "is locked" not in snakemake("--unlock", cwd=project.directory).stdout
            # No allocation of this run reaches its time limit.
            project.configure(max_workers=WORKERS, time=10, idle_timeout="30s")
            project.start("--quiet", "rules", "reason", "progress")
            time.sleep(max(0, back - time.monotonic()))
        finally:
            cluster.start_controller()
            cluster.start_node(node)
    began = sum(map(len, project.lines("began").values()))
    project.wait_for_beginnings(began + 2, seconds=60)
    project.go()
    project.end_well()
    check_results(project)
    check_that_nothing_is_left(project, kochi)


def check_results(project: ClusterProject) -> None:
    assert set(project.lines("done")) == JOBS
    numbers = range(COUNT)
    totals = sorted(sum(i for i in numbers if i % 6 == n) for n in range(6))
    assert (project.directory / "report").read_text().split() == list(map(str, totals))
    assert project.start("-n").wait(60) == 0
    assert "Nothing to be done" in project.said


def check_that_nothing_is_left(project: ClusterProject, kochi: Callable) -> None:
    machine, cluster = project.machine, project.cluster
    # A node that returns reports the end of its jobs.
    wait_until(lambda: not cluster.jobs() and not processes(cluster))
    assert list(machine.queues.glob("*")) == []
    assert open_runs(machine.directory) == []
    for what in ("jobs", "workers"):
        done = kochi("show", what, "--json", "-m", "own", cwd=project.directory)
        assert json.loads(done.stdout) == []
