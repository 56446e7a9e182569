"""Looking after the queues of a run: tickets of dead workers, and whether anybody serves them."""

from __future__ import annotations

from collections.abc import Collection

from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface

from snakemake_kochi.errors import KochiError
from snakemake_kochi.executor.unserved import Unserved
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue import Observer, Ticket, recover


class QueueWatch:
    """A queue that cannot be looked into, for a full disk or a file server that is away, does not
    end the run: its jobs may be running. It is told, and once until it can be looked into again."""

    def __init__(
        self, machine: MachinePaths, controller: str, logger: LoggerExecutorInterface
    ) -> None:
        self._machine = machine
        self._logger = logger
        self._observer = Observer()  # of workers on other nodes
        self._unserved = Unserved(machine, controller, logger)
        self._troubled: set[str] = set()

    def look(self, queue: str, tickets: Collection[Ticket], has_own_workers: bool) -> None:
        """`tickets` are those of the queue that have not ended."""
        try:
            recover(self._machine, queue, self._observer)
            self._unserved.look(queue, tickets, has_own_workers)
        except (OSError, KochiError) as error:
            self._tell(queue, error)
        else:
            self._troubled.discard(queue)

    def recover(self, queue: str) -> None:
        """Put back what a worker left that had to be killed."""
        try:
            recover(self._machine, queue, self._observer)
        except (OSError, KochiError) as error:
            self._tell(queue, error)

    def _tell(self, queue: str, error: Exception) -> None:
        if queue not in self._troubled:
            self._troubled.add(queue)
            self._logger.warning(f"Queue {queue} cannot be looked after at the moment: {error}")
