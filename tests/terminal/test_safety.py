"""A second user of the node tries to attach to a terminal, to read what it says, and to be in the
way."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from seen import FIRST
from strangers import STRANGER, as_user

from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.terminal.address import (
    Address,
    connect_to,
    listen_at,
    read_address,
    socket_directory,
    terminal_of,
)
from snakemake_kochi.terminal.loopback import free_port

from .conftest import PROMPT, Person, await_end

Spawn = Callable[..., Person]
SECRET = "hunter2-of-the-user"


@pytest.fixture
def top(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for everybody, as /tmp is, with KOCHI_ROOT and the temporary files of jobs."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o1777)
    monkeypatch.setenv("KOCHI_ROOT", str(directory / "root"))
    monkeypatch.setenv("TMPDIR", str(directory))
    # What a person has in the environment, as a token.
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def machine(top: Path) -> MachinePaths:
    return Root.find().machine("local")


def address_of(machine: MachinePaths, job: int = FIRST) -> Address:
    found = read_address(terminal_of(machine, job))
    assert found is not None
    return found


@pytest.fixture
def own_processes() -> Callable[[], list[psutil.Process]]:
    """The processes that this test has started: those of a Slurm end only after all tests."""
    earlier = set(psutil.Process().children(recursive=True))
    return lambda: [
        each for each in psutil.Process().children(recursive=True) if each not in earlier
    ]


def refuses(action: Callable[[], object]) -> None:
    with pytest.raises(PermissionError):
        action()


def test_another_user_neither_attaches_nor_reads_nor_learns_a_secret(
    own_processes: Callable[[], list[psutil.Process]],
    top: Path,
    person: Spawn,
    at_work: object,
    machine: MachinePaths,
) -> None:
    port = free_port()
    someone = person("interact", "-q", "test", "-p", str(port))
    someone.sees(PROMPT)
    someone.asks(f"export TYPED={SECRET}")
    address = address_of(machine)
    terminal = someone.asks("tty").strip()
    assert terminal.startswith("/dev/pts/")
    files = [path for path in top.rglob("*") if not path.is_dir()]
    assert Path(address.socket) in files and terminal_of(machine, FIRST) in files
    processes = [process.pid for process in own_processes()]

    def attack() -> None:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            refuses(lambda: connection.connect(address.socket))
        refuses(lambda: os.open(terminal, os.O_RDWR | os.O_NOCTTY))
        for path in files:
            refuses(lambda path=path: os.stat(path))
            refuses(lambda path=path: os.replace("/dev/null", path))
        for pid in processes:
            refuses(lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes())
            refuses(lambda pid=pid: os.listdir(f"/proc/{pid}/fd"))
            refuses(lambda pid=pid: os.kill(pid, 0))

    as_user(STRANGER, attack)
    # What everybody may read of a process.
    words = []
    for process in own_processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # which a zombie is, too
            words += process.cmdline()
    assert any("terminal.host" in word for word in words)
    assert not any(SECRET in word for word in words)
    someone.types("exit")
    assert someone.leaves()[0] == 0
    assert await_end(machine) == "succeeded"


def test_nothing_but_the_port_that_was_asked_for_is_listened_on(
    own_processes: Callable[[], list[psutil.Process]], top: Path, person: Spawn, at_work: object
) -> None:
    def listening() -> set[tuple[str, int]]:
        found = set()
        for process in own_processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # those of an earlier job end
                for each in process.net_connections("inet"):
                    if each.status == psutil.CONN_LISTEN or each.type == socket.SOCK_DGRAM:
                        found.add((each.laddr.ip, each.laddr.port))
        return found

    port = free_port()
    someone = person("interact", "-q", "test")
    someone.sees(PROMPT)
    assert listening() == set()
    someone.types("exit")
    someone.leaves()
    someone = person("interact", "-q", "test", "-p", str(port))
    someone.sees(PROMPT)
    assert listening() == {("127.0.0.1", port)}
    someone.types("exit")
    someone.leaves()


def test_the_host_answers_no_other_user_even_if_its_directory_is_open_to_all(
    top: Path, person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    someone = person("interact", "-q", "test", "--keep")
    someone.sees(PROMPT)
    path = Path(address_of(machine).socket)
    for each in path.parents:
        if each == top:
            break
        each.chmod(0o755)
    path.chmod(0o777)

    def attack() -> None:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(30)
            connection.connect(str(path))
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"H\0\0\0\0")
                assert connection.recv(1) == b""

    as_user(STRANGER, attack)
    assert someone.asks("echo still here") == "still here\r\n"
    someone.types("exit")
    someone.leaves()


def test_a_client_says_nothing_to_a_host_of_another_user(top: Path) -> None:
    ready, listens = os.pipe()
    over, tried = os.pipe()
    path = top / "socket"

    def pretend() -> None:
        with listen_at(path) as listener:
            path.chmod(0o777)
            os.write(listens, b"x")
            os.read(over, 1)
            listener.settimeout(30)
            connection, _ = listener.accept()
            assert connection.recv(1) == b""

    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            as_user(STRANGER, pretend)
            status = 0
        os._exit(status)
    os.read(ready, 1)
    with pytest.raises(PermissionError):
        connect_to(path)
    os.write(tried, b"x")
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("obstacle", ["directory", "open directory", "link", "file"])
def test_who_takes_the_name_of_the_directory_before_does_not_get_the_terminal(
    obstacle: str, top: Path, person: Spawn, at_work: object, machine: MachinePaths
) -> None:
    taken = top / f"kochi-{os.geteuid()}"

    def squat() -> None:
        if obstacle == "link":
            (top / "trap").mkdir(mode=0o777)
            taken.symlink_to(top / "trap")
        elif obstacle == "file":
            taken.write_text("in the way")
        else:
            taken.mkdir()
            taken.chmod(0o777 if obstacle == "open directory" else 0o700)

    as_user(STRANGER, squat)
    someone = person("interact", "-q", "test")
    someone.sees(PROMPT)
    place = Path(address_of(machine).socket)
    assert taken not in place.parents and (top / "trap") not in place.parents
    for each in (place.parent, terminal_of(machine, FIRST).parent):
        found = each.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o700)
    someone.types("exit")
    assert someone.leaves()[0] == 0
    assert not place.parent.exists()


def test_without_any_name_that_is_free_the_socket_is_in_a_directory_that_nobody_can_guess(
    top: Path,
) -> None:
    as_user(STRANGER, lambda: (top / f"kochi-{os.geteuid()}").mkdir())
    as_user(STRANGER, lambda: (top / "kochi-0").mkdir(exist_ok=True))
    with socket_directory((top,)) as first, socket_directory((top,)) as second:
        assert first != second
        for each in (first, second):
            assert each.parent == top
            assert stat.S_IMODE(each.stat().st_mode) == 0o700
    assert not first.exists() and not second.exists()


def test_the_socket_has_its_own_name_for_those_who_delete_what_is_not_used(top: Path) -> None:
    for name in ("short", "long" * 50):
        place = top / name
        place.mkdir()
        with listen_at(place / "socket"), connect_to(place / "socket"):
            names = Path("/proc/net/unix").read_text().split()
            assert (str(place / "socket") in names) == (name == "short")
