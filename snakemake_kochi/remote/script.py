"""Programs for a login host, in a form that every login shell passes on unchanged.

sshd gives a command to the user's login shell, as one text. The shell may be bash, csh or fish,
which read quotes, `$` and `!` differently, and it may print a banner first. So the program is sent
as base64, inside a line that means the same in all of them, and it begins with a marker: what came
before is not the program's. All users of the host see that line; a private program travels on
standard input instead.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from snakemake_kochi.files import random_word

# The kernel limits one argument, here that of `bash -c`, to 128 KiB; sshd adds the shell's words.
_MOST_CHARACTERS = 120_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The login shell does not come back: its own EXIT trap would print behind the command's output.
# sshd's bash would read ~/.bashrc a second time.
_GIVEN = "exec bash --norc -c 'eval \"$(printf %s {} | base64 -d)\"'"
# bash reads no more than the line, so that the rest is the script's input.
_READ = (
    "exec bash --norc -c 'IFS= read -r kochi_script && "
    'eval "$(printf %s "$kochi_script" | base64 -d)"\''
)


@dataclass(frozen=True)
class Script:
    """A program in the language of bash, which runs it in the home directory. `is_private`: its
    text may have secrets."""

    text: str
    is_private: bool = False

    @classmethod
    def of(
        cls,
        words: Sequence[str],
        directory: str | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Script:
        """One command, whose words arrive as they are, in a directory and with variables."""
        lines = [
            f"export {_variable(name)}={shlex.quote(v)}" for name, v in (variables or {}).items()
        ]
        if directory is not None:
            # After `--`, `-` would still be the previous directory, and a relative path may be
            # looked up in $CDPATH.
            lines.append(f"cd -- {shlex.quote(_as_path(directory))} || exit 1")
        return cls("\n".join([*lines, f"exec {shlex.join(words)}"]))


def _variable(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a variable")
    return name


def _as_path(directory: str) -> str:
    return directory if directory.startswith(("/", "./")) else f"./{directory}"


@dataclass(frozen=True)
class Wrapped:
    """A script as one line for the login shell, and the marker with which its output begins.

    `streams` are those with a marker: on a terminal standard error is the same stream.
    """

    script: Script
    streams: tuple[int, ...] = (1, 2)
    word: str = field(default_factory=lambda: f"kochi-begins-{random_word(8)}")

    @property
    def line(self) -> str:
        """Raises ValueError if the script is longer than a host accepts."""
        if self.script.is_private:
            return _READ
        line = _GIVEN.format(self._coded)
        if len(line) > _MOST_CHARACTERS:
            raise ValueError(f"{len(line)} characters, of which a host accepts {_MOST_CHARACTERS}")
        return line

    @property
    def given(self) -> bytes:
        """What its standard input has to begin with."""
        return f"{self._coded}\n".encode() if self.script.is_private else b""

    @property
    def _coded(self) -> str:
        marks = "".join(f"printf '%s\\n' {self.word} >&{stream}\n" for stream in self.streams)
        # A trap of a file that $BASH_ENV names.
        text = f"trap - EXIT\n{marks}{self.script.text}"
        return base64.b64encode(os.fsencode(text)).decode()

    def after_marker(self, output: bytes) -> bytes | None:
        """What the script itself has printed so far; None if it did not begin yet."""
        # A terminal makes a carriage return of each line's end, too.
        found = re.search(rb"%s\r*\n" % self.word.encode(), output)
        return None if found is None else output[found.end() :]
