"""Zygotes that are killed during a run of Snakemake."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import psutil

JOBS = 20
SNAKEFILE = f"""
    rule all:
        input: expand("done/{{i}}", i=range({JOBS}))
    rule once:
        output: "done/{{i}}"
        run:
            import os, time
            # The job appends and is long enough to show a second execution.
            with open(f"log{{wildcards.i}}", "a", buffering=1) as log:
                print("begin", file=log)
                time.sleep(0.1)
                print("end", file=log)
            open(output[0], "w").close()
"""


def zygotes() -> list[psutil.Process]:
    """The zygotes of this test, by the logs: a copy looks like a zygote until it has a job."""
    found = []
    for pid in re.findall(r"zygote (\d+) reads the workflow", workers_logs()):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(pid))
            if process.environ().get("KOCHI_ROOT") == os.environ["KOCHI_ROOT"]:
                found.append(process)
    return found


def workers_logs() -> str:
    root = Path(os.environ["KOCHI_ROOT"])
    return "".join(path.read_text() for path in root.glob("machines/local/workers/*/*log*"))


def test_zygotes_die_at_any_moment_and_each_job_is_executed_once(tmp_path: Path) -> None:
    (tmp_path / "Snakefile").write_text(textwrap.dedent(SNAKEFILE))
    arguments = ["--executor", "kochi", "--jobs", "4", "--kochi-workers", "1"]
    chance = random.Random(7)
    kills = ready = 0
    with subprocess.Popen(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        while run.poll() is None:
            if (now_ready := workers_logs().count("is ready")) == ready:
                time.sleep(0.02)
                continue
            ready = now_ready
            # Mostly while it makes copies, sometimes long after, or while it starts.
            time.sleep(chance.uniform(0.0, 0.8))
            for zygote in zygotes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if chance.random() < 0.4:
                        zygote.send_signal(signal.SIGSTOP)
                        time.sleep(chance.uniform(0.0, 0.3))
                    zygote.kill()
                    kills += 1
        assert run.stdout is not None
        said = run.stdout.read()
    assert run.returncode == 0, said
    assert kills
    assert [(tmp_path / f"log{i}").read_text() for i in range(JOBS)] == ["begin\nend\n"] * JOBS
    root = Path(os.environ["KOCHI_ROOT"])
    paths = root.glob("machines/local/jobs/*/*/result.json")
    results = [json.loads(path.read_text()) for path in paths]
    assert Counter(result["attempt"] for result in results) == {1: JOBS}
    assert Counter(result["reason"] for result in results) == {"success": JOBS}
    assert "zygote" in {result["runner"] for result in results}
