"""A conversation of two nodes through files, each written once under a name both know."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from snakemake_kochi.errors import KochiError
from snakemake_kochi.files import read_json, to_json, write_exclusively
from snakemake_kochi.paths import TrialPaths

_VERSION = 1
# Seconds. NFS may know of a new file only after a minute, with the default of acdirmax.
PATIENCE = 90.0
_LONGEST_PAUSE = 0.05  # seconds
TROUBLE = "trouble"


class SilenceError(KochiError):
    """The other side did not say what it should have, or the conversation is over."""


def tell(trial: TrialPaths, name: str, **content: Any) -> None:
    write_exclusively(trial.message(name), to_json({"version": _VERSION, **content}))


def hear(
    trial: TrialPaths,
    name: str,
    patience: float = PATIENCE,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Wait for a message; `meanwhile` may raise.

    Raises SilenceError, and KochiError with what the other side was troubled by.
    """
    deadline, pause = time.monotonic() + patience, 0.001
    while True:
        # Listed, as the queue does it: NFS remembers for longer that a single name was not there.
        try:
            names = os.listdir(trial.directory)
        except FileNotFoundError:
            raise SilenceError(
                f"{trial.directory} is not there (any more)",
                "Is KOCHI_ROOT the same directory on both nodes?",
            ) from None
        if trial.message(TROUBLE).name in names and name != TROUBLE:
            trouble = read_json(trial.message(TROUBLE), _VERSION)
            raise KochiError(str(trouble["message"]), trouble["hint"])
        if trial.message(name).name in names:
            return read_json(trial.message(name), _VERSION)
        if time.monotonic() > deadline:
            raise SilenceError(f"no answer from the other node within {patience:g} seconds")
        meanwhile()
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
