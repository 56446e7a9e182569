"""This process becomes another program, with its streams, its terminal and its exit status.

A worker's ssh server executes `python -m snakemake_kochi.terminal.become`, which becomes the
program that the client named in one word (`login.packed`): the user's shell, which is between the
server and this process, thus has nothing to interpret.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

# As in the shell.
_NOT_FOUND, _CANNOT_EXECUTE = 127, 126
_NAMED_IN = "SSH_ORIGINAL_COMMAND"


def become(
    words: Sequence[str], environment: Mapping[str, str] = os.environ, where: str = "here"
) -> int:
    """Become a program; returns an exit status, with a message, only when that is not possible.

    `where`: for people.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], list(words), environment)
    except FileNotFoundError:
        print(f"kochi: there is no program {shlex.quote(words[0])} {where}", file=sys.stderr)
        return _NOT_FOUND
    except OSError as error:
        print(f"kochi: {words[0]}: {error.strerror}", file=sys.stderr)
        return _CANNOT_EXECUTE


def main() -> int:
    """Become the program of a login; returns an exit status only when that is not possible."""
    # Imported here: who becomes a program of its own needs no keys.
    from snakemake_kochi.terminal.login import unpacked

    try:
        words = unpacked(os.environ.pop(_NAMED_IN, ""))
    except ValueError:
        print("kochi: this server only executes what kochi sends", file=sys.stderr)
        return _CANNOT_EXECUTE
    os.environ.pop("SHLVL", None)  # which the server has set
    return become(words, where=f"on {os.uname().nodename}")


if __name__ == "__main__":
    sys.exit(main())
