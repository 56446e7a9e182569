"""Random numbers in copies of a process: each copy has its own, as processes of their own would."""

from __future__ import annotations

import random
import sys
from typing import Any


class Randomness:
    """Between `begin` and `end` a workflow is parsed, which may seed."""

    def __init__(self) -> None:
        self._is_seeded = False
        self._state: Any = None
        self._seed = random.seed

    def begin(self) -> None:
        random.seed = self._noting_seed

    def end(self) -> None:
        random.seed = self._seed
        self._state = random.getstate() if self._is_seeded else None

    def _noting_seed(self, *arguments: Any, **options: Any) -> None:
        self._seed(*arguments, **options)
        self._is_seeded = True

    def renew(self) -> None:
        """To be called in a copy."""
        # Python seeds anew after a fork; a workflow that seeds wants what it gets by that.
        if self._state is not None:
            random.setstate(self._state)
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and not _is_seeded(numpy):
            numpy.seed()  # NumPy does not


def _is_seeded(numpy_random: Any) -> bool:
    """Whether somebody called NumPy's `seed`: the generator then has no other origin."""
    try:
        return numpy_random.get_bit_generator().seed_seq is None
    except AttributeError:  # before NumPy 1.25
        return False
