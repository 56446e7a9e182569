"""How the process of a job waits for its release."""

from __future__ import annotations

import os

from snakemake_kochi.next.worker.job_process import CANNOT_EXECUTE


def await_release(held: int, worker: int) -> None:
    """Return when the worker releases the calling process, its child; otherwise end it."""
    # The worker may have died before prctl was called, or later: in both cases it gives no release.
    if os.getppid() != worker or os.read(held, 1) != b"!":
        os._exit(CANNOT_EXECUTE)
