"""Random numbers in copies of a process: each copy has its own, as processes of their own would."""

from __future__ import annotations

import gc
import random
import sys
import tempfile
from typing import Any


class Randomness:
    """Between `begin` and `end` a workflow is parsed, which may seed."""

    def __init__(self) -> None:
        self._is_seeded = False
        self._state: Any = None
        self._seed = random.seed
        self._known: list[Any] = []

    def begin(self) -> None:
        with tempfile.NamedTemporaryFile():  # which makes tempfile's own generator
            self._known = _generators()
        random.seed = self._noting_seed

    def end(self) -> None:
        random.seed = self._seed
        self._state = random.getstate() if self._is_seeded else None

    @property
    def has_others(self) -> bool:
        """Whether the workflow has made generators of its own. Whether they were seeded cannot be
        told, and if not, each job is to have another."""
        known = {id(generator) for generator in self._known}
        return any(id(generator) not in known for generator in _generators())

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


def _generators() -> list[Any]:
    """All that there are but NumPy's global one, which is seen to."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (random.Random,)
    own = None
    if numpy is not None:
        kinds = (random.Random, numpy.BitGenerator)
        own = numpy.mtrand._rand._bit_generator
    # By their types: objects that stand for others import or compute those when they are asked.
    found = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    return [one for one in found if one is not own and not isinstance(one, random.SystemRandom)]


def _is_seeded(numpy_random: Any) -> bool:
    """Whether somebody called NumPy's `seed`: the generator then has no other origin."""
    try:
        return numpy_random.get_bit_generator().seed_seq is None
    except AttributeError:  # before NumPy 1.25
        return False
