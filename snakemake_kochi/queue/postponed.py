"""What could not be done now: tried again after a while, and told of once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from snakemake_kochi.errors import KochiError

_log = logging.getLogger(__name__)

_SAY_AGAIN = 60.0  # seconds


class Postponed:
    """Tickets that nothing could be done about, by their files. A full disk or a file that cannot
    be read is met again with every look: it must neither fill the log nor hold up the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Path, float] = {}

    def __contains__(self, path: Path) -> bool:
        return path in self._due

    def is_due(self, path: Path) -> bool:
        """Whether it may be tried, for the first time or again."""
        return self._due.get(path, self._clock()) <= self._clock()

    def postpone(self, path: Path, seconds: float, why: str) -> None:
        """Not to be tried for `seconds`. The reason is logged the first time."""
        if path not in self._due:
            _log.warning("%s", why)
        self._due[path] = self._clock() + seconds

    def forget(self, path: Path) -> None:
        """It was done, or is not there any more."""
        self._due.pop(path, None)


class Complaints:
    """Logs warnings that each new try would repeat: at once, and then every minute."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[int | str | None, float]] = {}

    def about(self, what: str, error: OSError | KochiError) -> None:
        reason = error.message if isinstance(error, KochiError) else str(error)
        # The text may name a temporary file, which is another one each time.
        kind = error.errno if isinstance(error, OSError) else reason
        last, again = self._said.get(what, (None, 0.0))
        moment = time.monotonic()
        if kind != last or moment >= again:
            self._said[what] = (kind, moment + _SAY_AGAIN)
            _log.warning("%s: %s", what, reason)

    def over(self, what: str) -> None:
        """It works (again)."""
        if self._said.pop(what, None):
            _log.info("no longer: %s", what)
