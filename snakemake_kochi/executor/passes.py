"""How often Snakemake's scheduler looks for something to do."""

from __future__ import annotations

import threading
from typing import Any

# The scheduler's; it has moved.
_MODULES = ("snakemake.scheduling.job_scheduler", "snakemake.scheduler")


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

    def end_timers(self) -> None:
        """Call when the scheduler is at its end. It sets a timer with each pass, as long as the
        period of --max-jobs-per-timespan, and Python would wait for the last of them."""
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                module = getattr(getattr(thread, "function", None), "__module__", None)
                if module in _MODULES:
                    thread.cancel()
