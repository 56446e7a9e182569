"""The terminal host, the relay and the client's terminal: what is slow, gone or interrupted."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import wait_until

from snakemake_kochi.terminal import screen
from snakemake_kochi.terminal.address import listen_at
from snakemake_kochi.terminal.host import Host
from snakemake_kochi.terminal.output import Recent
from snakemake_kochi.terminal.protocol import (
    GREETING,
    VERSION,
    FrameReader,
    Kind,
    Size,
    json_frame,
    read_json_payload,
)
from snakemake_kochi.terminal.relay import relay_command

PATIENCE = 60.0


def in_child(action: Callable[[], int]) -> int:
    """Do something in another process, whose number is returned."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = action()
        finally:
            os._exit(status)
    return pid


# It prints until nobody takes more, tells how much that was, and ends.
PRINT = """
import os, sys, time
os.set_blocking(1, False)
count = idle = 0
while idle < 20:
    try:
        count, idle = count + os.write(1, b"x" * 1000), 0
    except BlockingIOError:
        idle += 1
        time.sleep(0.05)
with open("count.new", "w") as file:
    file.write(str(count))
os.rename("count.new", "count")
"""


def test_a_client_that_is_slow_gets_the_last_output_and_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with listen_at(tmp_path / "socket") as listener:
        words = [sys.executable, "-c", PRINT]
        pid = in_child(lambda: Host(words, Size(), keep=False, job="0").serve(listener))
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(tmp_path / "socket"))
            client.sendall(json_frame(Kind.HELLO, {"version": VERSION, "size": Size().numbers}))
            wait_until(lambda: Path("count").exists(), "the program ends")
            time.sleep(0.5)  # as a slow link takes
            reader, shown, status = FrameReader(), 0, None
            while data := client.recv(1 << 16):
                for kind, payload in reader.feed(data):
                    shown += len(payload) if kind == Kind.DATA else 0
                    if kind == Kind.EXIT:
                        status = read_json_payload(payload)["status"]
        os.waitpid(pid, 0)
    assert (shown, status) == (int(Path("count").read_text()), 0)


def test_a_relay_passes_on_what_a_host_has_said_last_while_somebody_types(tmp_path: Path) -> None:
    with listen_at(tmp_path / "socket") as listener:
        relay = subprocess.Popen(
            relay_command(str(tmp_path / "socket")), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert relay.stdin is not None and relay.stdout is not None
        listener.settimeout(PATIENCE)
        connection, _ = listener.accept()
        assert relay.stdout.read(len(GREETING)) == GREETING
        # Both are there when it looks.
        relay.send_signal(signal.SIGSTOP)
        connection.sendall(b"the last words")
        connection.close()
        relay.stdin.write(b"typed")
        relay.stdin.flush()
        relay.send_signal(signal.SIGCONT)
        assert relay.stdout.read() == b"the last words"
        relay.stdin.close()
        assert relay.wait(PATIENCE) == 0


def test_recent_output_is_shown_again_without_what_a_terminal_would_answer() -> None:
    recent = Recent(1000)
    recent.add(b"before\r\n", is_seen=True)
    assert recent.unseen == b""
    asked = b"\x1b[6n\x1b[c\x1b[>0c\x1b[?2026$p\x1b[>q\x1b[?u\x1b[18t\x1b]11;?\x07\x1b]4;1;?\x1b\\"
    asked += b"\x1bP+q544e\x1b\\\x1bP$qm\x1b\\\x05"
    recent.add(asked + b"\x1b[1;31mred\x1b[0m\x1b[?25l\x1b[2;3H", is_seen=False)
    assert recent.unseen.startswith(asked)
    assert recent.again() == b"before\r\n\x1b[1;31mred\x1b[0m\x1b[?25l\x1b[2;3H"
    assert recent.unseen == b""


def test_recent_output_is_limited_and_begins_with_a_line() -> None:
    recent = Recent(10)
    recent.add("ä\nzwölf\n".encode(), is_seen=False)
    recent.add(b"end", is_seen=False)
    assert recent.again() == b"end"
    recent.add(b"x", is_seen=False)
    assert recent.unseen == b"x"


def test_a_terminal_is_restored_also_when_a_signal_comes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = os.openpty()
    before = termios.tcgetattr(slave)
    change, calls = termios.tcsetattr, []

    def interrupted(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) % 2:
            raise termios.error(errno.EINTR, "Interrupted system call")
        change(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(screen.termios, "tcsetattr", interrupted)
    with screen.RawTerminal(slave).raw():
        assert not termios.tcgetattr(slave)[3] & termios.ICANON
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_all_is_written_to_a_terminal_that_another_program_has_made_non_blocking() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data, found = os.urandom(1 << 20), bytearray()

    def read() -> None:
        while some := os.read(reading, 1 << 14):
            found.extend(some)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    screen.write_all(writing, data)
    os.close(writing)
    thread.join(PATIENCE)
    assert found == data
    os.close(reading)
