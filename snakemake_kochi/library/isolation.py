"""Whether the scripts of a batch can be isolated here, asked before any of them runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from snakemake_kochi.errors import KochiError
from snakemake_kochi.phases.freeze import Freeze

if TYPE_CHECKING:
    from snakemake_kochi.library.batch import BatchRules


class IsolationCheck:
    """Asks, once for each batch and before anything runs, whether its scripts can be isolated.

    That is known only where they run on this computer.
    """

    def __init__(self, freeze: Freeze) -> None:
        machine = freeze.machine
        self._machine = machine.isolation
        self._is_here = not machine.has_allocations and machine.login_host is None
        self._problems: dict[str, KochiError | None] = {}

    def require(self, batch: BatchRules, is_finished: Callable[[], bool]) -> None:
        """Raise KochiError if a run of a batch, which is not finished, cannot be isolated."""
        phases = (batch.grid.build, batch.grid.run)
        if not self._is_here or not any(phase.isolation for phase in phases):
            return
        if batch.name not in self._problems:
            self._problems[batch.name] = self._problem(batch)
        if (problem := self._problems[batch.name]) is not None and not is_finished():
            raise problem

    def _problem(self, batch: BatchRules) -> KochiError | None:
        # Imported here: few batches are isolated.
        from snakemake_kochi.phases.isolation import check

        lines, grid = batch.experiment.source_map, batch.grid
        for key, phase in (("build", grid.build), ("run", grid.run)):

            def at(name: str, key: str = key) -> str:
                keys = (key, *name.split("."))
                return lines.position(lines.first(("batches", grid.batch, *keys), keys))

            try:
                if phase.isolation is not None:
                    check(phase.isolation, self._machine, at)
            except KochiError as error:
                return error
        return None
