"""Our executor against cluster-generic, which starts a Snakemake for each job."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

from bench.measure import Row, Size, alternate
from bench.snakemake_runs import PROFILE, SHELL, Runner, kochi_executor

# As fast as no scheduler answers: it runs the script in the background, at once.
_SUBMIT = """\
#!/bin/sh
"$1" </dev/null >/dev/null 2>&1 &
echo $!
"""


def measure(place: Path, size: Size) -> list[Row]:
    """As many jobs at a time: that many are submitted, and asked for every second, which is the
    least, and without a limit to the rate."""
    count = size.number(50, 2)
    submit = place / "submit"
    submit.write_text(_SUBMIT)
    submit.chmod(0o755)
    generic = (
        *("--profile", str(PROFILE), "--executor", "cluster-generic", "--jobs", str(size.slots)),
        *("--cluster-generic-submit-cmd", shlex.quote(str(submit))),
        *("--seconds-between-status-checks", "1", "--max-status-checks-per-second", "1000"),
    )
    runner = Runner(place)
    values, ratios = alternate(
        size.runs(3),
        partial(runner.time, SHELL, count, generic),
        partial(runner.time, SHELL, count, kochi_executor(size.slots)),
    )
    what = f"{count:,} one-line jobs, {size.slots} at a time"
    return [
        Row(f"{what}: cluster-generic", values[0], "s"),
        Row(f"{what}: kochi", values[1], "s", ratios[1]),
    ]
