"""The client: joins the terminal of a person with that of a job, over a stream of bytes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from snakemake_kochi.terminal.output import Modes
from snakemake_kochi.terminal.protocol import (
    VERSION,
    Kind,
    Peer,
    ProtocolError,
    frame,
    json_frame,
    read_json_payload,
)
from snakemake_kochi.terminal.screen import RawTerminal, size_of_terminal, write_all

# Ctrl-], as telnet, and as systemd's tools do: pressed three times in a second, it leaves. The
# first two reach the program, as an editor may need them.
_KEY = b"\x1d"
_TIMES, _WITHIN = 3, 1.0
_CHUNK = 1 << 16
_PATIENCE = 5.0  # seconds for the last bytes to a host
_TOLD = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True)
class Ending:
    """How the connection to a job's terminal ended.

    "exit": the program has ended, with `status`, by a signal with that number, and `why` if it was
    told to. "refused", "detached": the host said `why`. "left": the person closed it by the key.
    "told": by a signal. "lost": the connection broke.
    """

    kind: Literal["exit", "refused", "detached", "left", "told", "lost"]
    status: int = 0
    signal: int | None = None
    why: str = ""


class Client:
    """One connection to the terminal of a job."""

    def __init__(self, stream: socket.socket, source: int = 0, target: int = 1) -> None:
        self._host = Peer(stream)
        self._source = source
        self._target = target
        self._modes = Modes()
        self._presses: list[float] = []
        self._told: int | None = None
        self._is_resized = self._is_stopped = self._is_continued = False
        self._is_at_line_start = True

    def attend(self) -> Ending:
        """Be the terminal until it ends; the terminal is then as before.

        The job goes on after "detached"; after "left" and "told" if it is kept.
        """
        terminal = RawTerminal(self._source)
        with _noting(self) as wakeup:
            size = size_of_terminal(self._source, self._target).numbers
            self._host.send(json_frame(Kind.HELLO, {"version": VERSION, "size": size}))
            try:
                with terminal.raw():
                    ending = self._run(wakeup, terminal)
            finally:
                self._tidy()
        if ending.kind in ("left", "told"):
            # Also to one that reads slowly.
            self._host.send_rest(_PATIENCE)
        return ending

    def _run(self, wakeup: int, terminal: RawTerminal) -> Ending:
        with selectors.PollSelector() as selector:
            selector.register(wakeup, selectors.EVENT_READ)
            selector.register(self._source, selectors.EVENT_READ)
            selector.register(self._host, selectors.EVENT_READ)
            while True:
                wanted = selectors.EVENT_WRITE if self._host.unsent else 0
                selector.modify(self._host, wanted | selectors.EVENT_READ)
                for key, events in selector.select():
                    ending = None
                    if key.fd == wakeup:
                        ending = self._look_at_signals(wakeup, terminal)
                    elif key.fd == self._source:
                        ending = self._type()
                    else:
                        if events & selectors.EVENT_WRITE:
                            self._host.send()
                        if events & selectors.EVENT_READ:
                            ending = self._receive()
                    if ending is not None:
                        return ending

    def _look_at_signals(self, wakeup: int, terminal: RawTerminal) -> Ending | None:
        with contextlib.suppress(BlockingIOError):
            os.read(wakeup, 512)
        if self._told is not None:
            self._host.send(frame(Kind.DETACH))
            return Ending("told", signal=self._told)
        if self._is_stopped:
            self._is_stopped = False
            terminal.leave()
            signal.raise_signal(signal.SIGSTOP)
        if self._is_continued:
            # A shell has had the terminal meanwhile.
            self._is_continued = False
            with contextlib.suppress(termios.error):  # the window was closed
                terminal.enter()
            self._is_resized = True
        if self._is_resized:
            self._is_resized = False
            self._host.send(frame(Kind.SIZE, size_of_terminal(self._source, self._target).pack()))
        return None

    def _type(self) -> Ending | None:
        try:
            data = os.read(self._source, _CHUNK)
        except BlockingIOError:  # another program of the terminal has made it so
            return None
        except OSError:
            data = b""
        if not data:  # the window was closed
            self._host.send(frame(Kind.DETACH))
            return Ending("told", signal=signal.SIGHUP)
        if self._wants_to_leave(data):
            if before := data.rstrip(_KEY):
                self._host.send(frame(Kind.DATA, before))
            self._host.send(frame(Kind.DETACH))
            return Ending("left")
        self._host.send(frame(Kind.DATA, data))
        return None

    def _wants_to_leave(self, data: bytes) -> bool:
        # A program that types, or a slow line, may send keys together with what is before them.
        before = data.rstrip(_KEY)
        now = time.monotonic()
        recent = [] if before else [each for each in self._presses if now - each < _WITHIN]
        self._presses = [*recent, *(now for _ in data[len(before) :])]
        return len(self._presses) >= _TIMES

    def _receive(self) -> Ending | None:
        try:
            for kind, payload in self._host.receive():
                if (ending := self._take(kind, payload)) is not None:
                    return ending
        except ProtocolError as error:
            return Ending("lost", why=error.message)
        return Ending("lost", why=self._host.why) if self._host.is_gone else None

    def _take(self, kind: bytes, payload: bytes) -> Ending | None:
        if kind == Kind.DATA:
            self._modes.note(payload)
            self._is_at_line_start = payload.endswith((b"\n", b"\r"))
            try:
                write_all(self._target, payload)
            except OSError:
                self._host.send(frame(Kind.HANG_UP))
                return Ending("told", signal=signal.SIGPIPE)
        elif kind == Kind.EXIT:
            said = read_json_payload(payload)
            number = said.get("signal")
            return Ending(
                "exit",
                int(said.get("status", 1)),
                None if number is None else int(number),
                str(said.get("why", "")),
            )
        elif kind == Kind.REFUSED:
            return Ending("refused", why=payload.decode("utf-8", "replace"))
        elif kind == Kind.DETACHED:
            return Ending("detached", why=payload.decode("utf-8", "replace"))
        elif kind != Kind.WELCOME:
            raise ProtocolError("the terminal of the job belongs to another version")
        return None

    def _tidy(self) -> None:
        undone = self._modes.undone()
        with contextlib.suppress(OSError):
            write_all(self._target, undone + (b"" if self._is_at_line_start else b"\r\n"))

    def note_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._is_resized = True
        elif number == signal.SIGTSTP:
            self._is_stopped = True
        elif number == signal.SIGCONT:
            self._is_continued = True
        else:
            self._told = number


@contextlib.contextmanager
def _noting(client: Client) -> Iterator[int]:
    """Notes the signals for a client; gives a descriptor that can be read after each."""
    wakeup, notifier = os.pipe()
    for descriptor in (wakeup, notifier):
        os.set_blocking(descriptor, False)
    before_fd = signal.set_wakeup_fd(notifier, warn_on_full_buffer=False)
    numbers = (*_TOLD, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
    before = {
        each: signal.signal(each, lambda number, _: client.note_signal(number)) for each in numbers
    }
    try:
        yield wakeup
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        os.close(wakeup)
        os.close(notifier)
