"""The threads of a run that give signs of life, and fold the logs of its ended jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from snakemake_kochi.own_environment import OwnEnvironment
from snakemake_kochi.tickets.run import Run
from snakemake_kochi.tickets.watching import INTERVAL, FencedError

_log = logging.getLogger(__name__)


def live(run: Run, over: threading.Event, fenced: Callable[[], None]) -> None:
    """Begin them; they end soon after `over`. `fenced`: called when another run took over."""

    def beat() -> None:
        environment = OwnEnvironment()
        while not over.wait(INTERVAL):
            environment.note_use()
            try:
                run.beat()
            except FencedError:
                fenced()
                return
            except OSError as error:
                _log.debug("no sign of life can be given now: %s", error)

    def fold() -> None:
        """A thread of its own: it reads a file for each job."""
        while not over.wait(INTERVAL):
            with suppress(OSError):
                run.fold()

    threading.Thread(target=beat, name="kochi-heartbeat", daemon=True).start()
    threading.Thread(target=fold, name="kochi-logs", daemon=True).start()
