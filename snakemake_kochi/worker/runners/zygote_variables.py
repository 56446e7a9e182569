"""Environment variables that a workflow sets or asks for while it is parsed, and its jobs' own."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any


class Variables:
    """Between `begin` and `end` a workflow is parsed. It sees what all jobs have in common; in a
    process of the job's own it would see the job's own variables, too."""

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._asked: set[str] = set()
        self._kept: frozenset[str] = frozenset()
        self._class: Any = type(os.environ)
        self._look_up = self._class.__getitem__

    def begin(self) -> None:
        # All ways to ask for one come to that: get, `in`, setdefault, os.getenv.
        def noting(environment: Any, name: Any) -> Any:
            self._asked.add(os.fsdecode(name))
            return self._look_up(environment, name)

        self._class.__getitem__ = noting

    def end(self) -> None:
        self._class.__getitem__ = self._look_up
        after = dict(os.environ)
        names = {*self._before, *after}
        self._kept = frozenset(n for n in names if self._before.get(n) != after.get(n))

    def asked_of(self, changed: Collection[str]) -> str | None:
        """One of those that a job has changed, and for which the workflow asked; or None."""
        return min(self._asked.intersection(changed), default=None)

    def adopt(self, values: Mapping[str, str], removed: Collection[str]) -> None:
        """Set and remove a job's own variables. What the workflow has set stays: in a process of
        the job's own the parse would come after them."""
        os.environ.update({name: values[name] for name in values if name not in self._kept})
        for name in removed:
            if name not in self._kept:
                os.environ.pop(name, None)
