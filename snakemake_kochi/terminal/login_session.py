"""What a worker's ssh server executes: `python -m snakemake_kochi.terminal.login_session`.

The client says in one word which program it wants (`login.packed`): the user's shell, which is
between the server and this process, thus has nothing to interpret.
"""

from __future__ import annotations

import os
import sys

from snakemake_kochi.terminal.become import CANNOT_EXECUTE, become
from snakemake_kochi.terminal.login import unpacked

_VARIABLE = "SSH_ORIGINAL_COMMAND"


def main() -> int:
    """Become the program; returns an exit status only when that is not possible."""
    try:
        words = unpacked(os.environ.pop(_VARIABLE, ""))
    except ValueError:
        print("kochi: this server only executes what kochi sends", file=sys.stderr)
        return CANNOT_EXECUTE
    os.environ.pop("SHLVL", None)  # which the server has set
    return become(words, where=f"on {os.uname().nodename}")


if __name__ == "__main__":
    sys.exit(main())
