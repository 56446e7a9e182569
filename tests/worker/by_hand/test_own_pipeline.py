"""A success has whole outputs: what the job's own pipeline still writes is waited for."""

from __future__ import annotations

import pytest

from snakemake_kochi.own_pipeline import PATIENCE_VARIABLE
from snakemake_kochi.processes import ProcessIdentity

# It has read all when the job's own process has ended, and writes when the file `go` is there.
LATE = "bash -c 'x=$(cat); until [ -e go ]; do sleep 0.02; done; echo \"$x\"'"


def is_running(pid: str) -> bool:
    process = ProcessIdentity.of(int(pid))
    return process is not None and process.is_alive()


def test_a_daemon_that_a_job_leaves_neither_delays_nor_fails_it(site):
    """Not one with pipes of its own, nor with a helper that reads from it."""
    daemon = """
import os, subprocess, time
ends = os.pipe()
helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
open("pids", "w").write(f"{os.getpid()} {helper.pid}\\n")
time.sleep(600)
"""
    (site.directory / "daemon.py").write_text(daemon)
    script = (
        "setsid python3 daemon.py < /dev/null &> /dev/null & until [ -s pids ]; do sleep 0.02; done"
    )
    site.submit(script, outputs=("out",))
    site.start(stay=True)
    assert site.ended(0).result.ok
    assert site.log(0) == ""
    assert not any(map(is_running, (site.directory / "pids").read_text().split()))


def test_a_pipeline_that_never_ends_fails_its_job_with_its_names(site):
    site.submit("echo x | tee >(sleep 600 > out) > /dev/null", outputs=("out",), runtime_seconds=1)
    site.start(stay=True)
    result = site.ended(0).result
    assert (result.reason, result.ok) == ("timeout", False)
    assert result.detail.startswith("sleep (") and "still wrote" in result.detail


def test_a_setting_says_how_long_a_job_without_a_limit_is_waited_for(
    site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(PATIENCE_VARIABLE, "1")
    site.submit("echo x | tee >(sleep 600 > out) > /dev/null", outputs=("out",))
    site.start(stay=True)
    assert site.ended(0).result.reason == "timeout"


def test_what_holds_only_the_log_is_ended_with_a_remark(site):
    """And what reads from it then writes all it has."""
    site.submit(
        "sleep 600 &",
        "exec &> >(tee log | cat > out); sleep 601 & echo whole",
        "sleep 602 &> /dev/null 3> declared.log &",
        outputs=("out",),
        logs=("declared.log",),
    )
    site.start(cores=3, stay=True)
    assert all(site.ended(job).result.ok for job in range(3))
    assert site.log(0).startswith("kochi: ending sleep (")
    assert site.log(2).startswith("kochi: ending sleep (")
    assert (site.directory / "out").read_text() == "whole\n"
