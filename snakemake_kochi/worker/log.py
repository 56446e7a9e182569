"""The log of a worker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from snakemake_kochi.paths import MachinePaths


@contextlib.contextmanager
def log_to_file(machine: MachinePaths, worker: int) -> Iterator[None]:
    """Messages of the worker and of the queues it serves go to its log, warnings to stderr too."""
    logger = logging.getLogger("snakemake_kochi")
    level = logger.level
    to_file = logging.FileHandler(
        machine.worker(worker).log, encoding="utf-8", errors="backslashreplace"
    )
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
            handler.close()
        logger.setLevel(level)
