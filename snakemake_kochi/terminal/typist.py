"""A program in the terminal of a person, for whom a line is typed when a shell waits for one.

A script that requests an allocation shows a shell on a node, after a time that nobody knows. What
is typed before that may be lost, or be read by something else.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import sys
import time
from collections.abc import Sequence

from snakemake_kochi.terminal.program import Program, shell_status
from snakemake_kochi.terminal.screen import RawTerminal, size_of_terminal, write_all

_CHUNK = 1 << 16
_TOLD = (signal.SIGHUP, signal.SIGTERM)
# Seconds of silence after a prompt: before it, schedulers and start-up files print lines.
_SILENCE = 0.4
# Seconds between two looks at the program.
_LOOK = 0.1
_LONGEST_PROMPT = 4096
# What a terminal does, and does not show: colours, titles, modes.
_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_QUESTION = re.compile(rb"(?i)(?:pass\w*|code|token|pin|otp|\(yes/no[^)]*\)|\[y/n\])[^\n]*[:?]\s*$")


def run_and_type(words: Sequence[str], line: str) -> int:
    """Run a program in a terminal of its own, joined to that of the person; its exit status.

    The line is typed at the first prompt.
    """
    return _Typist(words, line).run()


class _Typist:
    def __init__(self, words: Sequence[str], line: str) -> None:
        self._program = Program(words)
        self._program.start(size_of_terminal())
        self._line: bytes | None = f"{line}\r".encode()
        self._printed = b""
        self._silent_since = time.monotonic()

    def run(self) -> int:
        signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        for number in _TOLD:
            # The person's terminal is restored first; that of the program hangs up.
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            with RawTerminal(sys.stdin.fileno()).raw():
                return self._serve()
        finally:
            self._program.close()

    def _resize(self) -> None:
        if self._program.is_open:
            self._program.resize(size_of_terminal())

    def _serve(self) -> int:
        with selectors.PollSelector() as selector:
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            selector.register(self._program.fileno(), selectors.EVENT_READ)
            while not self._program.is_over:
                if self._program.is_silent:
                    time.sleep(_LOOK)
                    self._program.is_silent = False
                for key, _ in selector.select(_LOOK):
                    if key.fd != self._program.fileno():
                        if not self._pass_on():
                            selector.unregister(key.fd)
                    elif data := self._program.read():
                        self._show(data)
                self._type()
                if self._program.has_input:
                    self._program.push()
                self._program.look()
            self._show(self._program.read_rest())
        status = self._program.status
        return shell_status(-signal.SIGHUP if status is None else status)

    def _pass_on(self) -> bool:
        """Hand over what the person types; returns whether there can be more."""
        try:
            data = os.read(sys.stdin.fileno(), _CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        if not data:  # the window was closed
            self._program.end("its window was closed")
            return False
        self._program.give(data)
        return True

    def _show(self, data: bytes) -> None:
        write_all(sys.stdout.fileno(), data)
        if self._line is not None:
            self._silent_since = time.monotonic()
            self._printed = (self._printed + data)[-_LONGEST_PROMPT:]

    def _type(self) -> None:
        is_silent = time.monotonic() >= self._silent_since + _SILENCE
        if self._line is not None and is_silent and is_prompt(self._printed):
            self._program.give(self._line)
            self._line = None


def is_prompt(printed: bytes) -> bool:
    """Whether a shell seems to wait for a line, after what a program has printed.

    Then something is on the last line, and it is not a question that only the person can answer.
    """
    last = re.split(rb"[\r\n]", _SEQUENCE.sub(b"", printed))[-1].strip()
    return bool(last) and _QUESTION.search(last) is None
