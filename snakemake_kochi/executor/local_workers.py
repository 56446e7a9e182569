"""Workers on this computer that live as long as the run that started them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from snakemake_kochi.errors import WorkerError
from snakemake_kochi.paths import MachinePaths, Root
from snakemake_kochi.queue import allocate_ids, assign_queues

_RESTARTS = 3
_GRACE_SECONDS = 10


class LocalWorkers:
    """A number of local workers that serve a growing list of queues together.

    One worker hands out all the cores: several would each believe the node to be theirs, and a
    benchmark that asked to run alone would have a neighbour.
    """

    def __init__(self, root: Root, machine: MachinePaths, count: int, cores: int | None) -> None:
        self._root = root
        self._machine = machine
        self._count = count
        self._cores = cores
        self._queues: list[str] = []
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._restarts = 0

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._running)

    def serve(self, queues: Sequence[str]) -> None:
        """See to it that the workers serve these queues, too; start them at the first call."""
        new = [queue for queue in queues if queue not in self._queues]
        if not new or not self._count:
            return
        self._queues += new
        for number in self._running:
            assign_queues(self._machine, number, self._queues)
        while len(self._running) < self._count:
            self._start()

    def _start(self) -> None:
        (number,) = allocate_ids(self._machine, "worker", 1)
        # Said here and not in its command line: more queues may be added before it has started.
        assign_queues(self._machine, number, self._queues)
        # -P: a queue.py in the user's directory must not be imported in place of the library.
        command = [sys.executable, "-P", "-m", "snakemake_kochi.worker"]
        command += ["--root", str(self._root.directory), "--machine", self._machine.name]
        command += ["--worker", str(number), "--stay", "--parent", str(os.getpid())]
        if self._cores is not None:
            command += ["--cores", str(self._cores)]
        # A session of its own: Ctrl-C is for Snakemake, which then ends the workers in order.
        self._running[number] = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def revive(self) -> list[int]:
        """Replace workers that ended, and return their numbers.

        Raises WorkerError when that happens again and again: then something else is wrong.
        """
        ended = [number for number, process in self._running.items() if process.poll() is not None]
        for number in ended:
            status = self._running.pop(number).returncode
            self._restarts += 1
            if self._restarts > _RESTARTS:
                raise WorkerError(
                    f"local workers keep ending, the last one, worker {number}, with status "
                    f"{status}; its log is {self._machine.worker(number).log}",
                    "Read that log.",
                )
            self._start()
        return ended

    def stop(self) -> None:
        """Drain the workers, then end those that do not leave."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
