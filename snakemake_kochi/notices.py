"""Notices: messages that a person gets once, and not with each look or each new try."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from snakemake_kochi.errors import KochiError

_REPEAT_FAULTS = 60.0  # seconds


class Log(Protocol):
    """A logger of Python's, or the one that Snakemake gives to an executor."""

    @property
    def info(self) -> Callable[[str], Any]: ...

    @property
    def warning(self) -> Callable[[str], Any]: ...


class Told:
    """Remembers what was told, by keys.

    It is not thread-safe, but the worst effect is that two threads tell the same.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[Hashable, tuple[Hashable, float]] = {}  # variant, end of quiet

    def is_new(self, key: Hashable, variant: Hashable = None, quiet: float = math.inf) -> bool:
        """Whether to tell this; it then counts as told for `quiet` seconds.

        A new variant is new at once.
        """
        now = self._clock()
        last, until = self._told.get(key, (None, now))
        if now < until and variant == last:
            return False
        self._told[key] = variant, now + quiet
        return True

    def forget(self, key: Hashable) -> bool:
        """Forget that it was told, so that it is told again; return whether it was told."""
        return self._told.pop(key, None) is not None


class Notices(Told):
    """Writes each notice to a log once.

    A transient fault is repeated after `repeat_faults` seconds, and when its reason changes, until
    it is over.
    """

    def __init__(
        self,
        log: Log,
        repeat_faults: float = _REPEAT_FAULTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._log = log
        self._repeat_faults = repeat_faults

    def info(self, text: str, key: Hashable = None) -> None:
        """Log a text unless this `key`, by default the text, was told before."""
        if self.is_new(text if key is None else key):
            self._log.info(text)

    def warning(self, text: str, key: Hashable = None) -> None:
        if self.is_new(text if key is None else key):
            self._log.warning(text)

    def fault(self, what: str, error: OSError | KochiError) -> None:
        """Log an operation that does not work at the moment, and is tried again."""
        reason = error.sentences if isinstance(error, KochiError) else str(error)
        # The text may name a temporary file, whose name is different each time.
        kind = error.errno if isinstance(error, OSError) else reason
        if self.is_new(what, kind, self._repeat_faults):
            self._log.warning(f"{what}: {reason}")

    def over(self, what: str) -> None:
        """Log that the fault is over."""
        if self.forget(what):
            self._log.info(f"no longer: {what}")
