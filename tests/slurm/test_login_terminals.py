"""Terminals of a laptop on the nodes of a real Slurm, behind a login host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from login_site import LoginSite, login_site
from seen import FIRST, find_job, list_workers
from slurm_cluster import APART, SlurmCluster
from support import until_size, wait_until

from tests.terminal.conftest import PROMPT, Person, await_end

SLURM = APART
LEAVE = "\x1d\x1d\x1d"
ON = ("-m", "spica")
LOST = 75  # the exit status of a command whose machine is away


@pytest.fixture
def site(tmp_path: Path, cluster: SlurmCluster) -> Iterator[LoginSite]:
    with login_site(tmp_path, cluster, spica={}) as site:
        yield site


@pytest.fixture
def at_work(site: LoginSite) -> LoginSite:
    """With a worker for the queue `q` on node2."""
    assert site.laptop.kochi("alloc", *ON, "-q", "q", "-n", "node2", "-b").returncode == 0
    return site


def at_prompt(site: LoginSite, *words: str) -> Person:
    """Somebody in a shell there."""
    someone = site.laptop.opens(*words, dimensions=(33, 99))
    someone.sees(PROMPT)
    return someone


def is_a_real_terminal(someone: Person) -> None:
    """The window and its changes are seen there, and Ctrl-C is for the program."""
    assert someone.asks("hostname; stty size") == "node2\r\n33 99\r\n"
    someone.child.setwinsize(44, 111)
    someone.types(until_size(44, 111))
    someone.sees("sized\r\n")
    someone.sees(PROMPT)
    someone.interrupts_a_program()


def kill_ssh(someone: Person) -> None:
    """Kill the ssh of a terminal."""
    (ssh,) = [
        each for each in psutil.Process(someone.child.pid).children(True) if each.name() == "ssh"
    ]
    ssh.kill()


def sever(site: LoginSite) -> None:
    """End the connection through which everything goes, without a word to anybody."""
    runtime = str(site.hosts["spica"].runtime)
    for each in psutil.process_iter(["name", "cmdline"]):
        words = each.info["cmdline"] or ()
        # The process that keeps the connection runs no command itself.
        if each.info["name"] == "ssh" and "-N" in words and any(runtime in w for w in words):
            each.kill()
            return
    raise AssertionError("there is no connection")


def test_a_shell_on_a_node_is_a_job_with_the_terminal_of_the_laptop_and_ends_with_it(
    at_work: LoginSite,
) -> None:
    someone = at_prompt(at_work, "interact", *ON, "-q", "q", "-c")
    is_a_real_terminal(someone)
    assert someone.asks("cat wait.yaml").count("batches:") == 1
    someone.types("seq 20000; exit 9")
    someone.sees("\r\n20000\r\n")
    assert someone.leaves()[0] == 9
    assert await_end(at_work.machine()) == "exit status 9"
    # Now the connection of its terminal is lost.
    someone = at_prompt(at_work, "interact", *ON, "-q", "q")
    kill_ssh(someone)
    status, said = someone.leaves()
    assert status == LOST
    assert "the connection to spica was lost" in said
    assert "The job ends with its terminal." in said
    assert await_end(at_work.machine(), FIRST + 1) == "exit status 129"
    # A kept job is attached to again.
    someone = at_prompt(at_work, "interact", *ON, "-q", "q", "--keep")
    someone.types("x=kept")
    someone.sees(PROMPT)
    sever(at_work)
    status, said = someone.leaves()
    assert status == LOST
    assert "With --keep it goes on: kochi attach -m spica JOB comes back to it" in said
    again = at_prompt(at_work, "attach", *ON, str(FIRST + 2))
    is_a_real_terminal(again)
    again.child.send(LEAVE)
    assert again.leaves()[0] == 0
    assert find_job(at_work.machine(), FIRST + 2).state == "running"
    last = at_prompt(at_work, "attach", *ON, str(FIRST + 2))
    last.types("echo $x$x; exit 4")
    last.sees("keptkept\r\n")
    assert last.leaves()[0] == 4


def test_a_login_beside_a_job_from_the_laptop(at_work: LoginSite) -> None:
    script = "export FOUND=it; cd /usr; sleep 1000"
    laptop = at_work.laptop
    job = ("enqueue", *ON, "-q", "q", "--shared", "--", "bash", "-c", script)
    assert laptop.kochi(*job).returncode == 0
    inspect = ("inspect", *ON, "job", str(FIRST))
    # Of the program that the script ends with, not of the script before it.
    where = ("--", "sh", "-c", 'echo "$FOUND in $PWD"')
    wait_until(lambda: laptop.kochi(*inspect, *where).stdout == "it in /usr\n")
    odd = "a  b\n'c' \"$d\" `e` \\ %f"
    show = 'printf %s "$1"; hostname; echo $FOUND; exit 7'
    done = laptop.kochi(*inspect, "--", "bash", "-c", show, "x", odd)
    assert (done.returncode, done.stdout) == (7, f"{odd}node2\nit\n")
    someone = at_prompt(at_work, *inspect)
    is_a_real_terminal(someone)
    sever(at_work)
    assert someone.leaves()[0] == LOST
    # The job goes on without whoever looked at it, of whom nothing is left.
    wait_until(lambda: not steps(at_work), "the step ends")
    assert find_job(at_work.machine(), FIRST).state == "running"
    assert laptop.kochi("cancel", *ON, str(FIRST)).returncode == 0
    assert await_end(at_work.machine()) == "cancelled"


def steps(site: LoginSite) -> list[str]:
    """Those that somebody has started by srun."""
    found = site.cluster.run("squeue", "--steps", "--noheader", "--format=%i").split()
    return [step for step in found if step.partition(".")[2].isdigit()]


def test_a_shell_in_an_allocation_of_its_own_from_the_laptop_ends_with_its_connection(
    site: LoginSite,
) -> None:
    someone = site.laptop.opens(
        *("alloc_interact", *ON, "-n", "node2", "-q", "q"), dimensions=(33, 99)
    )
    someone.sees(f"Kochi worker {FIRST} started on machine spica")
    someone.types("")
    someone.sees(PROMPT)
    someone.types("")
    someone.sees(PROMPT)
    is_a_real_terminal(someone)
    assert site.laptop.kochi("enqueue", *ON, "-q", "q", "--", "echo", "foo").returncode == 0
    someone.sees("foo\r\n")
    someone.types("exit 5")
    assert someone.leaves()[0] == 5
    wait_until(lambda: not site.cluster.jobs(), "the allocation has ended")
    (worker,) = list_workers(site.machine())
    assert worker.state == "left"
    someone = at_prompt(site, "alloc_interact", *ON, "-n", "node2")
    assert site.cluster.jobs()
    sever(site)
    assert someone.leaves()[0] == LOST
    wait_until(lambda: not site.cluster.jobs(), "the allocation has ended")
