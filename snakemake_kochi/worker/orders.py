"""What others ask of a worker by files: that it goes when its run is over, that it cancels a job,
that it leaves.

What is not known now, because the filesystem answers with an error, is asked with the next look: an
answer that was only guessed would end all jobs of the worker, or leave it behind for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from snakemake_kochi.errors import DamagedFileError
from snakemake_kochi.files import is_there
from snakemake_kochi.paths import MachinePaths
from snakemake_kochi.queue.controller_file import is_certainly_gone
from snakemake_kochi.queue.postponed import Complaints
from snakemake_kochi.queue.workers import Release, WorkerState, read_release


class Orders:
    """The orders for one worker; nothing here raises OSError."""

    def __init__(self, machine: MachinePaths, state: WorkerState) -> None:
        self._machine = machine
        self._worker = state.worker
        self._complaints = Complaints()
        self._controller = self._directory_of_controller(state)

    def _directory_of_controller(self, state: WorkerState) -> Path | None:
        """That of its controller, if that is there now. An allocation may begin when the run that
        asked for it is over: there the directory has to be there."""
        if state.controller is None:
            return None
        directory = self._machine.controller(state.controller).directory
        try:
            return directory if state.allocation is not None or is_there(directory) else None
        except OSError:
            return directory

    def is_run_over(self) -> bool:
        """Whether the run that started the worker is certainly over: nobody may be there to end a
        worker on another node."""
        if self._controller is None:
            return False
        what = "whether the run that started this worker is over is not known now"
        try:
            is_over = is_certainly_gone(self._controller)
        except OSError as error:
            self._complaints.about(what, error)
            return False
        self._complaints.over(what)
        return is_over

    def release(self) -> Release | None:
        """How a person wants the worker to leave; None where that is not wanted, or not known."""
        what = "whether the worker is to leave is not known now"
        try:
            how = read_release(self._machine, self._worker)
        except (OSError, DamagedFileError) as error:
            self._complaints.about(what, error)
            return None
        self._complaints.over(what)
        return how

    def cancelled(self, jobs: Iterable[int]) -> set[int]:
        """Those of the jobs of which it is known that they are to be cancelled."""
        what = "whether jobs are to be cancelled is not known now"
        found = set()
        try:
            for job in jobs:
                if is_there(self._machine.job(job).cancel):
                    found.add(job)
        except OSError as error:
            # Nor of the others: each of these questions may take seconds.
            self._complaints.about(what, error)
            return found
        self._complaints.over(what)
        return found
