"""Python's search for garbage, while Snakemake makes its DAG.

A DAG of thousands of points is made of millions of objects, and none of them is garbage. While
their number grows, Python searches all that there are again and again, which takes a quarter of a
dry run.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any


class Survivors:
    """Has what survived one search of everything left out of the next ones, until jobs can run.

    What comes later is searched as ever: a controller may run for days.
    """

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow

    def begin(self) -> None:
        # A process may parse one workflow after the other.
        gc.callbacks[:] = [each for each in gc.callbacks if not isinstance(each, Survivors)]
        gc.callbacks.append(self)

    def __call__(self, phase: str, found: Mapping[str, int]) -> None:
        """As Python calls it, at the start and the stop of a search."""
        if phase != "stop" or found["generation"] < 2:
            return
        # Of a Snakemake without this attribute it is not known when jobs run.
        if getattr(self._workflow, "scheduler", self) is not None:
            gc.callbacks.remove(self)
        else:
            gc.freeze()
