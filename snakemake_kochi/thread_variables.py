"""The variables from which libraries learn how many threads they may use.

Snakemake's shell() sets them to a rule's `threads` for each command. A spawner of shell jobs
imports this module, and has to stay small.
"""

from __future__ import annotations

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
