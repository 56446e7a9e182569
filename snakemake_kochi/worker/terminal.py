"""A worker in this terminal, `kochi work`: what its jobs print is shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.by_hand import worker_of_process
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.echo import Echo
from snakemake_kochi.worker.settings import WorkerSettings, save_settings, settings_of

_PAUSE = 0.1  # seconds
_LONGEST_PAUSE, _GROWTH = 1.0, 1.5  # while the jobs print nothing


def work(settings: WorkerSettings) -> int:
    """Run a worker and show what its jobs print; its exit status.

    Ctrl-C and SIGTERM have it give its jobs back and leave.
    """
    layout = settings.paths.layout
    parent = settings.parent and ProcessIdentity.of(settings.parent)
    own = save_settings(replace(settings, parent=os.getpid()))
    # In a session of its own, or Ctrl-C would reach it twice.
    process = subprocess.Popen(start_command(own), stdin=subprocess.DEVNULL, start_new_session=True)

    def pass_on(number: int, frame: Any) -> None:
        process.send_signal(number)

    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(stop, pass_on)
    while (worker := worker_of_process(layout, process.pid)) is None and process.poll() is None:
        time.sleep(_PAUSE)
    own.unlink(missing_ok=True)  # which no other worker reads
    if worker is not None:
        echo = Echo(settings.paths, worker)
        pause = GrowingPause(_PAUSE, _LONGEST_PAUSE, _GROWTH)
        is_shown = True
        while process.poll() is None:
            found, is_shown = _show(echo) if is_shown else (False, False)
            if found:
                pause.reset()
            else:
                pause.grow()
            if parent and not parent.is_alive():
                process.terminate()
                parent = None
            with suppress(subprocess.TimeoutExpired):
                process.wait(pause.seconds)
        if is_shown:
            _show(echo)
    status = process.wait()
    return status if status >= 0 else 128 - status


def _show(echo: Echo) -> tuple[bool, bool]:
    """Whether anything was new, and whether it can be shown: if not, the jobs go on."""
    try:
        return echo.show(), True
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # nobody reads it any more
            print(f"kochi: what jobs print is not shown any more: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in its buffer goes there
        return False, False


if __name__ == "__main__":
    try:
        sys.exit(work(settings_of(sys.argv[1:])))
    except KochiError as error:
        sys.exit(f"kochi worker: {error.sentences}")
