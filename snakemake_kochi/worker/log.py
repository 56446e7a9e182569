"""The log of a worker."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from snakemake_kochi.paths import MachinePaths


class _LogFile(logging.FileHandler):
    """On a full disk says once, on stderr, that it cannot be written, instead of a traceback for
    each message; what is kept in memory until then is written when there is room again."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._is_failing = False

    def flush(self) -> None:
        super().flush()
        self._is_failing = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._is_failing:
            self._is_failing = True
            with contextlib.suppress(OSError, ValueError):
                print(f"kochi worker: its log cannot be written now: {error}", file=sys.stderr)

    def close(self) -> None:
        # What is lost with it is not worth a worker's exit status.
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def log_to_file(machine: MachinePaths, worker: int) -> Iterator[None]:
    """Messages of the worker and of the queues it serves go to its log, warnings to stderr too.
    Raises OSError when there can be no such file."""
    logger = logging.getLogger("snakemake_kochi")
    level = logger.level
    to_file = _LogFile(machine.worker(worker).log)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    to_terminal = logging.StreamHandler()
    to_terminal.setLevel(logging.WARNING)
    to_terminal.setFormatter(logging.Formatter("kochi worker: %(message)s"))
    logger.setLevel(logging.INFO)
    for handler in (to_file, to_terminal):
        logger.addHandler(handler)
    try:
        yield
    finally:
        for handler in (to_file, to_terminal):
            logger.removeHandler(handler)
            with contextlib.suppress(OSError):
                handler.close()
        logger.setLevel(level)
