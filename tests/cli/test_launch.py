"""`kochi launch`: runs that go on without the terminal in which they were launched."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from slurm_cluster import SlurmCluster
from support import git, wait_until, write

from snakemake_kochi.detached.control import Watch
from snakemake_kochi.detached.launches import (
    Found,
    Steps,
    last_launch,
    make_launch,
    read_steps,
    write_end,
    write_stop,
)
from snakemake_kochi.files import make_directory
from snakemake_kochi.paths import Root
from snakemake_kochi.processes import this_node
from snakemake_kochi.tickets import watching
from snakemake_kochi.tickets.watching import FIRST

from .conftest import COMMAND, Outcome

Kochi = Callable[..., Outcome]
# Each job waits for a file, so that nothing depends on how fast this computer is.
SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(2))

    rule job:
        output: "out/{i}"
        shell:
            "touch begun{wildcards.i}; while [ ! -e go ]; do sleep 0.1; done; "
            "echo ${{SLURM_JOB_NAME-none}} ${{SLURM_OUTER-none}} > {output}"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a workflow; nothing that was launched in it is left."""
    directory = tmp_path / "run"
    write(directory / "Snakefile", SNAKEFILE)
    monkeypatch.chdir(directory)
    yield directory
    (directory / "go").touch()
    machine = os.environ.get("KOCHI_DEFAULT_MACHINE", "local")
    if last_launch(Root.find().machine(machine), str(directory)) is not None:
        wait_until(lambda: launched(machine).is_over)


def launched(machine: str = "local") -> Found:
    found = last_launch(Root.find().machine(machine), os.getcwd())
    assert found is not None
    return found


def begin(kochi: Kochi, here: Path, *options: str) -> Outcome:
    """Launch what the workflow makes by default, and wait until both jobs run."""
    done = kochi("launch", *options)
    assert done.status == 0, done.err
    wait_until(lambda: len(list(here.glob("begun*"))) == 2)
    return done


def processes_in(directory: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and Path(process.cwd()) == directory:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def test_a_run_goes_on_after_logout_and_its_status_is_told(kochi: Kochi, here: Path) -> None:
    begin(kochi, here, "--name", "mine")
    processes = launched().processes
    assert processes is not None
    assert os.getsid(processes.supervisor.pid) == processes.supervisor.pid != os.getsid(0)
    os.kill(processes.supervisor.pid, signal.SIGHUP)
    os.killpg(processes.run.pid, signal.SIGHUP)
    status: dict[str, Any] = kochi("launch", "--status", "--json").data
    assert (status["name"], status["state"], status["exit_status"]) == ("mine", "running", None)
    steps = ("steps_done", "steps_failed", "steps_total", "eta")
    assert [status[key] for key in steps] == [0, 0, 3, None]
    (here / "go").touch()
    done = kochi("launch", "--follow")
    assert done.status == 0
    assert "3 of 3 steps (100%) done" in done.out
    status = kochi("launch", "--status", "--json").data
    assert [status[key] for key in ("exit_status", *steps)] == [0, 3, 0, 3, None]


def test_the_status_of_a_run_that_begins_late_is_not_that_of_another_in_its_directory(
    kochi: Kochi, here: Path
) -> None:
    machine = Root.find().machine("local")
    make_directory(machine.launches)
    snakemake = [sys.executable, "-P", "-m", "snakemake"]
    _, paths = make_launch(machine, "late", [*snakemake, "--cores", "2"], is_job=False)
    write(here / "Other", "rule a:\n    output: 'a'\n    shell: 'touch {output}'\n")
    subprocess.run([*snakemake, "--snakefile", "Other", "--cores", "1"], check=True)
    assert len(list(here.glob(".snakemake/log/*"))) == 1
    assert kochi("launch", "--status", "--json").data["steps_total"] is None
    with paths.output.open("wb") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "snakemake_kochi.detached", str(paths.directory)],
            stdout=output,
            stderr=output,
        )
    with supervisor:
        wait_until(lambda: len(list(here.glob("begun*"))) == 2)
        wait_until(lambda: paths.log.exists())
        status: dict[str, Any] = kochi("launch", "--status", "--json").data
        (here / "go").touch()
    assert (status["state"], status["steps_done"], status["steps_total"]) == ("running", 0, 3)
    assert kochi("launch", "--status", "--json").data["steps_done"] == 3


def test_the_status_of_a_run_has_its_failures(kochi: Kochi, here: Path) -> None:
    write(here / "Snakefile", SNAKEFILE.replace("touch begun", "[ {wildcards.i} = 1 ]; : begun"))
    assert kochi("launch", "--", "--retries", "1").status == 0

    def told() -> str:
        return kochi("launch", "--status").out

    wait_until(lambda: "Steps failed: 1\n" in told())
    assert "Steps done: 0\n" in told()
    (here / "go").touch()
    wait_until(lambda: launched().is_over)
    assert told().endswith("Steps done: 1\nSteps failed: 1\nSteps total: 3\n")


def test_the_rest_of_a_run_takes_as_long_as_its_last_steps_tell() -> None:
    began = datetime(2026, 2, 3, 4, 5, 6)
    lines = ["total    22", f"[{began:%a %b %d %H:%M:%S %Y}]", "rule job:", "    jobid: 1"]
    for done in range(1, 11):
        moment = began + timedelta(seconds=60 * done)
        lines += [f"[{moment:%a %b %d %H:%M:%S %Y}]", f"{done} of 22 steps ({done * 4}%) done"]
    for job, more in (("30", []), ("31", ["Trying to restart job 31."])):
        lines += [
            "Error in rule job:",
            "    message: x",
            f"    jobid: {job}",
            "    output: x",
            *more,
        ]
    now = (began + timedelta(minutes=10)).timestamp()
    assert read_steps(lines, now, True) == Steps(10, 22, 1, 11 * 60)
    assert read_steps(lines, now, False) == Steps(10, 22, 1)
    lines.insert(2, "[lun dic  1 10:10:10 2025]")  # a job's program printed it
    assert read_steps(lines, now, False) == Steps(10, 22, 1)
    # What our logger prints has no times.
    assert read_steps(["5 of 10 steps (50%) done, 2 failed"], now, True) == Steps(5, 10, 2)
    assert read_steps(["Building DAG of jobs..."], now, True) is None


def test_a_run_that_fails_gives_its_exit_status_to_who_follows(kochi: Kochi, here: Path) -> None:
    words = ("--config", "said=two words", "--", "no_such_target")
    done = kochi("launch", "--follow", "--", *words)
    assert done.status == 1
    # What was launched is told as it can be pasted.
    assert f" {shlex.join(words)}\n" in kochi("launch", "--status").out
    assert "no_such_target" in done.out
    assert launched().status == 1
    done = kochi("launch", "--follow", "--name", "other")
    assert (done.status, "type its arguments" in done.err) == (2, True)


def test_a_run_is_alone_in_its_directory_and_goes_on_until_it_is_stopped_and_picked_up(
    kochi: Kochi, here: Path
) -> None:
    begin(kochi, here)
    first = launched().launch.identity
    done = kochi("launch", "--", "all")
    assert done.status == 1
    assert f"a run launched in this directory goes on: {first} (running)" in done.err
    assert "kochi launch --follow" in done.err
    assert launched().launch.identity == first
    # An interrupt ends the following and not the run.
    following = subprocess.Popen(
        [*COMMAND, "launch", "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    assert following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=120)
    assert following.returncode == 130
    assert "The run goes on." in said
    assert launched().state == "running"
    # To stop it ends it as an interrupt does, and the same command picks it up.
    done = kochi("launch", "--stop")
    assert done.status == 0
    assert "Cancelled 2 kochi jobs; nothing of this run is left." in done.out
    assert done.out.endswith(f"{launched().launch.identity} has ended.\n")
    assert launched().state == "ended"
    wait_until(lambda: not processes_in(here))
    assert "has ended already" in kochi("launch", "--stop").out
    (here / "go").touch()
    again = kochi("launch", "--follow", "--", "all")
    assert again.status == 0
    assert sorted(path.name for path in (here / "out").iterdir()) == ["0", "1"]


def test_a_run_whose_attendant_was_killed_goes_on_and_can_be_stopped(
    kochi: Kochi, here: Path
) -> None:
    begin(kochi, here)
    processes = launched().processes
    assert processes is not None
    os.kill(processes.supervisor.pid, signal.SIGKILL)
    wait_until(lambda: launched().state == "unattended")
    assert kochi("launch", "--", "all").status == 1
    stopped = kochi("launch", "--stop")
    assert stopped.status == 0
    assert stopped.out.endswith(f"{launched().launch.identity} was killed.\n")
    assert launched().state == "killed"
    wait_until(lambda: not processes_in(here))


def test_a_run_that_was_killed_is_told_from_one_that_ended(kochi: Kochi, here: Path) -> None:
    begin(kochi, here)
    processes = launched().processes
    assert processes is not None
    for each in (processes.supervisor, processes.run):
        os.kill(each.pid, signal.SIGKILL)
    wait_until(lambda: launched().state == "killed")
    done = kochi("launch", "--follow")
    assert done.status == 1
    assert "was killed" in done.err
    assert "snakemake --unlock" in done.err


def test_who_follows_a_run_that_was_killed_is_told_how_it_is_picked_up(
    kochi: Kochi, here: Path
) -> None:
    begin(kochi, here)
    processes = launched().processes
    assert processes is not None
    os.kill(processes.run.pid, signal.SIGKILL)
    done = kochi("launch", "--follow")
    assert done.status == 137
    assert "snakemake --unlock" in done.err


def test_one_that_was_killed_before_it_began_is_in_nobodys_way(kochi: Kochi, here: Path) -> None:
    (here / "go").touch()
    _, paths = make_launch(Root.find().machine("local"), "", ["true"], is_job=False)
    assert kochi("launch", "--status", "--json").data["state"] == "launched"
    refused = kochi("launch", "--", "all")
    assert refused.status == 1
    assert "goes on" in refused.err
    data = json.loads(paths.launch.read_text())
    began = datetime.fromisoformat(data["time"]) - timedelta(minutes=2)
    paths.launch.write_text(json.dumps(data | {"time": began.isoformat()}))
    assert kochi("launch", "--status", "--json").data["state"] == "killed"
    late = subprocess.run(
        [sys.executable, "-m", "snakemake_kochi.detached", str(paths.directory)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert late.returncode == 1
    assert "was given up" in late.stderr
    assert kochi("launch", "--follow", "--", "all").status == 0


def test_a_run_that_cannot_be_recorded_is_ended_at_once(here: Path) -> None:
    command = ["bash", "-c", "sleep 1000"]
    _, paths = make_launch(Root.find().machine("local"), "", command, is_job=False)
    paths.process.mkdir()  # so it cannot be written, as on a full disk
    words = [sys.executable, "-m", "snakemake_kochi.detached", str(paths.directory)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("kochi: the run was ended: it cannot be recorded: [Errno ")
    paths.process.rmdir()
    assert launched().is_over


def test_each_order_from_another_host_interrupts_a_run_once(here: Path) -> None:
    trap = "trap 'echo >> told; [ -e done ] && exit 7; touch done' INT; touch ready"
    text = f"{trap}; while :; do sleep 0.1; done"
    _, paths = make_launch(Root.find().machine("local"), "", ["bash", "-c", text], is_job=False)
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "snakemake_kochi.detached", str(paths.directory)]
    )
    try:
        wait_until((here / "ready").exists)
        write_stop(paths)
        wait_until((here / "done").exists)
        assert supervisor.poll() is None
        write_stop(paths)
        assert supervisor.wait(60) == 7
    finally:
        supervisor.kill()
    assert (here / "told").read_text() == "\n\n"


def test_the_last_of_several_within_a_second_is_the_last(here: Path) -> None:
    machine = Root.find().machine("local")
    for _ in range(8):
        launch, paths = make_launch(machine, "", ["true"], is_job=False)
        assert launched().launch == launch
        write_end(paths, 0)


def test_a_run_on_another_host_is_killed_once_its_signs_of_life_have_ended(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "INTERVAL", 0.01)
    _, paths = make_launch(Root.find().machine("local"), "", ["true"], is_job=False)
    process = vars(this_node()) | {"host": "login2", "machine": "another"}
    identity = {"pid": 1, "start": 1}
    data = {"version": 1, "node": process, "supervisor": identity, "run": identity}
    paths.process.write_text(json.dumps(data))
    paths.alive.write_bytes(FIRST)
    watch = Watch(launched())
    for count in range(100):
        paths.alive.write_text(str(count))
        assert watch.look().state == "elsewhere"
        time.sleep(0.01)
    wait_until(lambda: watch.look().state == "killed")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--follow",), 1, "nothing was launched in this directory on machine local"),
        (("--stop", "--", "all"), 2, "--stop and --status can be combined"),
        (("--stop", "--on-login-node"), 2, "--stop and --status can be combined"),
        (("-t", "1", "--", "all"), 2, "-t requires --in-allocation"),
        (
            ("--in-allocation", "--", "all"),
            1,
            "machine local has no scheduler, which --in-allocation requires",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    kochi: Kochi, here: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    done = kochi("launch", *words)
    assert done.status == status
    assert said in done.err
    assert last_launch(Root.find().machine("local"), str(here)) is None


@pytest.fixture
def on_cluster(here: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    git(here, "init", "--quiet")
    write(here / "kochi.yaml", "machines: {own: {login_host: other, scheduler: slurm}}\n")
    variables = {"KOCHI_DEFAULT_MACHINE": "own", "KOCHI_MACHINE": "own", "SLURM_OUTER": "outer"}
    for name, value in {**cluster.environment, **variables}.items():
        monkeypatch.setenv(name, value)
    return cluster


def test_a_run_in_an_allocation_has_workers_in_allocations_of_their_own(
    kochi: Kochi, here: Path, on_cluster: SlurmCluster
) -> None:
    begin(kochi, here, "--in-allocation", "-t", "5")
    assert len(on_cluster.jobs()) > 1
    (here / "go").touch()
    assert kochi("launch", "--follow").status == 0
    names = {tuple((here / "out" / name).read_text().split()) for name in "01"}
    assert len(names) == 1
    ((job_name, outer),) = names
    assert job_name.startswith("kochi-")
    assert job_name != launched("own").launch.job_name
    assert outer == "none"
    wait_until(lambda: not on_cluster.jobs())


def test_workers_beside_a_run_in_an_allocation_are_part_of_that_and_of_no_outer_one(
    kochi: Kochi, here: Path, on_cluster: SlurmCluster
) -> None:
    (here / "go").touch()
    arguments = ("all", "--executor", "kochi", "--kochi-where", "here", "--jobs", "2")
    done = kochi("launch", "--in-allocation", "-t", "5", "--follow", "--", *arguments)
    assert done.status == 0, done.out
    outputs = {(here / "out" / name).read_text() for name in "01"}
    assert outputs == {f"{launched('own').launch.job_name} none\n"}


def test_a_run_in_an_allocation_is_stopped_through_the_scheduler(
    kochi: Kochi, here: Path, on_cluster: SlurmCluster
) -> None:
    begin(kochi, here, "--in-allocation")
    done = kochi("launch", "--stop")
    assert done.status == 0
    assert "Cancelled 2 kochi jobs; nothing of this run is left." in done.out
    wait_until(lambda: not on_cluster.jobs())


def test_at_its_time_limit_a_run_leaves_its_jobs_to_the_next_one_which_adopts_them(
    kochi: Kochi, here: Path, on_cluster: SlurmCluster
) -> None:
    text = (here / "Snakefile").read_text().replace('"touch begun', '"echo >> begun')
    write(here / "Snakefile", text)
    begin(kochi, here, "--in-allocation", "-t", "5")
    scheduler = kochi("launch", "--status", "--json").data
    (controller,) = on_cluster.run(
        "squeue", "--noheader", "--format=%A", f"--name={scheduler['job_name']}"
    ).split()
    # As Slurm does it a minute before the time is over.
    on_cluster.run("scancel", "--signal=USR1", "--batch", controller)
    followed = kochi("launch", "--follow")
    assert followed.status == 1
    assert "2 kochi jobs continue in their allocations, 0 wait" in followed.out
    assert "to adopt them, type the same kochi launch -m own again" in followed.err
    status = kochi("launch", "--status", "--json").data
    assert (status["state"], status["time_limit_reached"]) == ("ended", True)
    wait_until(lambda: int(controller) not in on_cluster.jobs())
    assert "RUNNING" in on_cluster.jobs().values()
    assert kochi("launch", "--in-allocation", "-t", "5m").status == 0
    wait_until(lambda: launched("own").paths.output.exists())
    output = launched("own").paths.output
    wait_until(lambda: output.read_text().count("still runs and is not started again") == 2)
    (here / "go").touch()
    assert kochi("launch", "--follow").status == 0
    assert [(here / f"begun{i}").read_text() for i in range(2)] == ["\n", "\n"]
    wait_until(lambda: not on_cluster.jobs())


def test_at_its_time_limit_a_run_gives_back_what_waits_and_nobody_needs(
    kochi: Kochi, here: Path, on_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_HEARTBEAT", "1")  # its workers leave when it has been silent
    own = "own: {login_host: other, scheduler: slurm, allocation: {max_workers: 4, min_workers: 4}}"
    write(here / "kochi.yaml", f"machines: {{{own}}}\n")
    begin(kochi, here, "--in-allocation", "-t", "5")
    wait_until(lambda: "PENDING" in on_cluster.jobs().values())
    (controller,) = on_cluster.run(
        "squeue", "--noheader", "--format=%A", f"--name={launched('own').launch.job_name}"
    ).split()
    on_cluster.run("scancel", "--signal=USR1", "--batch", controller)
    assert kochi("launch", "--follow").status == 1
    assert "PENDING" not in on_cluster.jobs().values()
    assert "RUNNING" in on_cluster.jobs().values()
    (here / "go").touch()
    wait_until(lambda: not on_cluster.jobs(), seconds=60)
    assert len(list((here / "out").iterdir())) == 2


def test_a_machine_may_say_that_controllers_are_in_allocations(
    kochi: Kochi, shell: Kochi, here: Path, on_cluster: SlurmCluster
) -> None:
    own = "{login_host: other, scheduler: slurm, controller: {in_allocation: true}}"
    write(here / "kochi.yaml", f"machines: {{own: {own}}}\n")
    script = "touch begun$KOCHI_PARAM_N; while [ ! -e ../../go ]; do sleep 0.1; done"
    write(
        here / "one.yaml",
        "batches: {all: {params: {n: 1}}}\n"
        f"run: {{depend_params: [n], script: '{script}'}}\n",
    )
    line = ("batch", "--launch", "one.yaml", "all")
    assert shell(*line).status == 0
    found = launched("own")
    assert found.launch.job_name is not None
    wait_until(lambda: launched("own").state in ("running", "elsewhere"))
    assert shell(*line, "--json").data["joined"] is True
    assert kochi("launch", "--stop").status == 0


def test_a_run_whose_allocation_never_began_is_taken_back(
    kochi: Kochi, here: Path, on_cluster: SlurmCluster
) -> None:
    blocker = on_cluster.run("sbatch", "--parsable", "-N2", "--exclusive", "--wrap", "sleep 600")
    assert kochi("launch", "--in-allocation", "--", "all").status == 0
    status = kochi("launch", "--status", "--json").data
    assert status["state"] == "launched"
    assert "PENDING" in status["scheduler"]
    assert kochi("launch", "--", "all").status == 1
    assert kochi("launch", "--stop").status == 0
    assert list(on_cluster.jobs()) == [int(blocker)]
    on_cluster.cancel_jobs()
    assert not (here / ".snakemake").exists()
