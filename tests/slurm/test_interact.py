"""`kochi interact` in an allocation of a real Slurm: through the allocation, not through a port."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from seen import FIRST
from slurm_cluster import APART, SlurmCluster
from support import git, until_size, wait_until, write

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.terminal.loopback import free_port
from tests.terminal.conftest import PROMPT, Person, await_end
from tests.terminal.servers import serve

SLURM = APART


@pytest.fixture
def machine(isolated_environment: Path) -> MachinePaths:
    return Root(isolated_environment).machine("own")


@pytest.fixture
def login(
    tmp_path: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """A person on the login node of a cluster, in a project."""
    directory = tmp_path / "project"
    directory.mkdir()
    git(directory, "init", "--quiet")
    write(directory / "kochi.yaml", "machines:\n  own:\n    scheduler: slurm\n")
    write(Path(os.environ["HOME"], ".bashrc"), f"PS1='{PROMPT}'\n")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "own")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield cluster
    cluster.cancel_jobs()


def test_a_shell_in_an_allocation_goes_through_it(
    login: SlurmCluster, machine: MachinePaths
) -> None:
    someone = Person("interact", "-q", "q", "-c", dimensions=(33, 99))
    someone.sees(f"Job {FIRST} waits: no worker serves queue q")
    assert Person("alloc", "-q", "q", "-n", "node2", "-b").leaves()[0] == 0
    someone.sees(f"Job {FIRST} has this terminal: worker {FIRST} on node2.")
    someone.sees(PROMPT)
    assert someone.asks("hostname; stty size; basename $PWD") == "node2\r\n33 99\r\nproject\r\n"
    someone.child.setwinsize(44, 111)
    someone.types(until_size(44, 111))
    someone.sees("sized\r\n")
    someone.sees(PROMPT)
    someone.interrupts_a_program()
    assert "--jobid=" in login.calls("srun")[-1]
    assert not Path(machine.directory, "workers", str(FIRST), "login").exists()
    someone.types("seq 20000; exit 9")
    someone.sees("\r\n20000\r\n")
    assert someone.leaves()[0] == 9
    # So does a port of a job.
    port = free_port()
    someone = Person("interact", "-q", "q", "-c", "-p", str(port))
    someone.sees(PROMPT)
    serve(someone, port)
    someone.leaves()
    assert "snakemake_kochi.terminal.port_relay" in login.calls("srun")[-1]

    def steps() -> list[str]:
        found = login.run("squeue", "--steps", "--noheader", "--format=%i").split()
        return [step for step in found if step.partition(".")[2].isdigit()]

    # Slurm learns of a step's end after who waits for it.
    wait_until(lambda: not steps(), "the step ends")
    # A job is told that its allocation ends.
    someone = Person("interact", "-q", "q")
    someone.sees(PROMPT)
    login.cancel_jobs()
    status, said = someone.leaves()
    assert status
    assert (
        f"job {FIRST + 2} was ended" in said
        or f"the connection to the terminal of job {FIRST + 2} was lost" in said
    )
    assert await_end(machine, FIRST + 2) == "cancelled"


def test_a_job_that_waits_names_the_allocation_of_its_worker(
    login: SlurmCluster, machine: MachinePaths
) -> None:
    for queue in ("other", "q"):
        assert Person("alloc", "-q", queue, "-n", "node2", "-b").leaves()[0] == 0
    someone = Person("interact", "-q", "q")
    someone.sees(f"Job {FIRST} waits: no worker serves queue q yet; ")
    someone.sees(f"worker {FIRST + 1} waits for its allocation ")
    someone.child.sendintr()
    assert someone.leaves()[0] == 130
