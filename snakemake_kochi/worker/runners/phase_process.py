"""The spawner of phases: a process that has imported what they need, and forks itself for each job.

A worker starts it as `python -P -m snakemake_kochi.worker.runners.phase_process SOCKET PID ...`, by
the Python and in the environment of the jobs. It answers like the spawner of shell jobs (see
`spawner_process.py`). Where that becomes the rule's command, a copy of this process becomes the
Python that the command starts.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from snakemake_kochi.next.worker.copies import memory_mb, run_as_main
from snakemake_kochi.next.worker.job_process import end_with_parent
from snakemake_kochi.next.worker.shell_job import execute_shell_job
from snakemake_kochi.worker.runners.spawner_process import SpawnerProcess
from snakemake_kochi.worker.runners.variables import Variables

if TYPE_CHECKING:
    from snakemake_kochi.next.worker.job_process import Job
    from snakemake_kochi.queue.ticket import ShellJob

# Seconds without a job, as of a zygote.
_IDLE = 300.0
# Seconds from one look at the files of the package to the next: a hundred calls of a filesystem
# that may need milliseconds for each. A Python that is started for a job reads them as early.
_LOOK_INTERVAL = 1.0
_PACKAGE = "snakemake_kochi."
# The directories of packages, of which Debian has its own. The module `sysconfig`, which knows
# them, is not loaded for them alone.
_LIBRARIES = ("site-packages", "dist-packages")


def main(link: socket.socket, worker: int) -> None:
    end_with_parent()
    # A copy that is not the Python of its job yet ends like any other process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
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
    own = dict(os.environ)
    phase, program = _Phase(main, own), _Program(variables, own)
    spawner = SpawnerProcess(link, worker, phase.execute, program.refuse)
    gc.collect()
    spawner.answer(0, memory_mb())
    spawner.serve(_IDLE)


class _Program:
    """The program of which copies are made, as its files and its environment determine it."""

    def __init__(self, variables: Variables, environment: Mapping[str, str]) -> None:
        """`environment`: that of this process."""
        self._variables = variables
        self._environment = environment
        # Each installation of a package changes the time of the directory of packages.
        libraries = {path for path in sys.path if os.path.basename(path) in _LIBRARIES}
        files = (*_files_of_package(), *libraries)
        self._files = {file: _state_of(file) for file in files}
        self._looked = time.monotonic()

    def refuse(self, environment: Mapping[str, str]) -> int:
        """The number of an error if another process would be another program, or 0."""
        own = self._environment
        changed = {name for name, _ in own.items() ^ environment.items()}
        if self._variables.read_of(changed) is not None:
            return errno.ENOTSUP
        if time.monotonic() < self._looked + _LOOK_INTERVAL:
            return 0
        if any(_state_of(file) != state for file, state in self._files.items()):
            return errno.ESTALE
        self._looked = time.monotonic()
        return 0


def _files_of_package() -> list[str]:
    names = [name for name in sys.modules if name.startswith(_PACKAGE)]
    files = [getattr(sys.modules[name], "__file__", None) for name in names]
    return [file for file in files if file is not None]


def _state_of(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class _Phase:
    """How a copy lives as the Python that the command of a job starts."""

    def __init__(
        self, main: Callable[[Sequence[str]], int], environment: Mapping[str, str]
    ) -> None:
        """`main`: the phases' own, which takes their arguments and returns an exit status.
        `environment`: that of this process."""
        self._main = main
        self._environment = environment

    def execute(
        self, job: Job, shell: ShellJob, environment: dict[str, str], temporary: str | None
    ) -> int:
        """Prepare a job and run its phase; see `execute_shell_job`."""
        run = partial(self._run, shell.phase, environment)
        return execute_shell_job(job, shell, environment, temporary, run)

    def _run(self, words: Sequence[str], environment: Mapping[str, str], _: list[str]) -> int:
        # The worker's socket, the log, and what a scheduler's launcher left open.
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Bash sets SHLVL and _ when it becomes the program.
        wanted = {"SHLVL": "0", **environment, "_": environment["KOCHI_PYTHON"]}
        _change_environment(self._environment, wanted)
        sys.argv[1:] = words
        gc.enable()
        return run_as_main(partial(self._main, words))


def _change_environment(own: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Make the environment of the process, which is its `own` until now, the one that is `wanted`.

    Most of it is that already, and each look at os.environ encodes a name and decodes a value.
    """
    for name in own.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items() - own.items():
        os.environ[name] = value


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
