"""Which CPUs and GPUs each job of a worker gets, so that none is given to two."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.queue.ticket import Resources
from snakemake_kochi.worker.cpus import (
    CpuLeases,
    Layout,
    LeasesUnsupportedError,
    choose_cpus,
    format_cpus,
)
from snakemake_kochi.worker.gpus import Gpus

_log = logging.getLogger(__name__)

_NOT_PINNED = "jobs are not pinned to CPUs now"
_STILL_HELD = "CPUs cannot be given back to other workers of this node now"


@dataclass(frozen=True)
class Allotment:
    """What one job gets: `pinned` are the CPUs it is confined to (None: those of the worker),
    `gpus` the names of its devices, `environment` what tells it of both."""

    pinned: frozenset[int] | None = None
    gpus: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Devices:
    """The devices of one worker, and who has them."""

    def __init__(self, cores: int, layout: Layout, gpus: Gpus, leases: CpuLeases | None) -> None:
        """`cores`: how many the worker hands out; `layout`: the CPUs it may run on. Without
        `leases` no job is pinned."""
        self._layout = layout
        self._cpus = frozenset(cpu for socket in layout for cpu in socket)
        self._gpus = gpus
        # More cores than CPUs: somebody wants them shared.
        self._leases = leases if cores <= len(self._cpus) else None
        self._free_cpus = set(self._cpus)
        self._free_gpus = list(gpus.names)
        self._held_still: set[int] = set()  # CPUs whose locks could not be given back yet
        self._complaints = Complaints()

    def allot(self, wanted: Resources) -> Allotment:
        """Never waits: a job for which too few CPUs are free is not pinned. The caller knows from
        `Capacity.fits` that enough GPUs are free."""
        pinned = None
        if wanted.pinned and not wanted.exclusive and wanted.cores < len(self._cpus):
            pinned = self._take_cpus(wanted.cores)
        count = len(self._gpus.names) if wanted.exclusive else wanted.gpus
        gpus = tuple(self._free_gpus[:count])
        del self._free_gpus[:count]
        return Allotment(pinned, gpus, self._environment(pinned, gpus))

    def _environment(self, pinned: frozenset[int] | None, gpus: tuple[str, ...]) -> dict[str, str]:
        names = ",".join(gpus)
        environment = {"KOCHI_CPUS": format_cpus(pinned or self._cpus), "KOCHI_GPUS": names}
        if self._gpus.names or self._gpus.is_given:
            # Also for a job that asked for none: it would else use those of its neighbours.
            environment.update(dict.fromkeys(self._gpus.variables, names))
        return environment

    def _take_cpus(self, count: int) -> frozenset[int] | None:
        free = set(self._free_cpus)
        while self._leases is not None:
            chosen = choose_cpus(self._layout, free, count)
            if chosen is None:
                return None
            try:
                held = self._leases.take(chosen)
            except LeasesUnsupportedError as error:
                _log.warning("jobs are not pinned to CPUs: no locks for them here (%s)", error)
                self._leases = None
                return None
            except OSError as error:
                self._complaints.about(_NOT_PINNED, error)
                return None
            self._complaints.over(_NOT_PINNED)
            if not held:
                self._free_cpus.difference_update(chosen)
                return frozenset(chosen)
            free.difference_update(held)
        return None

    def give_back(self, allotment: Allotment) -> None:
        """To be called when the last process of the job is gone."""
        if allotment.pinned is not None:
            self._free_cpus |= allotment.pinned
            self._held_still |= allotment.pinned
            self.give_back_leases()
        taken = {*self._free_gpus, *allotment.gpus}
        # In their order again: a job that asks for two gets neighbours if it can.
        self._free_gpus = [name for name in self._gpus.names if name in taken]

    def give_back_leases(self) -> None:
        """To be called now and then: what could not be given back is tried again. It matters to
        other workers only: this one may take what it holds."""
        if self._leases is None or not self._held_still:
            return
        try:
            self._leases.give_back(self._held_still & self._free_cpus)
        except OSError as error:
            self._complaints.about(_STILL_HELD, error)
        else:
            self._held_still.clear()
            self._complaints.over(_STILL_HELD)
