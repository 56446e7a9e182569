"""A worker in this terminal, `kochi work`: what its jobs print is shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from snakemake_kochi.backoff import GrowingPause
from snakemake_kochi.errors import KochiError
from snakemake_kochi.processes import ProcessIdentity
from snakemake_kochi.queue.by_hand import worker_of_process
from snakemake_kochi.tickets.names import Layout
from snakemake_kochi.worker import start_command
from snakemake_kochi.worker.echo import Echo
from snakemake_kochi.worker.settings import WorkerSettings, save_settings, settings_of

_WIDTH = 80
_PAUSE = 0.1  # seconds
_LONGEST_PAUSE, _GROWTH = 1.0, 1.5  # while the jobs print nothing


def work(settings: WorkerSettings) -> int:
    """Run a worker and show what its jobs print; its exit status.

    Ctrl-C and SIGTERM have it give its jobs back and leave.
    """
    layout = Layout(str(settings.paths.directory))
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
        print(f"Kochi worker {worker} started on machine {settings.machine}.\n{'=' * _WIDTH}")
        echo = Echo(settings.paths, Path(layout.worker(str(worker)).log))
        pause = GrowingPause(_PAUSE, _LONGEST_PAUSE, _GROWTH)
        with suppress(BrokenPipeError):  # nobody reads it any more: its jobs go on
            while process.poll() is None:
                if echo.show():
                    pause.reset()
                else:
                    pause.grow()
                if parent and not parent.is_alive():
                    process.terminate()
                    parent = None
                with suppress(subprocess.TimeoutExpired):
                    process.wait(pause.seconds)
            echo.show()
    status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    try:
        sys.exit(work(settings_of(sys.argv[1:])))
    except KochiError as error:
        sys.exit(f"kochi worker: {error.sentences}")
