"""A long-lived process on one node that claims tickets and runs them."""

from typing import TYPE_CHECKING

from snakemake_kochi.lazy import lazy_names

if TYPE_CHECKING:
    from snakemake_kochi.worker.start import run_worker

# Not at once: the spawner of a worker has to stay small.
__getattr__ = lazy_names(__name__, {"start": ("run_worker",)})

__all__ = ["run_worker"]
