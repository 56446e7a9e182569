"""Kochi's own tutorial, followed in its order, with its own files, in terminals.

A function is a section of https://github.com/s417-lama/kochi-tutorial, and has its name. A line
that is typed is one of the tutorial's, or has only options and commands that the tutorial names;
`adapted:` says where what is seen differs from the original, and why: see docs/from-kochi.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from seen import FIRST, find_job, list_jobs, list_queues, list_workers
from slurm_cluster import SlurmCluster
from ssh_host import SshHost
from support import git, wait_until

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.terminal.loopback import free_port
from tests.terminal.conftest import PROMPT
from tests.terminal.servers import serve

from .tutorial_reader import LINE, Surroundings, Window

SLURM = {"nodes": 1, "cpus": 2, "apart": True}
UP = "\x1b[A"
FIB_35 = (r"fib\(35\) = 9227465", r"Execution Time: \d+ ns")
FIB_38 = (r"fib\(38\) = 39088169", r"Execution Time: \d+ ns")


@dataclass
class Reader:
    """Who follows the tutorial, in two windows: `worker` is for a worker."""

    surroundings: Surroundings
    window: Window
    worker: Window

    @property
    def project(self) -> Path:
        return self.surroundings.directory / "kochi-tutorial"

    @property
    def artifacts(self) -> Path:
        return self.surroundings.directory / "kochi-tutorial-artifact"


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Surroundings:
    """Those of the computer of the reader, which is this process's."""
    home = tmp_path / "home"
    home.mkdir()
    surroundings = Surroundings(tmp_path)
    path = f"{surroundings.programs()}:{os.environ['PATH']}"
    surroundings.prepare_home(home, path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("KOCHI_ROOT")
    monkeypatch.setenv("PATH", path)
    return surroundings


@pytest.fixture
def deneb(
    surroundings: Surroundings, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SshHost]:
    """The login node of the tutorial's machine `spica`, with the tutorial's ~/.ssh/config."""
    # Its PATH is the one of the reader, where kochi is, with Slurm.
    with SshHost("deneb", surroundings.directory, variables=cluster.environment) as host:
        host.use(monkeypatch)
        surroundings.prepare_home(host.home, cluster.environment["PATH"])
        control = f"ControlPath {host.runtime}/mux-%r@%h:%p"
        host.configure(control, "ControlMaster auto", "ControlPersist yes")
        yield host
        cluster.cancel_jobs()
        subprocess.run(("ssh", "-O", "exit", "deneb"), capture_output=True)


@pytest.fixture
def reader(surroundings: Surroundings) -> Iterator[Reader]:
    windows = [Window(surroundings.directory) for _ in range(2)]
    yield Reader(surroundings, *windows)
    for each in windows:
        each.child.close(force=True)


# ---- Run Locally


def test_run_locally(reader: Reader) -> None:
    _setup(reader)
    _spawn_workers(reader)
    _submit_jobs(reader)
    _submit_interactive_jobs(reader)
    _check_job_status(reader)
    _manage_dependencies(reader)
    _run_jobs_with_dependencies(reader)
    _setup_job_config_files(reader)
    _submit_batch_jobs(reader)


def _setup(reader: Reader) -> None:
    # adapted: `pip3 install` has happened; no test has the internet.
    for each in (reader.window, reader.worker):
        if not reader.project.exists():
            each.does(f"git clone --quiet {reader.surroundings.kochi_tutorial}")
        each.does("cd kochi-tutorial/")


def _spawn_workers(reader: Reader) -> None:
    worker = reader.worker
    # "Without the -b option, the worker immediately exits when no job is found in the queue."
    worker.does("kochi work -m local -q test")
    worker.does("export KOCHI_DEFAULT_MACHINE=local")
    reader.window.does("export KOCHI_DEFAULT_MACHINE=local")
    worker.begins("kochi work -q test -b")
    worker.child.expect(r"Kochi worker \d started on machine local\.\r\n={80}\r\n")
    # "You can even spawn multiple workers that work on the same job queue."
    second = reader.window
    second.begins("kochi work -q test -b")
    second.sees(f"Kochi worker {FIRST + 2} started on machine local.\r\n")
    second.child.sendintr()
    second.sees(PROMPT)
    # "The default workspace for Kochi is created at ~/.kochi."
    assert Path(os.environ["HOME"], ".kochi").is_dir()


def _submit_jobs(reader: Reader) -> None:
    window, worker = reader.window, reader.worker
    window.does("kochi enqueue -q test -n test_job -- echo foo")
    worker.sees(f"Kochi job test_job (ID={FIRST}) started.\r\n{LINE}foo\r\n")
    window.does('kochi enqueue -q test -n test_job -c -- bash -c "pwd && ls"')
    shown = worker.sees_job("test_job", "run_fib.bash")
    place, *files = shown.split()
    # adapted: each job has a copy of its own, and not each worker: $KOCHI_ROOT/workers/local/... is
    # shared by repositories whose directories have the same name.
    assert Path(place).name == "kochi-tutorial"
    assert Path(place).is_relative_to(Path(os.environ["HOME"], ".kochi"))
    assert {"fib.cpp", "fib.yaml", "kochi.yaml", "README.md", "run_fib.bash"} <= set(files)

    window.does("echo hello > foo")
    window.does('kochi enqueue -q test -n test_job -c -- bash -c "echo world >> foo && cat foo"')
    # "later changes to the current workspace are not reflected to the job execution"
    window.does("echo later > foo2")
    worker.sees(f"Kochi job test_job (ID={FIRST + 2}) started.\r\n{LINE}hello\r\nworld\r\n")
    assert window.does("cat foo") == "hello\n"


def _submit_interactive_jobs(reader: Reader) -> None:
    window = reader.window
    window.begins("kochi interact -q test -c")
    window.sees(PROMPT)
    # "This will launch a shell on the worker's workspace"
    assert window.does("cat foo") == "hello\n"
    assert window.does("echo $KOCHI_WORKER_ID $KOCHI_JOB_ID $(basename $PWD)").endswith(
        f" {FIRST + 3} kochi-tutorial\n"
    )
    window.does("rm foo")
    window.types("exit")
    window.sees(PROMPT)
    assert (reader.project / "foo").exists()


def _check_job_status(reader: Reader) -> None:
    window = reader.window
    # Nothing else is in the queue: it waits for a worker.
    window.does("kochi enqueue -q nobody -n waiting -- echo never")
    shown = window.does("kochi show jobs")
    waiting = FIRST + 4
    assert re.search(rf"^{waiting} .*waiting", shown, re.M) and "test_job" not in shown
    assert "test_job" in window.does("kochi show jobs -t")
    assert "test_job" in window.does("kochi show jobs -t -l 200")
    shown = window.does(f"kochi show job {FIRST}")
    assert "test_job" in shown and "succeeded" in shown
    assert "foo\n" in window.does(f"kochi show log job {FIRST}")
    window.does(f"kochi cancel {waiting}")
    assert "cancelled" in window.does(f"kochi show job {waiting}")
    for _ in range(2):
        window.does("kochi enqueue -q nobody -n waiting -- echo never")
    # adapted: only the jobs of this project, and after asking.
    window.begins("kochi cancel -a")
    window.child.expect(r"\[y/N\]")
    window.types("y")
    window.sees(PROMPT)
    assert "no waiting or running jobs" in window.does("kochi show jobs")


def _manage_dependencies(reader: Reader) -> None:
    window = reader.window
    window.does("kochi install -d massivethreads:release")
    shown = window.does("kochi show installs")
    assert re.search(r"^Dependency +Recipe +State +Installed", shown, re.M)
    states = re.findall(
        r"^(massivethreads|jemalloc) +(\S+) +(NOT installed|installed)", shown, re.M
    )
    assert states == [
        ("massivethreads", "release", "installed"),
        ("massivethreads", "debug", "NOT installed"),
        ("massivethreads", "develop", "NOT installed"),
        ("jemalloc", "v5.2.1", "NOT installed"),
    ]
    window.does("kochi install -d massivethreads:debug")
    log = window.does("kochi show log install -d massivethreads:debug")
    assert "gcc -O0 -g -Wall -shared" in log

    # "suppose that you clone MassiveThreads to the ../massivethreads dir and make some changes"
    window.does(f"git clone --quiet {reader.surroundings.massivethreads} ../massivethreads")
    window.does("""sed -i 's/return 0;/return puts("a change");/' ../massivethreads/myth.c""")
    window.does("kochi install -d massivethreads:develop -d jemalloc:v5.2.1")
    assert "NOT installed" not in window.does("kochi show installs")
    assert " M myth.c" in git(reader.project.parent / "massivethreads", "status", "--porcelain")


def _run_jobs_with_dependencies(reader: Reader) -> None:
    window, worker = reader.window, reader.worker
    for recipe, changed in (("release", ()), ("debug", ()), ("develop", ("a change",))):
        window.does(f"kochi enqueue -q test -d massivethreads:{recipe} -c ./run_fib.bash")
        prefix = rf"KOCHI_INSTALL_PREFIX_MASSIVETHREADS=\S*/massivethreads/{recipe}\S*"
        worker.sees_job("ANON", prefix, *changed, *FIB_35)
    window.does(
        "kochi enqueue -q test -d massivethreads:release -d jemalloc:v5.2.1 -c ./run_fib.bash"
    )
    worker.sees_job("ANON", *FIB_35, "___ Begin jemalloc statistics ___")


def _setup_job_config_files(reader: Reader) -> None:
    window, worker = reader.window, reader.worker
    window.does("kochi enqueue -q test fib.yaml")
    worker.sees_job("fib", "Compiling fib...", *FIB_35)
    for parameters in ("n_input=38 n_workers=1", "n_input=38 n_workers=4"):
        window.does(f"kochi enqueue -q test fib.yaml {parameters}")
        assert "Compiling" not in worker.sees_job("fib", *FIB_38)
    window.does("kochi enqueue -q test fib.yaml debug=1")
    worker.sees_job("fib", "Compiling fib...", *FIB_35)
    window.does("kochi enqueue -q test fib.yaml debug=1 -d massivethreads:debug")
    worker.sees_job("fib", "Compiling fib...", *FIB_35)

    window.begins("kochi interact -q test fib.yaml")
    window.sees(PROMPT)
    # adapted: the benchmark runs when one types it; its script is in the history, because it
    # is what one wants to type, with gdb in front for example.
    window.child.send(UP)
    window.types("")
    window.sees("fib(35) = 9227465\r\n")
    window.sees(PROMPT)
    # "allowing for further interaction (e.g., running gdb for the compiled fib executable)"
    assert "fib(20) = 6765" in window.does("./fib 20")
    window.types("exit")
    window.sees(PROMPT)
    worker.child.sendintr()
    worker.sees(PROMPT)


def _submit_batch_jobs(reader: Reader) -> None:
    window, worker = reader.window, reader.worker
    said = window.does("kochi artifact init ../kochi-tutorial-artifact")
    # adapted: not `local`, which is everybody's own computer: results of colleagues stay apart.
    name = re.search(r"published as '(\S+)'", said)[1]  # type: ignore[index]
    assert git(reader.artifacts, "branch", "--show-current") == "kochi_artifacts\n"
    # adapted: it runs Snakemake, which waits for the jobs and starts a worker itself. That of the
    # next line takes those that are left.
    window.begins("kochi batch fib.yaml batch_test")
    machine = Root.find().machine("local")
    queued = "fib_batch_test"
    wait_until(lambda: any(each.name == queued for each in list_queues(machine)), "jobs wait")
    worker.does("kochi work -q fib_batch_test")
    window.sees("steps (100%) done")
    window.sees(PROMPT)
    window.does("cd ../kochi-tutorial-artifact/")
    window.does("kochi artifact sync -m local")
    _assert_results(reader.artifacts / name, 3)


def _assert_results(directory: Path, duplicates: int) -> None:
    """The log output and the stats of each run of the batch."""
    batch = directory / "fib" / "batch_test"
    results = {38: 39088169, 40: 102334155}
    expected = {
        f"n_{n_input}_w_{n_workers}_{duplicate}": n_input
        for n_input in results
        for n_workers in (1, 2, 4)
        for duplicate in range(duplicates)
    }
    assert {path.stem for path in batch.iterdir()} == set(expected)
    for stem, n_input in expected.items():
        log = (batch / f"{stem}.log").read_text()
        assert f"fib({n_input}) = {results[n_input]}\n" in log
        # adapted: JSON, with a fixed list of keys in place of the whole environment.
        stats = json.loads((batch / f"{stem}.stats").read_text())
        assert str(n_input) in json.dumps(stats)


# ---- Run Remotely


def test_run_remotely(deneb: SshHost, reader: Reader, cluster: SlurmCluster) -> None:
    _setup(reader)
    # "it is specific to my environment and should be modified": to the node of this Slurm.
    reader.window.does("sed -i 's/-w spica/-w node1/' kochi.yaml")
    _allocate_interactively(reader)
    _allocate(reader, cluster)
    _launch_a_worker_by_hand(reader)
    _collect_results(reader)
    machine = Root(deneb.root).machine("spica")
    _login_to_compute_nodes(reader, machine)
    # One login of ssh for all of it, as the tutorial's ControlPersist has it.
    assert deneb.logins == 1


def _allocate_interactively(reader: Reader) -> None:
    window, worker = reader.window, reader.worker
    worker.begins("kochi alloc_interact -m spica -q test")
    worker.sees(f"Kochi worker {FIRST} started on machine spica.\r\n")
    window.does("kochi enqueue -m spica -q test -- echo foo")
    worker.sees_job("ANON", "foo")
    window.does("export KOCHI_DEFAULT_MACHINE=spica")
    window.does("kochi enqueue -q test -n test_job -- hostname")
    worker.sees_job("test_job", "node1")
    worker.types("echo lea''ving; exit")
    worker.sees("leaving\r\n")
    worker.sees(PROMPT)


def _allocate(reader: Reader, cluster: SlurmCluster) -> None:
    window = reader.window
    # "will immediately exit because the job queue test has no job"
    assert f"Kochi worker {FIRST + 1} started" in window.does("kochi alloc -m spica -q test -f")
    window.does("kochi enqueue -m spica -q test -- echo foo")
    shown = window.does("kochi alloc -m spica -q test -t 10 -f")
    assert f"{LINE}foo\r\n".replace("\r", "") in shown
    assert cluster.calls("sbatch")[-1].endswith(" -w node1 -o /dev/null -e /dev/null -t 10")
    assert "--time-limit" in window.does("kochi alloc --help")
    assert "foo\n" in window.does(f"kochi show log worker {FIRST + 2}")


def _launch_a_worker_by_hand(reader: Reader) -> None:
    window, worker = reader.window, reader.worker
    window.does("kochi enqueue -m spica -q test -- hostname")
    # "you can manually launch workers by the command kochi work on compute nodes", where the
    # project "is not needed to be cloned".
    worker.begins("ssh deneb")
    worker.sees(PROMPT)
    worker.begins("srun -w node1 --pty bash")
    worker.sees(PROMPT)
    worker.begins("kochi work -m spica -q test")
    worker.sees_job("ANON", "node1")
    for left in ("node", "deneb"):
        worker.sees(PROMPT)
        worker.begins(f"echo {left}; exit")
        worker.sees(f"{left}\r\n")
    worker.sees(PROMPT)


def _collect_results(reader: Reader) -> None:
    window = reader.window
    window.does("kochi artifact init ../kochi-tutorial-artifact")
    window.does("kochi install -m spica -d massivethreads:release -d jemalloc:v5.2.1")
    # adapted: fib.yaml has values of n_workers for `local` only. The original would take those
    # of n_input, the parameter before it.
    window.does("sed -i 's/machines: .local./machines: [local, spica]/' fib.yaml")
    # "uncomment to overwrite `default_duplicates`"
    window.does("sed -i 's/# duplicates: 1/duplicates: 1/' fib.yaml")
    assert "steps (100%) done" in window.does("kochi batch -m spica fib.yaml batch_test")
    window.does("cd ../kochi-tutorial-artifact/")
    window.does("kochi artifact sync -m spica")
    window.does("cd ../kochi-tutorial/")
    _assert_results(reader.artifacts / "spica", 1)
    assert "kochi_artifacts_spica" in git(reader.project, "branch", "--format=%(refname:short)")


def _login_to_compute_nodes(reader: Reader, machine: MachinePaths) -> None:
    window = reader.window
    said = window.does("kochi alloc -m spica -q test -b")
    number = int(re.search(r"Requested worker (\d+)", said)[1])  # type: ignore[index]
    wait_until(lambda: any(each.worker == number for each in list_workers(machine)), "a worker")
    window.does("kochi enqueue -m spica -q test -- sleep 1000")
    job = list_jobs(machine)[0].job
    wait_until(lambda: find_job(machine, job).started is not None, "the job runs")
    window.begins(f"kochi inspect -m spica {number}")
    window.sees(PROMPT)
    assert window.does("hostname") == "node1\n"
    assert "sleep" in window.does("top -b -n 1")
    assert "Mem:" in window.does("free")
    window.types("exit")
    window.sees(PROMPT)
    window.does(f"kochi cancel -m spica {job}")

    # "if you want to debug a program in the current workspace on a compute node, kochi interact is
    # recommended"
    port = free_port()
    window.begins(f"kochi interact -m spica -q test -p {port} fib.yaml")
    window.sees(PROMPT)
    assert window.does("echo $(hostname) $KOCHI_WORKER_ID") == f"node1 {number}\n"
    assert "fib(20) = 6765" in window.does("./fib 20")
    serve(window, port)
    window.sees(PROMPT)
