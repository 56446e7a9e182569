"""`kochi work` and `kochi alloc`: workers that a person starts."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from seen import FIRST, list_jobs, list_workers
from slurm_cluster import SlurmCluster
from slurm_fake import FakeSlurm, says
from support import git, wait_until

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue.views import state_name

from .conftest import COMMAND, Outcome

Kochi = Callable[..., Outcome]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--walltime", "2x"), "'--walltime': '2x': a time like 90s, 30m, 2h or 1.5d was expected"),
        (("--walltime", "0"), "'--walltime': '0': a time like"),
        (("--memory", "lots"), "'--memory': 'lots': an amount of memory like 512M or 16G"),
        (("--memory", "1000"), "'--memory': '1000': an amount"),
        (("--walltime", "5s"), "a walltime of 5 seconds leaves no time for jobs"),
        (("--gpus", "a,b"), "--gpus a,b: a number of GPUs was expected"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(
    kochi: Kochi, arguments: tuple[str, ...], said: str
) -> None:
    done = kochi("work", "-q", "q", *arguments)
    assert done.status != 0
    assert said in done.err
    assert "Traceback" not in done.err


def test_the_limits_reach_the_worker(kochi: Kochi) -> None:
    limits = ("--cores", "3", "--memory", "2G", "--gpus", "0,2", "--walltime", "1.5h")
    subprocess.run([*COMMAND, "work", "-q", "q", *limits], check=True)
    (worker,) = kochi("show", "workers", "-a", "--json").data
    assert (worker["cores"], worker["memory_mb"], worker["gpus"]) == (3, 2048, 2)
    assert worker["until"] is not None


STAYS = "alloc_script: 'echo node=$KOCHI_ALLOC_NODE_SPEC limit=$KOCHI_ALLOC_TIME_LIMIT; " + (
    "$KOCHI_WORKER_LAUNCH_CMD'"
)


@pytest.fixture
def machine(own_surroundings: Path) -> MachinePaths:
    return Root.find().machine("own")


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make the current directory a project with a machine `own`."""
    directory = tmp_path / "proj"
    directory.mkdir()
    git(directory, "init", "--quiet")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "own")

    def write(machine: str) -> None:
        (directory / "kochi.yaml").write_text(f"machines:\n  own: {{{machine}}}\n")

    yield write
    wait_until(lambda: all(worker.is_gone for worker in list_workers(Root.find().machine("own"))))


def test_a_worker_got_by_the_script_runs_the_jobs_of_the_queue_and_leaves(
    configure: Callable, kochi: Kochi, machine: MachinePaths
) -> None:
    configure(STAYS)
    for queue in ("fib_a", "fib_b"):
        assert kochi("enqueue", "-q", queue, "--", "echo", f"from {queue}").status == 0
    done = kochi("alloc", "-q", "fib_${nodes}", "-n", "a", "-n", "b", "-t", "30", "-f")
    assert done.status == 0, done.err
    for number, queue in ((FIRST, "fib_a"), (FIRST + 1, "fib_b")):
        assert f"Requested worker {number} for queue {queue}: allocation " in done.out
    assert [worker.queues for worker in list_workers(machine)] == [("fib_a",), ("fib_b",)]
    assert "from fib_a" in done.out
    assert "from fib_b" in done.out
    assert [worker.state for worker in list_workers(machine)] == ["left"] * 2
    ended = list_jobs(machine, ended=True)
    assert {(view.queue, state_name(view)) for view in ended} == {
        ("fib_a", "succeeded"),
        ("fib_b", "succeeded"),
    }
    said = sorted(path.read_text() for path in machine.allocations.glob("*.out"))
    assert said == ["node=a limit=30\n", "node=b limit=30\n"]


def test_without_f_it_returns_at_once_and_says_how_a_script_that_stays_is_ended(
    configure: Callable, kochi: Kochi, machine: MachinePaths
) -> None:
    configure(STAYS)
    done = kochi("alloc", "-q", "test", "-b", "-d", "2")
    assert done.status == 0
    wait_until(lambda: len(list_workers(machine)) == 2)
    assert {worker.state for worker in list_workers(machine)} == {"running"}
    ends = [line.split("kill -- -")[1] for line in done.err.splitlines() if "kill -- -" in line]
    for group in ends:
        os.killpg(int(group), signal.SIGTERM)
    wait_until(lambda: {worker.state for worker in list_workers(machine)} == {"left"})


def test_kochi_in_the_shell_of_an_allocation_is_about_the_same_machine(
    configure: Callable, kochi: Kochi, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure("alloc_interact_script: exec bash")
    monkeypatch.delenv("KOCHI_DEFAULT_MACHINE")
    words = shlex.join(COMMAND)
    done = subprocess.run(
        [*COMMAND, "alloc_interact", "-m", "own"],
        input=f"{words} enqueue -q q -- true; {words} show job {FIRST}",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert kochi("show", "job", FIRST, "-m", "own").status == 0


def test_workers_of_a_machine_with_slurm_are_got_by_sbatch(
    configure: Callable,
    kochi: Kochi,
    machine: MachinePaths,
    cluster: SlurmCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure("scheduler: slurm")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    say = ("bash", "-c", "echo on $SLURMD_NODENAME")
    for queue in ("q_node1", "q_node2"):
        assert kochi("enqueue", "-q", queue, "--", *say).status == 0
    done = kochi("alloc", "-q", "q_${nodes}", "-n", "node1", "-n", "node2", "-t", "5", "-f")
    assert done.status == 0, done.err
    assert "on node1" in done.out
    assert "on node2" in done.out
    capacities = [worker.capacity for worker in list_workers(machine)]
    # The memory that Slurm gives by default, without what the worker keeps (at most half), and not
    # that of the computer.
    assert [(each.cores, each.memory_mb) for each in capacities] == [(2, 2 * 256 - 256)] * 2
    wait_until(lambda: not cluster.jobs())


def test_why_an_allocation_waits_is_told_with_what_to_do(
    configure: Callable, kochi: Kochi, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure("scheduler: slurm, allocation: {arguments: [--hold]}")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    done = kochi("alloc", "-q", "q")
    assert done.status == 0, done.err
    [allocation] = cluster.jobs()
    assert f"Allocation {allocation} waits: JobHeldUser. It is held" in done.err
    assert f"scontrol release {allocation}" in done.err
    cancel = next(line for line in done.err.splitlines() if "scancel" in line).partition("type: ")
    cluster.run(*cancel[2].split())
    wait_until(lambda: not cluster.jobs())


@pytest.mark.parametrize(
    ("configuration", "arguments", "said"),
    [
        ("", (), "machine own has neither a scheduler nor an alloc_script"),
        ("", (), "On a login node of a Slurm cluster, add it as a machine: kochi init --machine"),
        (STAYS, ("-q", "q_${nodes}"), "-n SPEC was expected"),
        (STAYS, ("-q", "../x"), "queue name '../x' cannot be used"),
        ("scheduler: slurm", ("-t", "soon"), "'soon': a time like"),
        (
            "alloc_script: 'echo no >&2; exit 3'",
            (),
            "exit status 3, and printed:\nno\nCorrect machines: own: alloc_script in kochi.yaml.",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    configure: Callable,
    kochi: Kochi,
    machine: MachinePaths,
    configuration: str,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    configure(configuration)
    done = kochi("alloc", "-q", "q", *arguments)
    assert done.status != 0
    assert said in done.err
    assert list_workers(machine) == []


def test_an_allocation_that_ends_before_its_worker_starts_is_told(
    configure: Callable, kochi: Kochi
) -> None:
    configure("alloc_script: 'sleep 1.2; echo too late; exit 5'")
    done = kochi("alloc", "-q", "q", "-f")
    assert done.status == 1
    assert "ended before its worker started" in done.err
    assert "exit status 5, and printed:\ntoo late" in done.err


@pytest.mark.parametrize(
    ("words", "time", "where"),
    [
        (("alloc", "-q", "q"), "time: 2:00:00", "machines: own: allocation: time in kochi.yaml"),
        (("alloc", "-q", "q", "-t", "2h"), "", "option -t"),
        (("alloc_interact", "-t", "2h"), "", "option -t"),
        (("launch", "--in-allocation", "-t", "2h", "--", "all"), "", "-t, or controller: time"),
    ],
)
def test_more_time_than_the_partition_has_is_refused_before_anything_is_submitted(
    fake: FakeSlurm, configure: Callable, words: tuple[str, ...], time: str, where: str
) -> None:
    configure(f"scheduler: slurm, allocation: {{{time}}}")
    fake.answers("sinfo", says("main*|30:00|16|4000|(null)"))
    # Not in this process: what is not refused may become salloc.
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert done.returncode == 1
    assert "an allocation of 2:00:00 would wait for ever: the longest time of" in done.stderr
    assert f"Request 0:30:00 at most, by {where}, choose another partition, or " in done.stderr
    assert fake.calls("sbatch") == fake.calls("salloc") == []


def test_cores_that_no_node_has_are_remarked(
    fake: FakeSlurm, configure: Callable, kochi: Kochi
) -> None:
    configure("scheduler: slurm, allocation: {cores: 64}")
    fake.answers("sinfo", says("main*|30:00|16|4000|(null)"))
    done = kochi("alloc", "-q", "q")
    said = "machines: own: allocation: cores in kochi.yaml: no node has 64 cores, and 16 are used"
    assert (done.status, said in done.err) == (0, True)


@pytest.mark.parametrize("memory", ["", "memory: 2G"])
def test_the_default_memory_of_the_scheduler_is_told_where_none_is_set(
    fake: FakeSlurm, configure: Callable, kochi: Kochi, memory: str
) -> None:
    configure(f"scheduler: slurm, allocation: {{{memory}}}")
    fake.answers("sinfo", says("main*|30:00|16|4000|(null)"))
    done = kochi("alloc", "-q", "q")
    assert done.status == 0
    assert "no node has" not in done.err
    said = "No memory is set: each allocation (16 cores) has the scheduler's default"
    assert (said in done.err) is (not memory)
    assert ("machines: own: allocation: memory in kochi.yaml" in done.err) is (not memory)


@pytest.mark.parametrize(
    ("words", "client", "what"),
    [
        (("alloc", "-q", "q"), "sbatch", "queue=q"),
        (("alloc_interact",), "salloc", "shell"),
        (("launch", "--in-allocation", "--name", "mine", "--", "all"), "sbatch", "run=mine"),
        (("doctor", "--allocations"), "sbatch", "doctor"),
    ],
)
def test_the_comment_of_each_allocation_says_what_it_is_for(
    fake: FakeSlurm, configure: Callable, words: tuple[str, ...], client: str, what: str
) -> None:
    configure("scheduler: slurm")
    fake.answers("sinfo", says("main*|30:00|16|4000|(null)"))
    for each in ("squeue", "scancel"):
        fake.answers(each, "exit 0")
    subprocess.run([*COMMAND, *words], check=False)  # one of them becomes salloc
    assert any(f"--comment=kochi:project=proj:{what} " in call for call in fake.calls(client))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    programs, path = tmp_path / "programs", os.environ["PATH"]
    programs.mkdir()
    slurm = FakeSlurm(programs, monkeypatch)
    monkeypatch.setenv("PATH", f"{programs}:{path}")
    for each in ("sbatch", "salloc"):
        slurm.answers(each, says("7"))
    slurm.answers("scontrol", "exit 1")
    return slurm


def test_where_nodes_are_of_several_kinds_an_existing_one_is_requested(
    fake: FakeSlurm, configure: Callable, kochi: Kochi
) -> None:
    configure("scheduler: slurm")
    fake.answers("sinfo", says("main*|infinite|16|4000|gpu:4\nmain*|infinite|64|8000|(null)"))
    assert kochi("alloc", "-q", "q").status == 0
    [call] = fake.calls("sbatch")
    assert "--cpus-per-task=64" in call
    assert "--mem" not in call
    assert "--gres" not in call
