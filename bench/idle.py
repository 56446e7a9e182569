"""What does an idle worker cost?"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from bench.measure import Row, Size, workers

# System calls that may send a request to a file server.
_METADATA = "trace=%file,flock,getdents64"


def measure(directory: Path, size: Size) -> list[Row]:
    settle, cpu_seconds, trace_seconds, counts = (
        (0.5, 1.0, 1.0, (1, 2)) if size.quick else (8.0, 20.0, 10.0, (1, 8))
    )
    rows = []
    for count in counts:
        own = directory / str(count)
        own.mkdir(mode=0o700)
        with workers(own, count) as started:
            # Until the imports are over, and the intervals between looks have grown.
            time.sleep(settle)
            processes = [process for each in started for process in _tree(each.pid)]
            before = _cpu_seconds(processes)
            time.sleep(cpu_seconds)
            used = _cpu_seconds(processes) - before
            calls = _count_calls([process.pid for process in processes], trace_seconds)
        which = f"{count} idle worker{'s' if count > 1 else ''}"
        rows.append(Row(f"{which}: a core, per worker", [100 * used / cpu_seconds / count], "%"))
        rate = calls / trace_seconds / count
        rows.append(Row(f"{which}: metadata calls per worker", [rate], "1/s"))
    return rows


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


def _count_calls(pids: Sequence[int], seconds: float) -> int:
    """Count by strace. It slows the processes down, so do not measure CPU seconds meanwhile."""
    attach = [option for pid in pids for option in ("-p", str(pid))]
    tracer = subprocess.Popen(
        ["strace", "-f", "-c", "-U", "calls,name", "-e", _METADATA, *attach],
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(seconds)
    tracer.terminate()
    _, text = tracer.communicate()
    totals = [line.split() for line in text.splitlines() if line.strip().endswith("total")]
    return int(totals[-1][0]) if totals else 0
