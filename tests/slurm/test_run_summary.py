"""The summary of a run in allocations of a real Slurm, and its trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from slurm_cluster import SlurmCluster
from support import REPOSITORY, git, write

SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(6))

    rule job:
        output: "out/{i}"
        resources: mem_mb=10, runtime=5
        shell: "sleep 0.5; touch {output}"
"""


def test_core_hours_are_reported_and_the_trace_has_the_allocations(
    tmp_path: Path, cluster: SlurmCluster, snakemake: Any, kochi: Any
) -> None:
    git(tmp_path, "init", "--quiet")
    allocation = "{max_workers: 2, time: 10}"
    write(
        tmp_path / "kochi.yaml",
        f"machines: {{own: {{scheduler: slurm, allocation: {allocation}}}}}\n",
    )
    write(tmp_path / "Snakefile", SNAKEFILE)
    environment = {**cluster.environment, "KOCHI_DEFAULT_MACHINE": "own"}
    profile = str(REPOSITORY / "profiles" / "cluster")
    done = snakemake("--profile", profile, cwd=tmp_path, env=environment)
    assert done.returncode == 0
    told = re.search(
        r"(\d) allocations?, (\S+) core-hours: "
        r"(\d+) % useful, (\d+) % idle, (\d+) % start-up, (\d+) % lost\n",
        done.stdout,
    )
    assert told is not None
    count, hours, useful, idle, startup, lost = map(float, told.groups())
    assert 0 < hours < 1
    assert 98 <= useful + idle + startup + lost <= 102
    assert useful > 0
    assert startup >= 0  # in percent, of a start that Slurm tells to the second
    assert lost == 0
    assert re.search(r"^    job: 6 jobs; .* of 1 core; .* MiB; .* of 5:00$", done.stdout, re.M)

    printed = kochi("trace", "-m", "own", "-o", "t.json", cwd=tmp_path, env=environment)
    assert printed.returncode == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    tracks = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert len([track for track in tracks if track.startswith("allocation ")]) == count
    names = [event["name"] for event in events if event["ph"] == "X"]
    assert names.count("waits") == count
    assert names.count("allocation") >= 1
    assert names.count("job") == 6
    workers = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert any(re.fullmatch(r"worker \d+ \(\S+, allocation \S+\)", name) for name in workers)
