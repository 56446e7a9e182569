"""`kochi interact -p`: a program of a job that a person's browser reaches, and nobody else."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from seen import FIRST, list_jobs
from strangers import STRANGER, as_user
from support import wait_until

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.terminal.address import read_address, terminal_of
from snakemake_kochi.terminal.forwarding import Forwarding
from snakemake_kochi.terminal.loopback import free_port, is_free

from .conftest import COMMAND, PROMPT, Person, await_end
from .servers import SERVER, answers, fetch, serve
from .test_forwarding import is_refused

Spawn = Callable[..., Person]


def test_a_server_in_the_shell_of_a_job_is_reached_at_a_port_of_this_computer(
    project: Path, person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    (project / "page").write_bytes(b"of the job\n" * 100_000)
    port = free_port()
    someone = person("interact", "-q", "test", "-c", "-p", str(port))
    someone.sees(f"127.0.0.1:{port} here is port ")
    someone.sees(PROMPT)
    assert is_refused(port)
    someone.types(f"{SERVER} $KOCHI_FORWARD_PORT & sleep 0.1")
    wait_until(lambda: answers(port), "the server answers")
    assert fetch(port, "page") == b"of the job\n" * 100_000

    def intrude() -> None:
        with pytest.raises(OSError):
            fetch(port, "page")

    as_user(STRANGER, intrude)
    someone.asks("true")
    someone.types("kill %1; exit")
    status, said = someone.leaves()
    assert status == 0
    assert f"127.0.0.1:{port}: refused 1 connection of user {STRANGER}" in said
    assert await_end(machine) == "succeeded"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_port_that_is_taken_is_said_before_a_job_is_submitted(
    person: Spawn, machine: MachinePaths
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        someone = person("interact", "-q", "test", "-p", str(port))
        status, said = someone.leaves()
    assert status == 1
    assert f"port {port} of this computer is taken by a process of yours" in said
    assert "Type another one: -p " in said
    assert not list_jobs(machine, ended=True)


def test_a_script_without_a_network_has_no_port(
    project: Path, person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    (project / "apart.yaml").write_text("run: {isolate: [network], script: echo the run}\n")
    port = str(free_port())
    status, said = person("interact", "-q", "test", "apart.yaml", "-p", port).leaves()
    assert status == 1
    assert "apart.yaml: run.isolate: the run script has no network" in said
    assert "Leave out -p" in said
    assert not list_jobs(machine, ended=True)

    someone = person("interact", "-q", "test", "--keep", "apart.yaml")
    someone.sees("press the up arrow.\r\n")
    someone.types("echo \"port: '$KOCHI_FORWARD_PORT'\"")
    someone.sees("port: ''\r\n")
    status, said = person("attach", FIRST, "-p", port).leaves()
    assert status == 1
    assert "isolated from the network" in said
    someone.types("exit")
    assert someone.leaves()[0] == 0


def test_a_job_that_is_kept_is_reached_by_who_attaches_later(
    person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    serve = f"{SERVER} $KOCHI_FORWARD_PORT"
    someone = person("interact", "-q", "test", "--keep", "--", "bash", "-c", serve)
    someone.sees("Serving HTTP")
    someone.child.send("\x1d\x1d\x1d")
    assert someone.leaves()[0] == 0
    port = free_port()
    later = person("attach", FIRST, "-p", str(port))
    later.sees("Serving HTTP")
    assert answers(port)
    later.child.send("\x03")
    later.leaves()
    await_end(machine)


def test_each_job_has_a_port_of_its_own(
    person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    someone = person("interact", "-q", "test", "--shared")
    someone.sees(PROMPT)
    port = int(someone.asks("echo $KOCHI_FORWARD_PORT"))
    address = read_address(terminal_of(machine, FIRST))
    assert address is not None and address.port == port
    someone.types("exit")
    someone.leaves()


@pytest.mark.parametrize("by", ["number", "word"])
def test_a_command_joins_the_port_of_a_job_for_another_computer(
    by: str, person: Spawn, at_work: object
) -> None:
    port = free_port()
    environment = {"KOCHI_FORWARDED": "port-of-the-laptop"}
    someone = person("interact", "-q", "test", "-p", str(port), env=environment)
    someone.sees(f"127.0.0.1:{port} here is port ")
    someone.sees(PROMPT)
    assert is_free(port)
    with Forwarding(port) as forwarding:
        job = str(FIRST) if by == "number" else "port-of-the-laptop"
        forwarding.begin([*COMMAND, "forward", job])
        serve(someone, port)
        assert someone.leaves()[0] == 0
        assert is_refused(port)
    with Forwarding(port) as forwarding:
        forwarding.begin([*COMMAND, "forward", "unknown"])
        assert is_refused(port)
        assert "the job has no terminal yet, or has ended" in "".join(forwarding.told())
