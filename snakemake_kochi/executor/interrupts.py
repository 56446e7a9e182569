"""Ctrl-C while a run is being ended already."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any


class FurtherInterrupts:
    """While entered, an interrupt raises nothing and is only noted.

    As an exception in the middle of the end it would leave the rest of the jobs running.
    """

    def __init__(self) -> None:
        self._noted = threading.Event()
        self._previous: Any = None

    @property
    def is_noted(self) -> bool:
        return self._noted.is_set()

    def __enter__(self) -> FurtherInterrupts:
        # Handlers can be set in the main thread only, and only there an interrupt is raised.
        with contextlib.suppress(ValueError):
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted.set()
