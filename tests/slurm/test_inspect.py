"""`kochi inspect` on nodes of a real Slurm, and shells that it allocates."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from seen import FIRST, find_job, list_workers
from slurm_cluster import APART, SlurmCluster
from support import git, interruptible, run_apart, until_size, wait_until, write

from snakemake_kochi.paths import MachinePaths, Root

SLURM = APART
JOB = WORKER = str(FIRST)  # the first ones
COMMAND = [sys.executable, "-P", "-m", "snakemake_kochi.cli"]
# The second one is that of the original's tutorial.
MACHINES = """
    machines:
      own:
        scheduler: slurm
      scripted:
        alloc_interact_script: srun --quiet -w $KOCHI_ALLOC_NODE_SPEC --pty bash --norc
      own_way:
        alloc_interact_script: >-
          srun --quiet --pty bash -c "$KOCHI_WORKER_LAUNCH_CMD & exec bash --norc"
      alloc_only:
        alloc_script: "true"
"""


class Login:
    """A person on the login node of a cluster, in a project."""

    def __init__(self, directory: Path, root: Path, cluster: SlurmCluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.root = Root(root)
        self.machine: MachinePaths = self.root.machine("own")
        self.environment = {
            **os.environ,
            **cluster.environment,
            "KOCHI_DEFAULT_MACHINE": "own",
            "TERM": "xterm",
            "PS1": "$ ",
            "SHELL": "/bin/sh",
        }
        directory.mkdir()
        git(directory, "init", "--quiet")
        write(directory / "kochi.yaml", MACHINES)

    @property
    def keys(self) -> Path:
        """Of the first worker's ssh server."""
        return Path(self.machine.directory, "workers", WORKER, "login")

    def type(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = run_apart(*COMMAND, *words, given=stdin, cwd=self.directory, env=self.environment)
        print(f"$ kochi {words}\n{done.stdout}{done.stderr}[{done.returncode}]")
        return done

    def open(self, *words: str) -> pexpect.spawn[str]:
        return pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], *words],
            encoding="utf-8",
            timeout=60,
            dimensions=(33, 99),
            env=self.environment,  # type: ignore[arg-type]  # any mapping
            cwd=str(self.directory),
        )

    def wait_for_worker(self, number: int = FIRST) -> None:
        def is_there() -> bool:
            return any(each.worker == number for each in list_workers(self.machine))

        wait_until(is_there, f"worker {number}")


@pytest.fixture
def login(tmp_path: Path, isolated_environment: Path, cluster: SlurmCluster) -> Iterator[Login]:
    yield Login(tmp_path / "project", isolated_environment, cluster)
    cluster.cancel_jobs()


def test_a_login_beside_a_job_goes_through_its_allocation(login: Login) -> None:
    assert login.type("alloc", "-q", "q", "-n", "node2", "-b").returncode == 0
    # What is waited for is what the last program of the job has.
    script = "taskset -cp 1 $$; cd /usr; export FOUND=it; sleep 300; true"
    login.type("enqueue", "-q", "q", "--shared", "--", "bash", "-c", script)
    wait_until(lambda: find_job(login.machine, FIRST).started is not None, "the job runs")
    where = ("inspect", "job", JOB, "--", "sh", "-c", 'echo "$FOUND in $PWD"')
    wait_until(lambda: login.type(*where).stdout == "it in /usr\n")
    show = 'hostname; echo "$FOUND $KOCHI_JOB_ID $SLURM_STEP_ID"; taskset -cp $$; exit 7'
    done = login.type("inspect", "job", JOB, "--", "bash", "-c", show)
    assert done.returncode == 7
    # srun's own remark, among its errors, which must be seen.
    assert done.stderr == "srun: error: node2: task 0: Exited with exit code 7\n"
    *said, cpus = done.stdout.splitlines()
    assert said == ["node2", f"it {JOB} "]
    assert cpus.endswith("list: 1")
    # As a pipe.
    odd = "a  b\n'c' \"$d\" `e` \\ %f"
    assert login.type("inspect", WORKER, "--", "printf", "%s", odd).stdout == odd
    assert login.type("inspect", WORKER, stdin="hostname; exit 3").stdout == "node2\n"
    # Through the allocation, and nothing else.
    assert not login.keys.exists()
    assert "--jobid=" in login.cluster.calls("srun")[-1]
    # By ssh, if somebody wants that.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    assert login.type("inspect", "--ssh", WORKER, "--", "hostname").stdout == "node2\n"
    assert login.keys.exists()


def test_a_terminal_in_an_allocation_is_a_real_one(login: Login) -> None:
    assert login.type("alloc", "-q", "q", "-n", "node2", "-b").returncode == 0
    login.type("enqueue", "-q", "q", "--shared", "--", "sleep", "300")
    wait_until(lambda: find_job(login.machine, FIRST).started is not None, "the job runs")
    shell = login.open("inspect", "job", JOB)
    shell.expect(f"kochi: beside job {FIRST} on node2, CPUs ")
    shell.sendline("stty size")
    shell.expect("33 99\r\n")
    shell.setwinsize(44, 111)
    shell.sendline(until_size(44, 111))
    shell.expect("sized\r\n")
    shell.sendline(interruptible("begun"))
    shell.expect("begun\r\n")
    shell.sendintr()
    shell.expect("interrupted\r\n")
    shell.sendline("echo still $((1+1)) here")
    shell.expect("still 2 here")
    # The job ends beside it, and the worker goes on.
    login.type("cancel", JOB)
    wait_until(lambda: find_job(login.machine, FIRST).state == "ended")
    shell.sendline("echo still $((2+1)) here; exit 4")
    shell.expect("still 3 here")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 4

    assert "which ends allocation" in login.type("release", WORKER).stdout
    wait_until(lambda: not login.cluster.jobs(), "the allocation is given back")
    said = login.type("inspect", WORKER).stderr
    assert said.startswith(f"kochi: worker {FIRST} has left: nothing of it is on node2 any more\n")


def test_a_worker_of_an_array_is_reached(login: Login) -> None:
    assert login.type("alloc", "-q", "q", "-d", "2", "-b").returncode == 0
    # The elements of an array start in any order.
    login.wait_for_worker(FIRST)
    login.wait_for_worker(FIRST + 1)
    said = {
        login.type("inspect", str(each), "--", "hostname").stdout for each in (FIRST, FIRST + 1)
    }
    assert said == {"node1\n", "node2\n"}


def test_of_several_nodes_the_one_with_the_worker_is_reached(login: Login) -> None:
    assert login.type("alloc", "-q", "q", "-n", "2", "-b").returncode == 0
    login.wait_for_worker()
    (worker,) = list_workers(login.machine)
    assert login.type("inspect", WORKER, "--", "hostname").stdout == f"{worker.node.host}\n"


# ---- kochi alloc_interact


def test_a_shell_in_an_allocation_with_a_worker_beside_it(login: Login) -> None:
    shell = login.open("alloc_interact", "-n", "node2", "-q", "q", "-t", "10")
    shell.expect("Granted job allocation")
    shell.expect(f"Kochi worker {FIRST} started on machine own")
    shell.sendline("hostname; stty size")
    shell.expect("node2\r\n33 99\r\n")
    # What the jobs print is shown there, as the tutorial has it.
    login.type("enqueue", "-q", "q", "--", "echo", "from the job")
    shell.expect("from the job")
    # Ctrl-C is for what the person has typed.
    login.type("enqueue", "-q", "q", "--", "sleep", "300")
    wait_until(lambda: find_job(login.machine, FIRST + 1).started is not None, "the job runs")
    shell.sendline(interruptible("begun"))
    shell.expect("begun\r\n")
    shell.sendintr()
    shell.expect("interrupted\r\n")
    # A step in it waits for nothing.
    shell.sendline("srun --overlap echo a step $((1+1))")
    shell.expect("a step 2")
    assert find_job(login.machine, FIRST + 1).state == "running"
    # It is reached as other workers are.
    assert login.type("inspect", "job", str(FIRST + 1), "--", "hostname").stdout == "node2\n"

    shell.sendline("exit 5")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 5
    (worker,) = list_workers(login.machine)
    assert (worker.state, worker.capacity.cores) == ("left", 2)
    # Its job waits for another one.
    assert find_job(login.machine, FIRST + 1).state == "waiting"
    wait_until(lambda: not login.cluster.jobs(), "the allocation has ended")


def test_a_released_worker_leaves_the_shell(login: Login) -> None:
    shell = login.open("alloc_interact", "-q", "q")
    shell.expect(f"Kochi worker {FIRST} started on machine own")
    said = login.type("release", WORKER).stdout
    assert said == f"Worker {FIRST} was told to leave: it leaves at once.\n"
    wait_until(lambda: list_workers(login.machine)[0].state == "left", "the worker has left")
    shell.sendline("echo still $((1+1)) here; exit")
    shell.expect("still 2 here")
    shell.expect(pexpect.EOF)


def test_without_a_terminal_it_is_a_pipe(login: Login) -> None:
    done = login.type(
        "alloc_interact", "-n", "1", stdin="hostname; echo $SLURM_JOB_NUM_NODES; exit 3"
    )
    assert (done.returncode, done.stdout.splitlines()[1]) == (3, "1")
    assert done.stdout.splitlines()[0] in login.cluster.nodes


def test_a_script_opens_the_shell_and_the_worker_is_typed_into_it(login: Login) -> None:
    machine = login.root.machine("scripted")
    shell = login.open("alloc_interact", "-m", "scripted", "-n", "node2", "-q", "test")
    shell.expect("In the shell on the node, this is typed for you: bash ")
    shell.expect(f"Kochi worker {FIRST} started on machine scripted")
    shell.sendline("hostname; stty size")
    shell.expect("node2\r\n33 99\r\n")
    shell.setwinsize(44, 111)
    shell.sendline(until_size(44, 111))
    shell.expect("sized\r\n")
    login.type("enqueue", "-m", "scripted", "-q", "test", "--", "echo", "fo" + "o")
    shell.expect("foo\r\n")
    # Its scheduler is not known: by ssh.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    inspected = login.type("inspect", "-m", "scripted", WORKER, "--", "hostname")
    assert inspected.stdout == "node2\n"
    shell.sendline("exit 5")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == 5
    wait_until(lambda: not login.cluster.jobs(), "the allocation has ended")
    assert len(list_workers(machine)) == 1


def test_a_script_that_starts_the_worker_itself(login: Login) -> None:
    shell = login.open("alloc_interact", "-m", "own_way", "-q", "test")
    shell.expect(f"Kochi worker {FIRST} started on machine own_way")
    assert "typed for you" not in shell.before
    shell.sendline("echo a shell $((1+1)); exit")
    shell.expect("a shell 2")
    shell.expect(pexpect.EOF)


def test_machines_that_give_no_shell_say_so(login: Login) -> None:
    def said(*words: str) -> str:
        done = login.type("alloc_interact", *words)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    assert said("-m", "local") == (
        "kochi: machine local has neither a scheduler nor an alloc_interact_script, by which a "
        "shell on a compute node is requested\n"
        "Machines with one: own, scripted, own_way. Choose one with -m.\n"
    )
    assert "machines: alloc_only: alloc_interact_script: srun --pty bash\n" in said(
        "-m", "alloc_only"
    )
    assert said("-m", "scripted") == (
        "kochi: machines: scripted: alloc_interact_script reads $KOCHI_ALLOC_NODE_SPEC, but "
        "machines: scripted: allocation: node_spec in kochi.yaml is not set\n"
        "Add to the command: -n SPEC\n"
    )
    assert said("-m", "scripted", "-n", "node1", "-q", "q") == (
        "kochi: without a terminal, nothing starts the worker for queue q: the "
        "alloc_interact_script does not read $KOCHI_WORKER_LAUNCH_CMD\n"
        "Have it start that command in the background, or type this in a terminal.\n"
    )
    assert "'soon': " in login.type("alloc_interact", "-t", "soon").stderr
    assert "Traceback" not in login.type("alloc_interact", "-q", "a/b").stderr
    refused = login.type("alloc_interact", "-n", "no-such-node")
    assert refused.returncode != 0
    assert "Invalid node name specified" in refused.stderr
