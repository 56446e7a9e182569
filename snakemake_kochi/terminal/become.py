"""This process becomes another program, with its streams, its terminal and its exit status."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

# As in the shell.
_NOT_FOUND, CANNOT_EXECUTE = 127, 126


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
        return CANNOT_EXECUTE
