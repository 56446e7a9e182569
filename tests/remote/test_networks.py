"""Hosts in a row, each of which reaches the next one only: laptop, first host, login host, node."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hosts import Host
from laptop import Laptop
from networks import Computer, Network
from seen import FIRST as FIRST_JOB
from seen import find_job, list_workers
from ssh_host import SshHost
from support import git, wait_until, write

from snakemake_kochi.files import read_json
from snakemake_kochi.paths import MachinePaths, Root
from tests.terminal.conftest import PROMPT, await_end

FIRST, LOGIN, NODE = "10.0.1.2", "10.0.2.2", "10.0.3.2"
ON = ("-m", "spica")
EXPERIMENT = """
    batches:
      test:
        params: {n: [1, 2]}
        artifacts: [{type: stdout, dest: "${n}.log"}]
    default_params: {n: 1}
    run:
      depend_params: [n]
      script: echo "$KOCHI_PARAM_N on $(hostname)"
    """


@dataclass(frozen=True)
class Site:
    """A laptop, and in a row behind it: a first host, a login host, a node named node7."""

    laptop: Laptop
    computers: dict[str, Computer]
    first: SshHost
    login: SshHost
    node: Host

    @property
    def machine(self) -> MachinePaths:
        return Root(self.login.root).machine("spica")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        names = ("laptop", "first", "login", "node")
        computers = {name: network.computer(name) for name in names}
        laptop, first, login, node = computers.values()
        network.join(laptop, "10.0.1.1", first, FIRST)
        network.join(first, "10.0.2.1", login, LOGIN)
        network.join(login, "10.0.3.1", node, NODE)
        gate = stack.enter_context(SshHost("gate", tmp_path, address=FIRST, computer=first))
        host = stack.enter_context(SshHost("spica", tmp_path, address=LOGIN, computer=login))
        host.configure("ProxyJump gate")
        write(host.home / ".bashrc", f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off'\n")
        there = stack.enter_context(Host("node7", tmp_path, node.words))
        # What such a machine's own scheduler would do.
        enter = shlex.join([*there.enter, "env", f"--chdir={host.home}"])
        host.program("submit", f'{enter} "$@" &')
        top = tmp_path / "fib"
        git(tmp_path, "init", "-q", str(top))
        write(top / "kochi.yaml", host.machine(alloc_script="submit $KOCHI_WORKER_LAUNCH_CMD"))
        write(top / "wait.yaml", EXPERIMENT)
        write(top / ".gitignore", "/results/\n/.snakemake/\n")
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", "first")
        environment = host.environment
        yield Site(
            Laptop(top, environment=environment, before=laptop.words),
            computers,
            gate,
            host,
            there,
        )


def test_a_batch_reaches_a_node_behind_two_hosts(site: Site) -> None:
    assert not site.computers["laptop"].reaches(LOGIN, 22)
    assert site.computers["first"].reaches(LOGIN, 22)
    assert site.laptop.kochi("artifact", "init", "../collected").returncode == 0
    done = site.laptop.kochi("batch", *ON, "wait.yaml", "test")
    assert done.returncode == 0, done.stderr
    done = site.laptop.kochi("artifact", "sync", *ON)
    assert "2 of 2 results in results/" in done.stdout
    log = (site.laptop.top / "results/spica/2.log").read_text()
    assert "2 on node7\n" in log
    # One login for all commands.
    assert (site.first.logins, site.login.logins) == (1, 1)


def test_a_first_host_that_is_away_is_named(site: Site) -> None:
    site.first.stop()
    done = site.laptop.kochi("show", "jobs", *ON)
    assert done.returncode == 75
    assert "no connection to spica" in done.stderr
    assert "The way leads over gate" in done.stderr


def test_a_login_host_that_is_away_is_told_apart(site: Site) -> None:
    site.login.stop()
    done = site.laptop.kochi("show", "jobs", *ON)
    assert done.returncode == 75
    assert "no connection to spica" in done.stderr


def test_a_shell_and_a_login_are_on_a_node_that_only_the_login_host_reaches(site: Site) -> None:
    laptop = site.laptop
    assert laptop.kochi("alloc", *ON, "-q", "test", "-b").returncode == 0
    someone = laptop.opens("interact", *ON, "-q", "test", dimensions=(33, 99))
    someone.sees(f"Job {FIRST_JOB} has this terminal: worker {FIRST_JOB} on node7.")
    someone.sees(PROMPT)
    assert someone.asks("stty size") == "33 99\r\n"
    someone.interrupts_a_program()
    someone.types("exit 6")
    assert someone.leaves()[0] == 6
    assert await_end(site.machine) == "exit status 6"
    # Beside a job.
    job = ("enqueue", *ON, "-q", "test", "--", "bash", "-c", "FOUND=it exec sleep 1000")
    assert laptop.kochi(*job).returncode == 0
    wait_until(lambda: find_job(site.machine, FIRST_JOB + 1).started is not None, "the job runs")
    inspect = ("inspect", *ON, "job", str(FIRST_JOB + 1))
    done = laptop.kochi(*inspect, "--", "bash", "-c", "hostname; echo $KOCHI_JOB_ID; exit 7")
    assert (done.returncode, done.stdout) == (7, f"node7\n{FIRST_JOB + 1}\n")
    # The server's port is one of the node, which the laptop and the first host do not reach.
    answer = Path(site.machine.directory, "workers", str(FIRST_JOB), "login", "answer.json")
    port = int(read_json(answer, 1)["port"])
    reached = {name: each.reaches(NODE, port) for name, each in site.computers.items()}
    assert reached == {"laptop": False, "first": False, "login": True, "node": True}
    someone = laptop.opens(*inspect, dimensions=(33, 99))
    someone.sees(PROMPT)
    assert someone.asks("hostname; stty size") == "node7\r\n33 99\r\n"
    someone.types("exit 4")
    assert someone.leaves()[0] == 4
    assert laptop.kochi("release", *ON, "--now", str(FIRST_JOB)).returncode == 0
    wait_until(lambda: list_workers(site.machine)[0].state == "left", "the worker leaves")
    wait_until(lambda: not site.computers["login"].reaches(NODE, port), "its server, too")
