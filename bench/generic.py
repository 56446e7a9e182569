"""The kochi executor compared with cluster-generic, which starts a Snakemake for each job."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import PROFILE, SHELL, Runner, kochi_executor

# Faster than any scheduler: it starts the job script in the background at once.
_SUBMIT = """\
#!/bin/sh
"$1" </dev/null >/dev/null 2>&1 &
echo $!
"""


def arguments(directory: Path, slots: int) -> tuple[str, ...]:
    """Arguments for cluster-generic, whose command to submit is written to the directory."""
    submit = directory / "submit"
    submit.write_text(_SUBMIT)
    submit.chmod(0o755)
    return (
        *("--profile", str(PROFILE), "--executor", "cluster-generic", "--jobs", str(slots)),
        *("--cluster-generic-submit-cmd", shlex.quote(str(submit))),
        *("--seconds-between-status-checks", "1", "--max-status-checks-per-second", "1000"),
    )


def measure(directory: Path, size: Size) -> list[Row]:
    """Both sides run the same number of jobs at a time. cluster-generic asks for their states every
    second, the shortest interval that it accepts, and without a limit to the rate."""
    count = size.number(50, 2)
    runner = Runner(directory)
    values, ratios = alternate(
        size.runs(3),
        partial(runner.time, SHELL, count, arguments(directory, size.slots)),
        partial(runner.time, SHELL, count, kochi_executor(size.slots)),
    )
    what = f"{count:,} one-line jobs, {size.slots} at a time"
    return [
        Row(f"{what}: cluster-generic", values[0], "s"),
        Row(f"{what}: kochi", values[1], "s", ratios[1]),
    ]
