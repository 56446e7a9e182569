"""What could not be done now: tried again after a while, and told of once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)


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
