"""The environment variables that a process reads and sets before copies of it are made.

A copy has the variables of a job of its own, and is only then what a process of that job would be,
if none of the others was read. The spawner of phases copies this module, too: so it uses little of
the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any


class Variables:
    """Environment variables that a workflow sets or reads while it is parsed.

    The parse takes place between `begin` and `end`. The workflow sees the variables that all jobs
    have in common; in a process of the job's own it would also see the job's own variables.
    """

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._read: set[str] = set()
        self._kept: frozenset[str] = frozenset()
        self._class: Any = type(os.environ)
        self._look_up = self._class.__getitem__

    def begin(self) -> None:
        # All ways to read a variable call this method: get, `in`, setdefault, os.getenv.
        def noting(environment: Any, name: Any) -> Any:
            self._read.add(os.fsdecode(name))
            return self._look_up(environment, name)

        self._class.__getitem__ = noting

    def end(self) -> None:
        self._class.__getitem__ = self._look_up
        after = dict(os.environ)
        names = {*self._before, *after}
        self._kept = frozenset(n for n in names if self._before.get(n) != after.get(n))

    def read_of(self, changed: Collection[str]) -> str | None:
        """A variable that a job has changed and that the workflow has read; None without one."""
        return min(self._read.intersection(changed), default=None)

    def set_own(self, values: Mapping[str, str], removed: Collection[str]) -> None:
        """Set and remove a job's own variables.

        Variables that the workflow has set remain: in a process of the job's own the workflow would
        set them after the job's variables are set.
        """
        os.environ.update({name: values[name] for name in values if name not in self._kept})
        for name in removed:
            if name not in self._kept:
                os.environ.pop(name, None)
