"""A port of the laptop that reaches a job behind a login host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from seen import FIRST
from ssh_host import SshHost
from strangers import STRANGER, as_user
from support import git, write

from snakemake_kochi.terminal.loopback import free_port
from tests.terminal.conftest import PROMPT, Person
from tests.terminal.servers import SERVER, fetch, serve


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project on the laptop, for a machine with a worker."""
    with SshHost("spica", tmp_path) as host:
        host.use(monkeypatch)
        write(host.home / ".bashrc", f"PS1='{PROMPT}'\nbind 'set enable-bracketed-paste off'\n")
        top = tmp_path / "fib"
        git(tmp_path, "init", "-q", str(top))
        write(top / "kochi.yaml", host.machine())
        git(top, "add", ".")
        git(top, "commit", "-q", "-m", "first")
        monkeypatch.chdir(top)
        worker = Person("work", "-m", "spica", "-q", "test", "-b")
        worker.sees(f"Kochi worker {FIRST} started")
        yield top
        worker.child.sendintr()
        worker.leaves()


def test_a_port_of_the_laptop_reaches_a_job_behind_a_login_host(project: Path) -> None:
    port = free_port()
    someone = Person("interact", "-m", "spica", "-q", "test", "-p", str(port))
    someone.sees(f"127.0.0.1:{port} here is port ")
    someone.sees(PROMPT)

    def intrude() -> None:
        with pytest.raises(OSError):
            fetch(port)

    serve(someone, port)
    as_user(STRANGER, intrude)
    assert someone.leaves()[0] == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_a_kept_job_there_is_reached_by_who_attaches(project: Path) -> None:
    words = ("--", "bash", "-c", f"{SERVER} $KOCHI_FORWARD_PORT")
    someone = Person("interact", "-m", "spica", "-q", "test", "--keep", *words)
    someone.sees("Serving HTTP")
    someone.child.send("\x1d\x1d\x1d")
    assert someone.leaves()[0] == 0
    port = free_port()
    later = Person("attach", "-m", "spica", str(FIRST), "-p", str(port))
    later.sees("Serving HTTP")
    assert fetch(port)
    later.child.send("\x03")
    later.leaves()


def test_a_taken_port_of_the_laptop_is_said_before_anything_is_sent(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        status, said = Person("interact", "-m", "spica", "-q", "test", "-p", str(port)).leaves()
    assert status == 1
    assert f"port {port} of this computer is taken" in said
