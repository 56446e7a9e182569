"""`kochi interact` for a worker on another node, to which only ssh leads."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hosts import Host
from seen import FIRST, list_workers
from support import until_size, wait_until

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.terminal.loopback import free_port

from .conftest import COMMAND, PROMPT, Person, await_end
from .servers import serve

Spawn = Callable[..., Person]
LEAVE = "\x1d\x1d\x1d"


@pytest.fixture
def node(own_surroundings: Path, tmp_path: Path, machine: MachinePaths) -> Iterator[Host]:
    """A host with a worker for the queue `test`."""
    # For an sshd of root, which Debian's service makes when it starts.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with Host("node7", tmp_path) as host:
        host.start(*COMMAND, "work", "-q", "test", "-b", cwd=own_surroundings)
        wait_until(lambda: list_workers(machine), "the worker")
        yield host


def test_a_shell_on_another_node_is_a_real_terminal(person: Spawn, node: Host) -> None:
    someone = person("interact", "-q", "test", dimensions=(31, 97))
    someone.sees(f"Job {FIRST} has this terminal: worker {FIRST} on node7.")
    someone.sees(PROMPT)
    assert someone.asks("hostname; stty size") == "node7\r\n31 97\r\n"
    someone.child.setwinsize(44, 111)
    someone.types(until_size(44, 111))
    someone.sees("sized\r\n")
    someone.sees(PROMPT)
    someone.interrupts_a_program()
    someone.types("seq 20000; exit 9")
    someone.sees("\r\n20000\r\n")
    assert someone.leaves()[0] == 9


def test_a_port_of_another_node_is_reached(person: Spawn, node: Host) -> None:
    port = free_port()
    someone = person("interact", "-q", "test", "-p", str(port))
    someone.sees(PROMPT)
    serve(someone, port)
    someone.leaves()


def test_a_client_that_is_killed_ends_its_job_on_another_node(
    person: Spawn, node: Host, machine: MachinePaths
) -> None:
    someone = person("interact", "-q", "test")
    someone.sees(PROMPT)
    someone.child.kill(signal.SIGKILL)
    someone.leaves()
    assert await_end(machine) == "exit status 129"


def test_a_kept_job_on_another_node_is_attached_to_again(person: Spawn, node: Host) -> None:
    someone = person("interact", "-q", "test", "--keep")
    someone.sees(PROMPT)
    someone.asks("x=kept")
    someone.child.send(LEAVE)
    assert someone.leaves()[0] == 0
    again = person("attach", FIRST)
    again.sees(PROMPT)
    again.types("echo $x$x; exit 4")
    again.sees("keptkept")
    assert again.leaves()[0] == 4


def test_a_node_that_dies_is_told_and_the_terminal_is_restored(person: Spawn, node: Host) -> None:
    someone = person("interact", "-q", "test")
    someone.sees(PROMPT)
    node.lose()
    someone.sees(f"the connection to the terminal of job {FIRST} was lost")
    status, _ = someone.leaves()
    assert status == 255


def test_nothing_of_the_terminal_listens_on_the_network(person: Spawn, node: Host) -> None:
    someone = person("interact", "-q", "test")
    someone.sees(PROMPT)
    someone.types("echo pid=$PPID.")
    someone.child.expect(r"pid=(\d+)\.")
    for process in psutil.process_iter(["cmdline"]):
        if "snakemake_kochi.terminal.host" in (process.info["cmdline"] or ()):
            # Those of other tests may end meanwhile.
            with contextlib.suppress(psutil.NoSuchProcess):
                connections = process.net_connections("inet")
                assert not [each for each in connections if each.status == "LISTEN"]
