"""How often Snakemake's scheduler looks for something to do."""

from __future__ import annotations

import threading
from typing import Any


class SchedulerPasses:
    """Lets the scheduler deal in one pass with all that was reported since its last one.

    Each report wakes it once, and for each of these it looks at all jobs that are ready: with
    thousands of them, and many short ones that end, it would do nothing else. Without the private
    part of Snakemake that this needs it does.
    """

    def __init__(self, workflow: Any) -> None:
        self._workflow = workflow
        settings = getattr(workflow, "remote_execution_settings", None)
        # With it the scheduler is not woken by reports of ends.
        self._is_woken = not getattr(settings, "immediate_submit", True)

    def drop_wakes(self) -> None:
        """Call before a report. Who was to be woken is woken by that, and a pass then looks at
        everything: what was reported, stopped or has become possible before."""
        wakes = getattr(getattr(self._workflow, "scheduler", None), "_open_jobs", None)
        if self._is_woken and isinstance(wakes, threading.Semaphore):
            while wakes.acquire(blocking=False):
                pass
