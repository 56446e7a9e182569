"""`snakemake_kochi.submit`: jobs by hand from Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from seen import FIRST, find_job, list_queues, list_workers
from support import wait_until

import snakemake_kochi
from snakemake_kochi.enqueue import job as jobs
from snakemake_kochi.enqueue import own_worker
from snakemake_kochi.errors import KochiError, NameNotFoundError, WorkerError
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.tickets.ticket import Resources

from .conftest import Outcome

Kochi = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def own_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers of this process end with the test."""
    started: dict[object, own_worker.OwnWorker] = {}
    monkeypatch.setattr(own_worker, "_OWN", started)
    yield
    for worker in started.values():
        worker.stop()


def test_a_job_runs_on_a_worker_of_this_process_and_tells_how_it_ended(
    own_surroundings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", "as a line for bash")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = snakemake_kochi.submit('echo "$SEEN"; pwd; echo oops >&2', name="good")
        bad = snakemake_kochi.submit(["sh", "-c", "exit 3"])
        killed = snakemake_kochi.submit("kill -9 $$", cores=1)
        assert "kochi work" not in good.reason, "nobody needs to start its worker"
        assert good.wait() is good
        bad.wait(), killed.wait()
    assert good.stdout == f"as a line for bash\n{own_surroundings}\noops\n"
    assert (good.ok, good.exit_status, good.state, good.name) == (True, 0, "succeeded", "good")
    assert (bad.ok, bad.exit_status, bad.state, bad.stdout) == (False, 3, "failed", "")
    assert bad.reason.startswith(f"exit status 3, attempt 1 on worker {FIRST} on ")
    assert (killed.ok, killed.exit_status) == (False, None)
    assert repr(killed).endswith(", failed: killed by SIGKILL>")
    assert repr(bad) == f"<Job {FIRST + 1} 'ANON' in queue '{bad.queue}', failed: exit status 3>"
    machine = Root.find().machine("local")
    assert len(list_workers(machine)) == 1
    tickets = [find_job(machine, FIRST + job).ticket for job in range(3)]
    assert [ticket.resources if ticket else None for ticket in tickets] == [
        *(Resources(exclusive=True), Resources(exclusive=True), Resources(cores=1))
    ]


def test_a_timeout_ends_the_waiting_and_a_cancelled_job_ends(own_surroundings: Path) -> None:
    job = snakemake_kochi.submit("echo begun; sleep 300")
    wait_until(lambda: job.stdout == "begun\n")
    assert (job.ok, job.exit_status, job.state) == (None, None, "running")
    said = rf"job {FIRST} has not ended after .*worker {FIRST} on .* runs it"
    with pytest.raises(TimeoutError, match=said):
        job.wait(timeout=0.05)
    with pytest.raises(KochiError):
        job.wait(timeout=0)
    assert job.cancel() == "cancelling"
    assert job.wait().state == "cancelled"
    assert (job.ok, job.cancel()) == (False, "ended")


def test_ctrl_c_ends_the_waiting_and_not_the_job(
    own_surroundings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = snakemake_kochi.submit("while [ ! -e go ]; do sleep 0.1; done; echo done")
    wait_until(lambda: job.state == "running")

    has_ended = jobs.has_ended

    def look(machine: MachinePaths, number: int) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return has_ended(machine, number)

    # A timer could be faster than what it is to interrupt.
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as caught:
        patch.setattr(jobs, "has_ended", look)
        job.wait()
    assert caught.value.__notes__ == [f"Job {FIRST} goes on. To end it: cancel()"]
    assert job.state == "running"
    Path("go").touch()
    assert job.wait().stdout == "done\n"


def warned_while_waiting(job: jobs.Job) -> str:
    """The warnings of half a second, in which a busy computer may not come to look."""
    with warnings.catch_warnings(record=True) as caught, pytest.raises(TimeoutError):
        warnings.simplefilter("always")
        job.wait(timeout=0.5)
    return "\n".join(str(each.message) for each in caught)


def test_a_named_queue_is_served_by_others_and_what_a_job_waits_for_is_said(
    own_surroundings: Path, worker: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_LOOK", 0.05)
    expected = "No worker serves that queue yet. To start one, type: kochi work -q test"
    with pytest.warns(UserWarning, match=expected):
        job = snakemake_kochi.submit("echo served", queue="test")
    assert "waiting: no worker serves queue test; start one with: kochi work -q test" in repr(job)
    waits = f"job {FIRST} waits: no worker serves queue test"
    wait_until(lambda: waits in warned_while_waiting(job))
    worker("test")
    assert job.wait().stdout == "served\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large = snakemake_kochi.submit("true", queue="test", cores=4096)
    said = f"can ever run it; worker {FIRST}: 4096 cores needed"
    wait_until(lambda: said in warned_while_waiting(large))
    assert large.cancel() == "cancelled"


def test_an_experiment_a_recipe_and_a_copy_as_with_kochi_enqueue(
    installed: Path, kochi: Kochi
) -> None:
    text = (installed / "fib.yaml").read_text()
    (installed / "own.yaml").write_text(text.replace("default_queue: fib-queue\n", ""))
    run = snakemake_kochi.submit(["own.yaml", "debug=1", "n=12"])
    tool = snakemake_kochi.submit(["bash", "-c", "echo $TOOL_IS"], recipes="tool:release")
    copy = snakemake_kochi.submit("cat code; touch left", copy=True)
    assert run.wait().stdout == "Compiling with debug=1\nfib of 12\n"
    assert tool.wait().stdout == "release\n"
    assert copy.wait().stdout == "echo fib of $1\n"
    assert not (installed / "left").exists()
    labels = kochi("show", "job", run.number, "--json").data["labels"]
    assert labels["parameters"] == "n=12, debug=1"
    with pytest.warns(UserWarning) as caught:
        job = snakemake_kochi.submit(["fib.yaml", "nothing=1"])
    assert job.queue == "fib-queue"
    said = "\n".join(str(each.message) for each in caught)
    assert "fib.yaml: nothing uses the parameter 'nothing'" in said
    assert "kochi work -q fib-queue" in said
    job.cancel()


def test_what_cannot_be_is_refused_and_nothing_is_submitted(installed: Path) -> None:
    for given, expected in (
        ({"command": ""}, "a command was expected"),
        ({"command": []}, "a command was expected"),
        ({"command": "fib.yaml n=3"}, "submit(['fib.yaml', 'n=3'])"),
        ({"command": ["fob.yaml"]}, "there is no file fob.yaml, did you mean 'fib.yaml'?"),
        ({"command": "ls", "memory": "2X"}, "memory '2X': "),
        ({"command": "ls", "cores": 0}, "cores 0 cannot be used"),
        ({"command": "ls", "cores": 4096}, "4096 cores needed, "),
        ({"command": "ls", "gpus": 64}, "64 GPUs needed, "),
        ({"command": "ls", "memory": "999T"}, "MiB of memory needed"),
        ({"command": "ls", "queue": "../x"}, "queue name '../x' cannot be used"),
        ({"command": "ls", "recipes": ["tool:relaese"]}, "did you mean 'release'?"),
        ({"command": "ls", "recipes": ["tool:debug"]}, "kochi install"),
        ({"command": "ls", "machine": "locl"}, "did you mean 'local'?"),
    ):
        with pytest.raises(KochiError) as caught:
            snakemake_kochi.submit(**given)
        assert expected in str(caught.value), given
    machine = Root.find().machine("local")
    assert list_queues(machine) == [] and list_workers(machine) == []


def test_on_a_machine_with_compute_nodes_a_queue_is_needed(project: Path) -> None:
    machine = "machines: {spica: {alloc_script: 'true'}}\n"
    with (project / "kochi.yaml").open("a") as stream:
        stream.write(machine)
    with pytest.raises(KochiError, match=r"kochi alloc -m spica -q QUEUE"):
        snakemake_kochi.submit("ls", machine="spica")


def test_the_death_of_the_own_worker_is_told_and_the_next_one_goes_on(
    own_surroundings: Path,
) -> None:
    job = snakemake_kochi.submit("while [ ! -e go ]; do sleep 0.1; done; echo done")
    wait_until(lambda: job.state == "running")
    (worker,) = own_worker._OWN.values()
    process = worker._process
    assert process is not None
    process.kill()
    said = f"worker {FIRST}, which this process started, ended with"
    with pytest.raises(WorkerError, match=said):
        job.wait()
    Path("go").touch()
    assert snakemake_kochi.submit("true").wait().ok
    assert job.wait().ok


PROGRAM = """
import snakemake_kochi
jobs = [snakemake_kochi.submit("echo begun > begun; sleep 300") for _ in range(2)]
print(jobs[0].queue, flush=True)
while not __import__("os").path.exists("begun"):
    pass
%s
"""


@pytest.mark.parametrize("end", ["", "import os; os.kill(os.getpid(), 9)"])
def test_the_own_worker_ends_with_its_process_and_cancels_its_jobs(
    end: str, own_surroundings: Path, kochi: Kochi
) -> None:
    command = [sys.executable, "-P", "-c", PROGRAM % end]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    machine = Root.find().machine("local")
    wait_until(lambda: all(worker.state == "left" for worker in list_workers(machine)))
    assert done.stdout.startswith("python-")
    wait_until(lambda: not list_queues(machine))
    found = [kochi("show", "job", FIRST + number, "--json").data["state"] for number in range(2)]
    assert found == ["cancelled"] * 2


def test_an_unknown_job_is_told(own_surroundings: Path) -> None:
    job = snakemake_kochi.submit("true").wait()
    job.number = 99
    with pytest.raises(NameNotFoundError, match="there is no job 99"):
        repr(job)
