"""Computers with networks of their own, joined by cables and by nothing else."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from shutil import which
from types import TracebackType

_ENDING = 60.0
_CONNECTING = 60.0


@dataclass(frozen=True)
class Computer:
    """A computer for all that its network shows. `words` come in front of what runs there."""

    name: str
    pid: int  # of a process there

    @property
    def words(self) -> tuple[str, ...]:
        return in_network_of(self.pid)

    def run(self, *command: str) -> None:
        """Run a command there that succeeds."""
        subprocess.run((*self.words, *command), check=True, stdin=subprocess.DEVNULL)

    def reaches(self, address: str, port: int) -> bool:
        """Whether something there accepts connections from here."""
        connect = f"exec 3<> /dev/tcp/{address}/{port}"
        done = subprocess.run(
            (*self.words, "bash", "-c", connect), capture_output=True, timeout=_CONNECTING
        )
        return done.returncode == 0


def in_network_of(pid: int) -> tuple[str, ...]:
    """The words in front of a command that has the network of a process."""
    return (which("nsenter") or "nsenter", f"--net=/proc/{pid}/ns/net", "--")


class Network:
    """Computers, each with a loopback of its own; what joins two of them is a cable.

        with Network() as network:
            laptop, login = network.computer("laptop"), network.computer("login")
            network.join(laptop, "10.0.1.1", login, "10.0.1.2")

    None forwards anything, and the network of this computer is as before. It needs root. All of it
    is gone when the processes there have ended, also after this one was killed.
    """

    def __enter__(self) -> Network:
        self._stack = ExitStack()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def computer(self, name: str) -> Computer:
        """A new computer."""
        # It ends when this process does, which holds its standard input.
        script = "ip link set lo up && echo ready && exec cat"
        process = subprocess.Popen(
            ("unshare", "--net", "sh", "-c", script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return Computer(name, process.pid)

    def join(self, one: Computer, its: str, other: Computer, the_others: str) -> None:
        """Lay a cable between two computers, with their addresses in a network of its own."""
        # An interface has the name of the computer at the other end.
        ends = ("type", "veth", "peer", "name", one.name, "netns", str(other.pid))
        one.run("ip", "link", "add", "name", other.name, *ends)
        for computer, to, address in ((one, other, its), (other, one, the_others)):
            computer.run("ip", "address", "add", f"{address}/24", "dev", to.name)
            computer.run("ip", "link", "set", to.name, "up")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.terminate()
    process.wait(_ENDING)
