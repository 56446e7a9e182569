"""One program on a login host, without what the login shell prints there.

    python -P -m snakemake_kochi.remote.session SSH... -- HOST LINE

`LINE` is in the language of bash. git starts this as its ssh (GIT_SSH_COMMAND), with a host
that stands for the one in `SSH...`.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from snakemake_kochi.parent_death import ending_with_this_process
from snakemake_kochi.remote.script import Script, Wrapped

if TYPE_CHECKING:
    from snakemake_kochi.terminal.screen import RawTerminal

SSH_FAILED = 255
SAYS_AFTER = 5.0  # seconds until a person is told what is waited for
_MOST_BYTES = 1 << 18


class Attended:
    """A process that runs a wrapped script, and the streams in which the script's output begins
    with the marker."""

    def __init__(
        self,
        words: Sequence[str],
        wrapped: Wrapped,
        stdin: int | bytes | IO[bytes] | None,
        own_session: bool = False,
    ) -> None:
        """`stdin`: a file, None for the one of this process, or what it is to have, which a
        private script requires. Raises ValueError if the script is longer than a host accepts."""
        self._wrapped, self._host = wrapped, words[-1]
        assert isinstance(stdin, bytes) or not wrapped.script.is_private
        with ExitStack() as stack:
            given: int | IO[bytes] | None = stdin if not isinstance(stdin, bytes) else None
            if isinstance(stdin, bytes):
                given = stack.enter_context(tempfile.TemporaryFile())
                given.write(wrapped.given + stdin)
                given.seek(0)
            self.process = subprocess.Popen(
                [*words, wrapped.line],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=own_session,
                preexec_fn=ending_with_this_process(),
            )
        assert self.process.stdout is not None and self.process.stderr is not None
        # Until its marker comes, what a stream has said is held back.
        self._held: dict[int, bytes | None] = {1: b"", 2: b""}
        self._sources = {1: self.process.stdout, 2: self.process.stderr}

    @property
    def has_begun(self) -> bool:
        """Whether the script was started there."""
        return self._held[1] is None

    @property
    def refusal(self) -> str:
        """What ssh, or the login shell, has said on standard error instead of the script."""
        return (self._held[2] or b"").decode(errors="replace")

    @property
    def noise(self) -> str:
        """What was said on standard output instead of the script."""
        return (self._held[1] or b"").decode(errors="replace")

    def relay(self, write: Callable[[int, bytes], None]) -> int:
        """Pass on what the script prints, with the number of its stream; return the status.

        An exception, from `write` or by a signal, ends the process first.
        """
        try:
            return self._relay(write)
        except BaseException:
            self.process.terminate()
            self.process.wait()
            raise

    def relay_to_terminal(self, terminal: RawTerminal) -> int:
        """The same to the user's terminal, as it was before this process began; return the status.

        If ssh was killed, or the connection lost while a program had all of the screen, the
        terminal is restored.
        """
        # Imported here: few sessions have a terminal.
        from snakemake_kochi.terminal.output import Modes

        modes = Modes()

        def write(stream: int, content: bytes) -> None:
            modes.note(content)
            write_all(stream, content)

        status = self.relay(write)
        if status < 0 or status == SSH_FAILED:
            terminal.leave()
            write_all(1, modes.undone())
        return status

    def _relay(self, write: Callable[[int, bytes], None]) -> int:
        is_told = False
        with selectors.DefaultSelector() as selector:
            for stream, source in self._sources.items():
                selector.register(source, selectors.EVENT_READ, stream)
            while selector.get_map():
                is_awaited = not self.has_begun and not is_told
                ready = selector.select(SAYS_AFTER if is_awaited else None)
                if not ready:
                    say_no_answer(self._host)
                    is_told = True
                for key, _ in ready:
                    if said := os.read(key.fd, _MOST_BYTES):
                        self._pass_on(key.data, said, write)
                    else:
                        selector.unregister(key.fileobj)
        if self.has_begun and (rest := self._held[2]):
            write(2, rest)  # of a terminal, whose standard error has no marker: ssh's own words
        for source in self._sources.values():
            source.close()
        return self.process.wait()

    def _pass_on(self, stream: int, said: bytes, write: Callable[[int, bytes], None]) -> None:
        held = self._held[stream]
        if held is None:
            write(stream, said)
            return
        own = self._wrapped.after_marker(held + said)
        self._held[stream] = held + said if own is None else None
        if own:
            write(stream, own)


def say_no_answer(host: str) -> None:
    """Tell the person who waits for a host."""
    print(f"kochi: {host} does not answer, still trying ...", file=sys.stderr, flush=True)


def write_all(stream: int, content: bytes) -> None:
    """Write to a descriptor of this process."""
    view = memoryview(content)
    while view:
        view = view[os.write(stream, view) :]


def program(ssh: Iterable[str]) -> list[str]:
    """The words that start this module; a host and a line follow them."""
    return [sys.executable, "-P", "-m", __name__, *ssh, "--"]


def main() -> int:
    words = sys.argv[1:]
    last = len(words) - 1 - words[::-1].index("--")
    ssh, line = words[:last], " ".join(words[last + 2 :])
    attended = Attended(ssh, Wrapped(Script(line)), stdin=None)
    try:
        status = attended.relay(write_all)
    except BrokenPipeError:  # who started this has read enough
        return 1
    if not attended.has_begun:
        write_all(2, attended.refusal.encode())
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
