"""The server of phases: it has imported what they need.

Where a process of a job becomes the rule's command, a copy becomes the Python that the command
starts.
"""

from __future__ import annotations

import os
import sys
import time
from errno import ESTALE
from functools import partial
from types import SimpleNamespace
from typing import Any

from snakemake_kochi.worker.copies import Variables, run_as_main
from snakemake_kochi.worker.job_process import execute_shell_job
from snakemake_kochi.worker.server import Server
from snakemake_kochi.worker.supervisor import Message

# Seconds from one look at the files of the package to the next: a hundred calls of a filesystem
# that may need milliseconds for each. A Python that is started for a job reads them as early.
_LOOK_INTERVAL = 1.0
_PACKAGE = "snakemake_kochi."
# The directories of packages, of which Debian has its own. The module `sysconfig`, which knows
# them, is not loaded for them alone.
_LIBRARIES = ("site-packages", "dist-packages")


def main(arguments: list[str]) -> None:
    server = Server(arguments)
    variables = Variables()
    variables.begin()
    # What most runs of a batch use; `resource` is what os.wait4 imports for its answer.
    import resource  # noqa: F401

    from snakemake_kochi.phases.__main__ import main
    from snakemake_kochi.processes import node_words

    # The same for all copies. Python remembers the answer, for which it searches long.
    node_words()
    isinstance([], os.PathLike)
    variables.end()
    files = _Files()

    def refuse(request: Message) -> None:
        variables.require_unread(request["environment"])
        files.require_unchanged()

    def live(job: Any, request: Message) -> int:
        shell: Any = SimpleNamespace(**request["shell"])
        own = request["environment"]

        def run(_: list[str]) -> int:
            sys.argv[1:] = shell.phase
            # Bash sets SHLVL and _ when it becomes the program.
            variables.adopt({"SHLVL": "0", **own, "_": own["KOCHI_PYTHON"]})
            return run_as_main(partial(main, shell.phase))

        return execute_shell_job(job, shell, own, run)

    server.serve(live, refuse)


class _Files:
    """The files that determine the program of which copies are made."""

    def __init__(self) -> None:
        names = [name for name in sys.modules if name.startswith(_PACKAGE)]
        # Each installation of a package changes the time of the directory of packages.
        paths = {path for path in sys.path if os.path.basename(path) in _LIBRARIES}
        paths |= {file for name in names if (file := getattr(sys.modules[name], "__file__", None))}
        self._states = {path: _state_of(path) for path in paths}
        self._due = time.monotonic() + _LOOK_INTERVAL

    def require_unchanged(self) -> None:
        """Raises OSError (ESTALE)."""
        if time.monotonic() >= self._due:
            if any(_state_of(path) != state for path, state in self._states.items()):
                raise OSError(ESTALE, "the installed package has changed")
            self._due = time.monotonic() + _LOOK_INTERVAL


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


if __name__ == "__main__":
    main(sys.argv[1:])
