"""The terminal host, the process of a job of `kochi interact`.

    python -m snakemake_kochi.terminal.host --root ROOT [--keep] [--no-port]
        [--size R,C,W,H] [--client PROCESS] -- COMMAND...

It runs the command in a pseudo-terminal, and listens on a Unix domain socket for the client that
has the terminal of a person; `address.py` says where, `protocol.py` what they say. The command
begins when the first client comes. If none comes, or the process that was to be the client is dead,
or its connection is lost, the command ends as when a terminal is closed.

With --keep the command begins at once, and goes on without a client. A client that comes later is
sent the recent output.

The exit status is that of the command, 128 + n after signal n. The log of the job gets a line about
each client, and with --keep the last output that nobody has seen.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from snakemake_kochi.errors import KochiError, told
from snakemake_kochi.paths import Root
from snakemake_kochi.processes import is_dead, this_node, this_process
from snakemake_kochi.terminal.address import (
    Address,
    accept_own,
    listen_at,
    read_address,
    socket_directory,
    terminal_of,
)
from snakemake_kochi.terminal.loopback import free_port
from snakemake_kochi.terminal.output import Recent
from snakemake_kochi.terminal.program import Program, shell_status
from snakemake_kochi.terminal.protocol import (
    VERSION,
    Kind,
    Peer,
    ProtocolError,
    Size,
    data_frames,
    frame,
    json_frame,
    read_json_payload,
)

# Seconds in which the first client must come. A network filesystem may show it the terminal late,
# and it waits for an ssh server and for its relay (`login.py`, `connect.py`).
_PATIENCE = 120.0
# Seconds between two looks whether the process that is to be the client is dead.
_LOOK = 1.0
# Seconds in which a client must take the last output.
_LAST_CLIENT = 10.0
_CHUNK = 1 << 16
# Bytes of recent output that --keep replays.
_REPLAYED = 1 << 18
_HUNG_UP = 128 + signal.SIGHUP
# Tells the program on which port of 127.0.0.1 it may listen; clients may forward one to it.
_PORT = "KOCHI_FORWARD_PORT"


class _Client(Peer):
    """A connection; `is_attached` once it has said what it wants."""

    is_attached = False


class Host:
    """Serves one program until it ends."""

    def __init__(
        self, words: Sequence[str], size: Size, keep: bool, job: str, expected: str = ""
    ) -> None:
        self._expected = expected
        self._keep = keep
        self._job = job
        self._program = Program(words)
        self._clients: list[_Client] = []
        self._recent = Recent(_REPLAYED)
        self._is_lost = self._is_told = False
        self._deadline = time.monotonic() + _PATIENCE
        self._wakeup, notifier = os.pipe()
        for descriptor in (self._wakeup, notifier):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(notifier, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_order)
        if keep:
            self._program.start(size)

    def serve(self, listener: socket.socket) -> int:
        """Serve until the program has ended; returns its exit status."""
        listener.setblocking(False)
        while not self._program.is_over:
            for ready, events in self._wait(listener):
                if ready is listener:
                    self._accept(listener)
                elif isinstance(ready, _Client):
                    self._look_at(ready, events)
                elif isinstance(ready, Program):
                    self._pass_on(ready, events)
                else:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wakeup, 512)
            self._look_at_program()
        return self._finish()

    def _note_order(self, *_: object) -> None:
        self._is_told = True

    @property
    def _attached(self) -> _Client | None:
        return next((client for client in self._clients if client.is_attached), None)

    def _wait(self, listener: socket.socket) -> list[tuple[object, int]]:
        with selectors.PollSelector() as selector:
            selector.register(self._wakeup, selectors.EVENT_READ)
            selector.register(listener, selectors.EVENT_READ, listener)
            program, attached = self._program, self._attached
            for client in self._clients:
                wanted = selectors.EVENT_WRITE if client.unsent else 0
                selector.register(client, wanted | selectors.EVENT_READ, client)
            if program.has_terminal:
                wanted = selectors.EVENT_WRITE if program.has_input else 0
                # A program waits for a client that is slow, as for a terminal.
                if attached is None or attached.unsent < _CHUNK:
                    wanted |= selectors.EVENT_READ
                if wanted:
                    selector.register(program, wanted, program)
            found = selector.select(self._pause())
        program.is_silent = False  # it may have its terminal again
        return [(key.data, events) for key, events in found]

    def _pause(self) -> float | None:
        """Seconds after which something is due without an event."""
        moments = [due] if (due := self._program.due) is not None else []
        if not self._program.has_begun:
            moments.append(min(self._deadline, time.monotonic() + _LOOK))
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    # ---- clients

    def _accept(self, listener: socket.socket) -> None:
        if (connection := accept_own(listener)) is not None:
            self._clients.append(_Client(connection))

    def _look_at(self, client: _Client, events: int) -> None:
        if client not in self._clients:
            return
        if events & selectors.EVENT_WRITE and not client.send():
            self._lose(client)
        elif events & selectors.EVENT_READ:
            try:
                for kind, payload in client.receive():
                    self._take(client, kind, payload)
            except ProtocolError as error:
                client.send(frame(Kind.REFUSED, str(error).encode()))
                self._lose(client)
            if client.is_gone:
                self._lose(client)

    def _take(self, client: _Client, kind: bytes, payload: bytes) -> None:
        program = self._program
        if kind == Kind.HELLO and not client.is_attached:
            self._greet(client, payload)
        elif not client.is_attached:
            raise ProtocolError("a client must say first what it wants")
        elif kind == Kind.DATA and program.is_open:
            program.give(payload)
        elif kind == Kind.SIZE and program.is_open:
            program.resize(Size.unpack(payload))
        elif kind == Kind.DETACH:
            if self._keep:
                self._detach(client, f"job {self._job} goes on")
            else:
                program.end("its terminal was closed")
        elif kind == Kind.HANG_UP:
            program.end("its terminal was closed")

    def _greet(self, client: _Client, payload: bytes) -> None:
        said = read_json_payload(payload)
        size = Size.from_list(said.get("size"))
        if said.get("version") != VERSION:
            raise ProtocolError(
                f"the terminal of job {self._job} belongs to another version of snakemake_kochi"
            )
        if (other := self._attached) is not None:
            if not self._keep:
                client.send(
                    frame(
                        Kind.REFUSED,
                        f"job {self._job} has a terminal, and ends with it: only a job of "
                        "`kochi interact --keep` can change it".encode(),
                    )
                )
                self._lose(client)
                return
            self._detach(other, f"job {self._job} goes on in another terminal")
        client.is_attached = True
        client.send(json_frame(Kind.WELCOME, {"keep": self._keep}))
        if not self._program.has_begun:
            self._program.start(size)
        elif self._program.is_open:
            self._program.resize(size)
            client.send(data_frames(self._recent.again()))
            self._program.redraw()
        self._note("a terminal is attached")

    def _detach(self, client: _Client, why: str) -> None:
        client.send(frame(Kind.DETACHED, why.encode()))
        self._lose(client)

    def _lose(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        client.close()
        if not client.is_attached or self._program.status is not None:
            return
        self._note("the terminal was detached")
        if not self._keep:
            self._is_lost = True
            self._program.end("the connection to its terminal was lost")
            self._program.close()

    # ---- the program

    def _pass_on(self, program: Program, events: int) -> None:
        if not program.is_open:
            return
        if events & selectors.EVENT_WRITE and program.has_input:
            program.push()
        # Anything else means that it can be read, or that its end is to be read.
        if not events & selectors.EVENT_READ or (data := program.read()) is None:
            return
        client = self._attached
        is_seen = client is not None and client.send(frame(Kind.DATA, data))
        if self._keep:
            self._recent.add(data, is_seen)
        if client is not None and not is_seen:
            self._lose(client)

    def _look_at_program(self) -> None:
        if self._is_told:
            self._program.end("its worker ended it")
        if not self._program.has_begun:
            is_late = time.monotonic() >= self._deadline
            if is_late or is_dead(self._expected):
                self._program.end("no terminal was attached to it")
        self._program.look()

    def _finish(self) -> int:
        """Tell the client how the program ended; returns the exit status."""
        program = self._program
        ended = -signal.SIGHUP if program.status is None else program.status
        status = shell_status(ended)
        # A client that is slow has kept it waiting.
        rest = program.read_rest()
        program.close()
        if (client := self._attached) is not None:
            number = -ended if ended < 0 else None
            said = {"status": status, "signal": number, "why": program.why}
            client.send_rest(_LAST_CLIENT, data_frames(rest) + json_frame(Kind.EXIT, said))
            client.close()
        if unseen := self._recent.unseen:
            sys.stdout.buffer.write(unseen + b"\n")
            sys.stdout.flush()
        if program.why:
            self._note(f"the program was told to end: {program.why}")
        return status or (_HUNG_UP if self._is_lost else 0)

    def _note(self, text: str) -> None:
        """Write a line into the log of the job."""
        with contextlib.suppress(OSError):
            print(f"kochi: {text}", flush=True)


def host_command(
    root: Path, command: Sequence[str], keep: bool, size: Size, has_network: bool
) -> tuple[str, ...]:
    """The argument list that runs a command in a terminal of its job, with this Python. The calling
    process is to be its client."""
    # -P: a module of that name in the user's directory must not replace a library.
    words = [sys.executable, "-P", "-m", "snakemake_kochi.terminal.host", "--root", str(root)]
    words += ["--keep"] if keep else ["--client", this_process()]
    words += [] if has_network else ["--no-port"]
    return (*words, "--size", ",".join(map(str, size.numbers)), "--", *command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the terminal of the job whose process this is; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--")
    options = _parser().parse_args(words[:end])
    number = os.environ["KOCHI_JOB_ID"]
    machine = Root(options.root).machine(os.environ["KOCHI_MACHINE"])
    terminal = terminal_of(machine, int(number))
    attempt = int(os.environ["KOCHI_ATTEMPT"])
    try:
        if read_address(terminal) is not None:
            # What ran there is lost, and nobody waits for the same again.
            raise KochiError(f"the terminal of job {number} was lost in an earlier attempt")
        port = 0 if options.no_port else free_port()
        if port:
            os.environ[_PORT] = str(port)  # before the program begins
        with socket_directory() as directory:
            path = directory / "socket"
            with listen_at(path) as listener:
                size = Size.from_list(options.size)
                host = Host(words[end + 1 :], size, options.keep, number, options.client)
                worker = int(os.environ["KOCHI_WORKER_ID"])
                Address(attempt, worker, this_node(), str(path), options.keep, port).save(terminal)
                return host.serve(listener)
    except KochiError as error:
        print(f"kochi: {error}", file=sys.stderr)
    except OSError as error:
        print(f"kochi: {told(error)}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m snakemake_kochi.terminal.host", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--root", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--keep", action="store_true", help="go on without a client")
    parser.add_argument("--no-port", action="store_true", help="the command has no network")
    parser.add_argument("--client", default="", metavar="PROCESS", help="the first client")
    parser.add_argument(
        "--size",
        type=lambda text: [int(each) for each in text.split(",")],
        default=[24, 80, 0, 0],
        metavar="R,C,W,H",
        help="the size of the terminal at first",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
