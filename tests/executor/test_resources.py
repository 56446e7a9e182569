"""Resources in the words of Snakemake's Slurm executor, and resources that grow with each retry."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_helpers import background
from support import write

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.job_queues import JobQueues
from snakemake_kochi.files import is_name
from snakemake_kochi.paths import Root
from snakemake_kochi.queue import (
    Capacity,
    Claim,
    Queue,
    Resources,
    Result,
    Ticket,
    remove_private_queues,
)
from snakemake_kochi.queue.processes import this_node
from snakemake_kochi.schedulers.request import NO_REQUEST, AllocationRequest
from snakemake_kochi.schedulers.resources import read_request
from snakemake_kochi.schedulers.settings import AllocationSettings


class Job:
    """As much of a job as a request is read of."""

    name = "one"

    def __init__(self, **resources: Any) -> None:
        self.resources = resources


class Log:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)

    def debug(self, text: str) -> None:
        pass


def read(wanted: Resources = Resources(), **values: Any) -> tuple[AllocationRequest, Resources]:  # noqa: B008
    return read_request("one", values, wanted)


# ---- what is asked for


def test_without_such_resources_nothing_is_wished() -> None:
    assert read(mem_mb=1000, disk_mb=10**6, runtime=3, tmpdir="/tmp") == (NO_REQUEST, Resources())
    assert NO_REQUEST.name == ""


@pytest.mark.parametrize(
    "values",
    [
        {"tasks": 1, "nodes": 1, "tasks_per_node": 1},
        {"slurm_partition": "", "slurm_account": "", "slurm_extra": "", "gpu_model": ""},
        {"mpi": "", "mem_mb_per_cpu": 0, "cpus_per_task": 1},
    ],
)
def test_what_says_nothing_else_than_what_is_anyway_is_no_wish(values: dict[str, Any]) -> None:
    assert read(**values) == (NO_REQUEST, Resources())


def test_what_a_job_says_counts_instead_of_what_the_machine_says() -> None:
    settings = AllocationSettings(
        partition="short", account="all", qos="low", constraint="cpu", cores=4, memory_mb=1000
    )
    request, _ = read(slurm_partition="long", slurm_account="a, b", constraint="")
    assert request.over(settings) == AllocationSettings(
        partition="long", account="a", qos="low", constraint=None, cores=None, memory_mb=None
    )
    assert NO_REQUEST.over(settings) == settings
    assert read(qos="high", slurm_partition="short")[0].over(settings) == replace(
        settings, qos="high"
    )


def test_cores_and_memory_may_be_said_in_slurms_terms() -> None:
    _, wanted = read(Resources(cores=2, memory_mb=1), cpus_per_task=4, mem_mb_per_cpu=100)
    assert (wanted.cores, wanted.memory_mb) == (4, 400)
    assert read(Resources(cores=2), cpus_per_task=1)[1].cores == 2
    assert read(Resources(cores=2), cpus_per_task=-1)[1].cores == 2
    assert read(Resources(gpus=2), cpus_per_gpu=3)[1].cores == 6


@pytest.mark.parametrize(
    ("values", "gpus", "asked"),
    [
        ({"gres": "gpu:2"}, 0, "gpu:2"),
        ({"gres": "gpu"}, 0, "gpu:1"),
        ({"gres": "gpu:a100:2"}, 0, "gpu:a100:2"),
        ({"gpu_model": "a100"}, 0, "gpu:a100:1"),
        ({"gpu_model": "a100"}, 3, "gpu:a100:3"),
        ({"gres": "shard:4,gpu:1"}, 0, "shard:4,gpu:1"),
        ({"gres": "shard:4"}, 2, "shard:4,gpu:2"),
        ({"slurm_extra": "--gres=gpu:a100:1"}, 0, "gpu:a100:1"),
    ],
)
def test_gpus_are_counted_in_whichever_way_they_are_said(
    values: dict[str, Any], gpus: int, asked: str
) -> None:
    request, wanted = read(Resources(gpus=gpus), **values)
    number = int(asked.rpartition(":")[2])
    assert wanted.gpus == number
    settings = request.over(AllocationSettings())
    assert request.generic_resources(settings, wanted.gpus) == asked
    assert request.arguments == ()


def test_a_machines_own_generic_resources_stay_but_for_gpus_that_a_job_says() -> None:
    settings = AllocationSettings(gres="gpu:v100:4,nvme:1")
    assert NO_REQUEST.generic_resources(settings, 2) == "gpu:v100:4,nvme:1"
    request, _ = read(gpu_model="a100")
    assert request.generic_resources(settings, 1) == "nvme:1,gpu:a100:1"


def test_a_job_of_several_tasks_has_an_allocation_of_that_shape_to_itself() -> None:
    request, wanted = read(Resources(cores=3, memory_mb=500), mpi="srun", tasks=8)
    assert request.shape == ["--ntasks=8", "--cpus-per-task=3", "--mem=500M"]
    assert wanted == Resources(cores=3, memory_mb=500, exclusive=True, pinned=False)
    request, wanted = read(mpi="mpirun", nodes=2, tasks_per_node=4, mem_mb_per_cpu=100)
    assert request.shape == [
        *("--nodes=2", "--ntasks-per-node=4", "--cpus-per-task=1", "--mem-per-cpu=100M")
    ]
    assert wanted.cores == 4
    request, wanted = read(Resources(gpus=2), tasks=2, gpu_model="a100")
    assert request.shape == ["--ntasks=4", "--cpus-per-task=1", "--gpus=a100:2"]
    assert request.generic_resources(AllocationSettings(), 0) is None
    assert "--exclusive" in read(Resources(exclusive=True), nodes=2)[0].shape


def test_beside_a_job_of_several_nodes_is_memory_for_the_worker_if_nodes_have_as_much() -> None:
    def asked(node: Capacity, wanted: Resources, **values: object) -> str:
        request, _ = read(wanted, nodes=2, tasks_per_node=4, **values)
        (option,) = [
            each
            for each in request.with_room_for_worker(512, node).shape
            if each.startswith("--mem")
        ]
        return option

    node = Capacity(8, 8000)
    assert asked(node, Resources(memory_mb=1000)) == "--mem=1512M"
    assert asked(node, Resources(memory_mb=7900)) == "--mem=8000M"
    assert asked(node, Resources(), mem_mb_per_cpu=100) == "--mem-per-cpu=228M"
    assert asked(node, Resources(), mem_mb_per_cpu=990) == "--mem-per-cpu=1000M"
    # What nodes have is not known, or less than that.
    assert asked(Capacity(1, 0), Resources(memory_mb=1000)) == "--mem=1000M"
    assert asked(Capacity(1, 0), Resources(), mem_mb_per_cpu=100) == "--mem-per-cpu=100M"
    request, _ = read(nodes=2)
    assert request.with_room_for_worker(512, node) == request


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("--qos=x --nice", ("--qos=x", "--nice")),
        ("'--qos=x --mail-type=END'", ("--qos=x", "--mail-type=END")),
        ("--nodelist node1 -w node2", ("--nodelist=node1", "-wnode2")),
        ("--comment='two words'", ("--comment=two words",)),
    ],
)
def test_further_options_are_taken_apart_as_a_shell_does(
    text: str, arguments: tuple[str, ...]
) -> None:
    assert read(slurm_extra=text)[0].arguments == arguments


# ---- what cannot be


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--output=x", "kochi sets it itself"),
        ("-o x", "kochi sets it itself"),
        ("--out x", "kochi sets it itself"),
        ("--array=1-3", "kochi sets it itself"),
        ("-Jmine", "kochi sets it itself"),
        ("--wrap=ls", "a worker is started by kochi"),
        ("-d afterok:1", "a worker is started by kochi"),
        ("--time=3", "resource runtime is for that"),
        ("-p long", "resource slurm_partition is for that"),
        ("--gpus=2", "resource gpu is for that"),
        ("-Mother", "all jobs of a run go to the cluster of its machine"),
    ],
)
def test_options_that_kochi_needs_for_itself_are_refused_with_the_reason(
    option: str, why: str
) -> None:
    with pytest.raises(KochiError, match=f"rule one, resource slurm_extra: .*: {why}"):
        read(slurm_extra=f"--nice {option}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"slurm_extra": "script.sh"}, r"'script.sh' is no option of sbatch"),
        ({"slurm_extra": "--comment='x"}, r"options of sbatch were expected"),
        ({"qos": ["a"]}, r"resource qos: \['a'\] cannot be used: a text"),
        ({"constraint": "a\nb"}, r"resource constraint: .*a text of one line"),
        ({"nodes": "many"}, r"resource nodes: 'many' .*a whole number from 1"),
        ({"nodes": 0}, r"resource nodes: 0 .*a whole number from 1"),
        ({"tasks": True}, r"resource tasks: True .*a whole number from 1"),
        ({"mem_mb_per_cpu": -1}, r"resource mem_mb_per_cpu: -1 .*a whole number from 1"),
        ({"gres": "'gpu:1'"}, r"resource gres: .*gpu:a100:2"),
        ({"gres": "gpu:1", "gpu": 1}, r"resource gres: .*GPUs are in resource gpu already"),
        ({"gpu_model": "a b"}, r"resource gpu_model: 'a b' .*the name of a model"),
        ({"mpi": "srun"}, r"resource mpi: .*tasks or tasks_per_node was expected"),
        ({"mpi": "srun", "tasks": 1}, r"resource tasks: 1 .*a whole number from 2"),
        ({"mpi": "srun", "tasks": 2, "tasks_per_node": 2}, r"resource tasks: .*not both"),
        ({"clusters": "other"}, r"resource clusters: all jobs of a run go to one cluster"),
    ],
)
def test_what_cannot_be_is_refused_with_rule_and_resource(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(KochiError, match=f"rule one, resource .*{said}|{said}"):
        read(**values)


# ---- where jobs go


def test_jobs_with_the_same_wish_share_a_queue_and_others_do_not() -> None:
    own = f"run-{'h' * 64}-4194304-01234567"
    requests = JobQueues(own, True, Log())  # type: ignore[arg-type]

    def queue(**values: Any) -> str:
        placed = requests.place(Job(**values), own, Resources())  # type: ignore[arg-type]
        assert requests.of(placed.queue) == placed.request
        return placed.queue

    assert queue() == queue(tasks=1, mem_mb=3) == own
    long = queue(slurm_partition="long")
    assert long == queue(slurm_partition="long", cpus_per_task=1)
    others = [queue(slurm_partition="longer" * 40), queue(qos="long"), queue(slurm_partition="x/y")]
    assert len({own, long, *others}) == 5
    assert all(is_name(each) and each.startswith(f"{own}-") for each in (long, *others))
    assert "partition_long" in long


def test_jobs_that_are_to_be_alone_have_workers_of_their_own_where_those_have_whole_nodes() -> None:
    def placed(own: str, are_granted: bool = True, **values: Any) -> tuple[str, bool]:
        log = Log()
        requests = JobQueues(own, are_granted, log)  # type: ignore[arg-type]
        job: Any = Job(**values)
        found = requests.place(job, "run-me", Resources(exclusive=True))
        assert log.warnings == []
        return found.queue, found.request.whole_nodes

    alone = placed("run-me")
    assert alone[0].startswith("run-me-nobody_beside_it-")
    assert alone[1]
    assert placed("run-me", slurm_partition="long")[0] not in ("run-me", alone[0])
    assert placed("run-me", are_granted=False) == ("run-me", False)
    assert placed("another") == ("run-me", False)


@pytest.mark.parametrize(("are_granted", "warnings"), [(True, 1), (False, 1)])
def test_a_queue_that_is_not_the_runs_own_has_no_wishes_and_that_is_said_once(
    are_granted: bool, warnings: int
) -> None:
    log = Log()
    requests = JobQueues("run-me", are_granted, log)  # type: ignore[arg-type]
    for _ in range(3):
        job = Job(slurm_partition="long")
        assert requests.place(job, "q", Resources()).queue == "q"  # type: ignore[arg-type]
    assert len(log.warnings) == warnings
    assert "slurm_partition" in log.warnings[0]


def test_without_allocations_wishes_are_ignored_silently_also_those_that_cannot_be() -> None:
    log = Log()
    requests = JobQueues("run-me", False, log)  # type: ignore[arg-type]
    job = Job(slurm_partition="long", nodes="many", cpus_per_task=99)
    placed = requests.place(job, "run-me", Resources())  # type: ignore[arg-type]
    assert (placed.queue, placed.resources) == ("run-me", Resources())
    assert log.warnings == []


def test_a_name_that_nobody_reads_is_told_once_with_the_nearest_one() -> None:
    log = Log()
    requests = JobQueues("run-me", True, log)  # type: ignore[arg-type]
    for _ in range(2):
        requests.place(Job(slurm_partion="x"), "run-me", Resources())  # type: ignore[arg-type]
        requests.place(Job(slurm_qos="x"), "run-me", Resources())  # type: ignore[arg-type]
    assert log.warnings == [
        "Rule one, resource slurm_partion is not known; did you mean 'slurm_partition'?",
        "Rule one, resource slurm_qos is not known; did you mean 'qos'?",
    ]


def test_all_queues_of_a_run_go_with_it_but_for_those_with_a_ticket_and_nobody_elses(
    tmp_path: Path,
) -> None:
    machine = Root(tmp_path / "root").machine("local")
    for name in ("run-a-1", "run-a-1-long-0", "run-a-1-full-0", "run-a-12", "q"):
        machine_queue = Queue(machine, name)
        machine_queue.submit([Ticket(name="x", command=("true",), directory=str(tmp_path))])
        if name != "run-a-1-full-0":
            (claim,) = machine_queue.claim(1, lambda _: "take")
            assert machine_queue.finish(claim, result(claim, "success"))
    remove_private_queues(machine, "a-1")
    assert sorted(each.name for each in machine.queues.iterdir()) == [
        *("q", "run-a-1-full-0", "run-a-12")
    ]


# ---- retries


@pytest.fixture
def queue(isolated_environment: Path) -> Queue:
    return Queue(Root(isolated_environment).machine("local"), "q")


def claimed(queue: Queue) -> Iterator[Claim]:
    """What a worker of the queue gets to do."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        yield from queue.claim(7, lambda _: "take")
        time.sleep(0.02)
    raise TimeoutError("no job came")


def result(claim: Claim, reason: Any) -> Result:
    return Result(
        job=claim.ticket.job,
        attempt=claim.ticket.attempt,
        nonce=claim.nonce,
        worker=claim.worker,
        node=this_node().host,
        reason=reason,
        exit_status=0 if reason == "success" else None,
        signal=None,
        started=claim.ticket.submitted,
        ended=claim.ticket.submitted,
        log="/log",
    )


def test_out_of_memory_and_timeout_count_as_retries_that_ask_for_more_and_a_drain_as_none(
    tmp_path: Path, queue: Queue
) -> None:
    write(
        tmp_path / "Snakefile",
        """
        rule a:
            output: "a.txt"
            retries: 2
            resources:
                mem_mb=lambda wildcards, attempt: 100 * attempt,
                runtime=lambda wildcards, attempt: 10 * attempt,
            shell: "exit 1"
        """,
    )
    run = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "1")
    asked = []
    with background(*run, "--kochi-queue", "q", cwd=tmp_path) as controller:
        coming = claimed(queue)
        for end in ("drained", "node failed", "out of memory", "drained", "timeout", "success"):
            claim = next(coming)
            resources = claim.ticket.resources
            asked.append((end, resources.memory_mb, resources.runtime_seconds))
            if end in ("drained", "node failed"):
                queue.requeue(claim, end)  # type: ignore[arg-type]
                continue
            if end == "success":
                (tmp_path / "a.txt").touch()
            assert queue.finish(claim, result(claim, end))
        output, _ = controller.communicate(timeout=40)
    print(output)
    assert controller.returncode == 0
    assert asked == [
        ("drained", 100, 600),
        ("node failed", 100, 600),
        ("out of memory", 100, 600),
        ("drained", 200, 1200),
        ("timeout", 200, 1200),
        ("success", 300, 1800),
    ]
    assert "out of memory" in output
    assert "timeout" in output
