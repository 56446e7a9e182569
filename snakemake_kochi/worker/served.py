"""The queues that a worker serves."""

from __future__ import annotations

import contextlib

from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.controllers import list_controllers
from snakemake_kochi.queue.observation import Observer
from snakemake_kochi.queue.queue import Queue
from snakemake_kochi.queue.ticket import Ticket
from snakemake_kochi.queue.workers import read_queues, subscribe, unsubscribe
from snakemake_kochi.worker.state import StateFile
from snakemake_kochi.worker.troubles import Troubles

_LIST = "the list of queues"  # no queue has such a name


class Served:
    """Subscribes a worker to its queues, in their order; who started it may change them."""

    def __init__(self, machine: MachinePaths, state: StateFile, troubles: Troubles) -> None:
        self._machine = machine
        self._state = state
        self._troubles = troubles
        self._observer = Observer(worker=state.state.worker)
        self._queues: dict[str, Queue] = {}

    @property
    def queues(self) -> list[Queue]:
        return list(self._queues.values())

    def queue_of(self, ticket: Ticket) -> Queue:
        # It need not be among those served by now.
        return self._queues.get(ticket.queue) or Queue(self._machine, ticket.queue)

    def read(self) -> None:
        """Read which queues to serve. They stay as they are where that does not work."""
        self._troubles.tried(_LIST, self._read)

    def _read(self) -> None:
        worker, controller = self._state.state.worker, self._state.state.controller
        names = read_queues(self._machine, worker)
        wanted = {
            name: self._queues.get(name) or Queue(self._machine, name, controller, self._observer)
            for name in names
        }
        if list(wanted) == list(self._queues):
            return
        for queue in wanted.values():
            subscribe(self._machine, worker, queue.paths)
        for name in set(self._queues) - set(wanted):
            unsubscribe(self._queues[name].paths, worker)
        self._queues = wanted
        self._state.update(queues=tuple(wanted))

    def are_used(self) -> bool:
        """Whether a run may be going on, for all that is known, which has handed jobs to one of
        them: more may come when those have ended. Costs a small file for each run of the machine.
        """
        with contextlib.suppress(OSError):
            return any(
                not each.is_dead
                and (each.queues is None or not self._queues.keys().isdisjoint(each.queues))
                for each in list_controllers(self._machine)
            )
        return True

    def is_in_trouble(self) -> bool:
        return any(map(self._troubles.is_in, self._queues))

    def leave(self) -> None:
        """Serve none any more."""
        for queue in self.queues:
            with contextlib.suppress(OSError):
                unsubscribe(queue.paths, self._state.state.worker)
