"""A port of this computer whose connections reach a port of a job's node, and nobody else's."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from strangers import ORDINARY, STRANGER, as_user

from snakemake_kochi.terminal.forwarding import Forwarding, PortError
from snakemake_kochi.terminal.loopback import free_port, is_free, next_free_port, user_of_client
from snakemake_kochi.terminal.port_relay import port_relay_command

MEGABYTE = 1024 * 1024
PATIENCE = 30.0


class _Echo(socketserver.BaseRequestHandler):
    """Sends back what it got, once all of it came."""

    def handle(self) -> None:
        self.request.sendall(read_all(self.request))


class _Program(socketserver.ThreadingTCPServer):
    """A program of a job that listens on a port of its node."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 100

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that is cut off is no error here."""


class _Program6(_Program):
    address_family = socket.AF_INET6


@contextmanager
def program(port: int, handler: type = _Echo, at: str = "127.0.0.1") -> Iterator[None]:
    with (_Program6 if ":" in at else _Program)((at, port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def forwarding(node_port: int, words: Sequence[str] = ()) -> Iterator[Forwarding]:
    with Forwarding(free_port()) as forwarded:
        forwarded.begin(words or port_relay_command(node_port))
        yield forwarded


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(MEGABYTE), b""))


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def ask(port: int, question: bytes) -> bytes:
    with closing(connect(port)) as connection:
        connection.sendall(question)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def is_refused(port: int) -> bool:
    """Whether a connection is cut off, or not even made, without a byte."""
    began = time.monotonic()
    try:
        with closing(connect(port)) as connection:
            found = connection.recv(1)
    except ConnectionError:
        found = b""
    assert time.monotonic() - began < PATIENCE / 2
    return found == b""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def relays() -> list[psutil.Process]:
    started = port_relay_command(0)[1:-1]
    children = psutil.Process().children(recursive=True)

    def words(child: psutil.Process) -> list[str]:
        with suppress(psutil.NoSuchProcess):  # others may end meanwhile
            return child.cmdline()
        return []

    return [child for child in children if words(child)[1:-1] == started]


def through_pipes(words: Sequence[str]) -> list[str]:
    return ["sh", "-c", 'cat | "$@" | cat', "sh", *words]


@pytest.mark.parametrize("by", [list, through_pipes])
def test_many_connections_at_once_reach_the_program(
    by: Callable[[Sequence[str]], list[str]],
) -> None:
    port = free_port()
    words = by(port_relay_command(port))
    with program(port), forwarding(port, words) as forwarded:
        contents = [os.urandom(MEGABYTE + number) for number in range(40)]
        with ThreadPoolExecutor(len(contents)) as threads:
            found = threads.map(lambda each: ask(forwarded.port, each), contents)
            assert list(found) == contents
        assert not forwarded.told()
    assert not relays()


def test_a_program_that_listens_on_the_address_of_ipv6_only_is_reached() -> None:
    port = free_port()
    with program(port, at="::1"), forwarding(port) as forwarded:
        assert ask(forwarded.port, b"x") == b"x"


def test_a_client_that_uses_a_socket_of_ipv6_is_known() -> None:
    port = free_port()
    with (
        program(port),
        forwarding(port) as forwarded,
        socket.create_connection(("::ffff:127.0.0.1", forwarded.port)) as connection,
    ):
        connection.sendall(b"x")
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b"x"


def test_connections_are_refused_until_the_program_listens() -> None:
    port = free_port()
    with Forwarding(free_port()) as forwarded:
        # The job waits in its queue.
        assert is_refused(forwarded.port)
        forwarded.begin(port_relay_command(port))
        assert is_refused(forwarded.port)
        with program(port):
            assert ask(forwarded.port, b"now") == b"now"
        assert is_refused(forwarded.port)
        assert not forwarded.told()


def test_a_reader_that_stops_holds_up_the_program_and_no_other_connection() -> None:
    class Endless(socketserver.BaseRequestHandler):
        sent = 0

        def handle(self) -> None:
            while True:
                self.request.sendall(bytes(MEGABYTE))
                Endless.sent += 1

    port, other = free_port(), free_port()
    with program(port, Endless), program(other), forwarding(port) as forwarded:
        before = psutil.Process().memory_info().rss
        slow = [connect(forwarded.port) for _ in range(5)]
        until(lambda: Endless.sent > 5)

        def stands() -> bool:
            count = Endless.sent
            time.sleep(0.5)
            return Endless.sent == count

        until(stands)
        # The system's own buffers take some megabytes for each.
        assert Endless.sent < 5 * 32
        assert relays()[0].memory_info().rss < 100 * MEGABYTE
        assert psutil.Process().memory_info().rss - before < 100 * MEGABYTE
        with closing(connect(forwarded.port)) as quick:
            received = 0
            while received < 20 * MEGABYTE:
                received += len(quick.recv(MEGABYTE))
        for connection in slow:
            connection.close()


def test_a_connection_that_the_program_cuts_off_is_cut_off_for_its_user() -> None:
    class Cut(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1)
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.request.close()

    port = free_port()
    with program(port, Cut), forwarding(port) as forwarded:
        connection = connect(forwarded.port)
        connection.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        connection.close()


def test_another_user_of_the_computer_gets_no_connection() -> None:
    class Witness(socketserver.BaseRequestHandler):
        came = 0

        def handle(self) -> None:
            Witness.came += 1
            self.request.sendall(b"secret")

    port = free_port()
    with program(port, Witness), forwarding(port) as forwarded:

        def attack() -> None:
            # Also with what is sent at once, and a connection that nobody has any more.
            for _ in range(20):
                assert is_refused(forwarded.port)
                with suppress(ConnectionError), closing(connect(forwarded.port)) as connection:
                    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")

        as_user(STRANGER, attack)
        with closing(connect(forwarded.port)) as connection:
            assert connection.recv(6) == b"secret"
        assert Witness.came == 1
        told = "\n".join(forwarded.told())
        assert f"127.0.0.1:{forwarded.port}: refused " in told
        assert f"of user {STRANGER}" in told


def test_a_connection_that_its_user_has_closed_is_nobodys() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        client = socket.create_connection(address)
        theirs = client.getsockname()
        connection, _ = server.accept()
        with connection:
            assert user_of_client(theirs, address) == os.geteuid()
            client.close()
            # The kernel still knows it, as a connection of user 0.
            assert user_of_client(theirs, address) is None
    assert user_of_client(("127.0.0.1", 9), address) is None


def test_another_user_who_listens_in_the_place_of_the_program_gets_nothing() -> None:
    port = free_port()
    ready, listens = os.pipe()
    over, tried = os.pipe()

    def listen() -> None:
        with socket.create_server(("0.0.0.0", port)) as server:
            os.write(listens, b"x")
            os.read(over, 1)
            server.setblocking(False)
            with suppress(BlockingIOError, ConnectionError), server.accept()[0] as connection:
                assert connection.recv(100) == b""

    with forwarding(port) as forwarded, ThreadPoolExecutor(1) as threads:
        squatting = threads.submit(as_user, STRANGER, listen)
        os.read(ready, 1)
        with closing(connect(forwarded.port)) as connection, suppress(ConnectionError):
            connection.sendall(b"password")
            assert connection.recv(1) == b""
        os.write(tried, b"x")
        squatting.result()


def test_only_loopback_is_listened_on_and_nobody_gets_the_other_localhost() -> None:
    with forwarding(free_port()) as forwarded:
        mine = [each for each in psutil.Process().net_connections() if each.status == "LISTEN"]
        assert [each.laddr for each in mine] == [("127.0.0.1", forwarded.port)]

        def squat() -> None:
            # What "localhost" means to a browser first.
            with socket.socket(socket.AF_INET6) as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    other.bind(("::1", forwarded.port))

        as_user(STRANGER, squat)
        with pytest.raises(ConnectionRefusedError), closing(socket.socket(socket.AF_INET6)) as six:
            six.connect(("::1", forwarded.port))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_taken_port_is_said_with_one_that_is_free(address: str) -> None:
    port = free_port()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, port), family=family),
        pytest.raises(PortError, match=f"port {port} .* is taken by a process of yours") as caught,
    ):
        Forwarding(port)
    assert caught.value.hint == f"Type another one: -p {next_free_port(port)}"
    Forwarding(int(caught.value.hint.split()[-1])).close()


def test_the_user_who_has_taken_a_port_is_named() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):

        def try_it() -> None:
            with pytest.raises(PortError, match="taken by a process of 'root'"):
                Forwarding(port)

        as_user(ORDINARY, try_it)


def test_a_port_of_the_system_is_said_with_one_that_may_be_used() -> None:
    def try_it() -> None:
        with pytest.raises(PortError, match="port 80 is for the system's services") as caught:
            Forwarding(80)
        hint = caught.value.hint
        assert hint is not None
        port = int(hint.removeprefix("Type another one: -p "))
        assert port >= 1024

    as_user(ORDINARY, try_it)


def test_a_port_that_is_given_up_can_be_taken_at_once() -> None:
    port, node_port = free_port(), free_port()
    for _ in range(3):
        with program(node_port), Forwarding(port) as forwarded:
            forwarded.begin(port_relay_command(node_port))
            # The kernel remembers connections that this side has closed.
            held = connect(port)
            assert ask(port, b"x") == b"x"
        assert read_all_or_reset(held) == b""
        held.close()


def read_all_or_reset(connection: socket.socket) -> bytes:
    try:
        return read_all(connection)
    except ConnectionResetError:
        return b""


def test_a_relay_that_was_killed_cuts_off_its_connections_and_is_started_anew() -> None:
    port = free_port()
    with program(port), forwarding(port) as forwarded:
        held = connect(forwarded.port)
        assert ask(forwarded.port, b"x") == b"x"
        (first,) = relays()
        first.kill()
        assert read_all_or_reset(held) == b""
        held.close()
        assert ask(forwarded.port, b"y") == b"y"
        (second,) = relays()
        assert second.pid != first.pid
        assert not forwarded.told()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sh", "-c", "echo 'srun: error: the job has ended' >&2; exit 1"], "the job has ended"),
        (["/no/such/program"], "No such file"),
        (["echo", "Welcome!"], "the relay of the forwarded port did not start"),
    ],
)
def test_a_relay_that_does_not_start_is_said_at_the_end(words: list[str], problem: str) -> None:
    with forwarding(1, words) as forwarded:
        assert is_refused(forwarded.port)
        assert is_refused(forwarded.port)
        (line,) = forwarded.told()
    assert line.startswith(f"127.0.0.1:{forwarded.port}: ")
    assert problem in line


def test_the_relay_ends_with_its_user_also_if_he_is_killed(tmp_path: Path) -> None:
    port = free_port()
    script = tmp_path / "user.py"
    script.write_text(
        "import sys, time\n"
        "from snakemake_kochi.terminal.forwarding import Forwarding\n"
        "with Forwarding(int(sys.argv[1])) as forwarded:\n"
        "    forwarded.begin(sys.argv[2:])\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    own = free_port()
    words = [sys.executable, str(script), str(own), *port_relay_command(port)]
    with program(port), subprocess.Popen(words, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"ready\n"
        assert ask(own, b"x") == b"x"
        (relay,) = relays()
        held = connect(own)
        user.send_signal(signal.SIGKILL)
        until(lambda: not relay.is_running() or relay.status() == psutil.STATUS_ZOMBIE)
        held.close()


def test_a_free_port_is_one_that_the_kernel_gives_to_nobody_else() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 10
    assert all(1024 <= port < first or last < port <= 65535 for port in ports)


def test_a_port_is_free_only_if_it_is_on_all_addresses() -> None:
    with ExitStack() as stack:
        for address in ("127.0.0.1", "::1", "127.0.0.5"):
            port = free_port()
            assert is_free(port)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            stack.enter_context(socket.create_server((address, port), family=family))
            assert not is_free(port)
