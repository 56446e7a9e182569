"""`python -m snakemake_kochi.cli.hanging_up WORDS`: Snakemake that ends as by Ctrl-C when its
terminal is closed, or its connection lost.

By itself it would leave its lock, which keeps the next Snakemake from this directory.
"""

from __future__ import annotations

import signal

from snakemake_kochi.cli.turns import run_snakemake

if __name__ == "__main__":
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # not below nohup
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    run_snakemake()
