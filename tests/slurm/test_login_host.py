"""Runs in allocations of a real Slurm behind a login host, from a laptop that reaches only that."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from laptop import SNAKEFILE
from login_site import LoginSite, login_site
from slurm_cluster import APART, SlurmCluster
from support import REPOSITORY, run, wait_until, write

SLURM = APART
IN_ALLOCATION = {"controller": "{in_allocation: true, time: 30m}"}


@pytest.fixture
def site(tmp_path: Path, cluster: SlurmCluster) -> Iterator[LoginSite]:
    with login_site(tmp_path, cluster, spica={}) as site:
        yield site


def listed(site: LoginSite, what: str) -> list[dict[str, object]]:
    done = site.laptop.kochi("show", what, "-m", "spica", "--json")
    assert done.returncode == 0
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_points_run_in_allocations_and_count_as_done_at_home(site: LoginSite) -> None:
    # The laptop reaches Slurm through the login host only.
    (port,) = re.findall(r"^SlurmctldPort=(\d+)$", site.cluster.configuration.read_text(), re.M)
    assert not site.computer.reaches("127.0.0.1", int(port))
    command = ("sh", "-c", "command -v sinfo; ssh spica sinfo --noheader --format=%D")
    done = run(
        "/usr/bin/env",
        *site.computer.words,
        "/bin/sh",
        *command[1:],
        cwd=site.laptop.top,
        env=site.laptop.environment,
    )
    assert done.stdout.split() == ["2"]
    laptop = site.laptop
    assert laptop.kochi("artifact", "init", "../collected").returncode == 0
    assert laptop.kochi("batch", "-m", "spica", "--launch", "wait.yaml", "test").returncode == 0
    wait_until(lambda: site.begun == {"spica.1", "spica.2"})
    assert site.cluster.jobs()
    nodes = {each["node"] for each in listed(site, "workers") if each["jobs"]}
    assert nodes and nodes <= set(site.cluster.nodes)
    assert [each["state"] for each in listed(site, "jobs")].count("running") == 2
    (launched,) = listed(site, "runs")
    assert launched["state"] == "running"
    process = laptop.start("batch", "-m", "spica", "wait.yaml", "test")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("This batch runs already")
    site.go.touch()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "5 of 5 steps (100%) done" in out
    wait_until(lambda: not site.cluster.jobs(), "the allocations are given back")
    done = laptop.kochi("artifact", "sync", "-m", "spica")
    assert "2 of 2 results in results/" in done.stdout
    for n in (1, 2):
        log = (laptop.top / f"../collected/spica/wait/{n}.log").read_text()
        assert re.search(r"^on node[12], in job \d+$", log, re.M), log
    snakefile = REPOSITORY / "workflow" / "Snakefile"
    command = (sys.executable, "-m", "snakemake", "--snakefile", str(snakefile), "--cores", "1")
    again = run(
        *(*command, "-n", "wait_test"),
        cwd=laptop.top,
        env={**os.environ, "KOCHI_DEFAULT_MACHINE": "spica"},
    )
    assert "Nothing to be done" in again.stdout


def test_controllers_are_in_allocations_if_the_machine_says_so(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    with login_site(tmp_path, cluster, spica=IN_ALLOCATION) as site:
        line = ("batch", "-m", "spica", "wait.yaml", "test")
        first = site.laptop.start(*line)
        wait_until(lambda: site.begun == {"spica.1", "spica.2"} or first.poll() is not None)
        (launched,) = listed(site, "runs")
        assert launched["host"] in cluster.nodes
        name = f"--name={launched['job_name']}"
        limit = cluster.run("squeue", "--noheader", "--format=%l", name)
        assert limit == "30:00"
        first.terminate()
        first.communicate()
        second = site.laptop.start(*line)
        assert second.stdout is not None
        assert second.stdout.readline().startswith("This batch runs already")
        site.go.touch()
        out, err = second.communicate(timeout=180)
        assert second.returncode == 0, err
        assert "5 of 5 steps (100%) done" in out
        wait_until(lambda: not cluster.jobs(), "the allocations are given back")

        write(site.laptop.top / "Snakefile", SNAKEFILE)
        site.go.unlink()
        words = ("launch", "-m", "spica")
        assert site.laptop.kochi(*words, "--", "out").returncode == 0
        wait_until(lambda: "rule" in site.begun)
        assert site.laptop.kochi(*words, "--stop").returncode == 0
        wait_until(lambda: not cluster.jobs(), "the allocations are given back")
        for each in site.go.parent.glob("go.*"):
            each.unlink()
        assert site.laptop.kochi(*words, "--on-login-node", "--", "out").returncode == 0
        assert site.launches()[0].launch.job_name is None
        wait_until(lambda: site.begun == {"rule"})
        assert "State: running" in site.laptop.kochi(*words, "--status").stdout
        assert "has ended." in site.laptop.kochi(*words, "--stop").stdout
        wait_until(lambda: not cluster.jobs(), "the allocations are given back")
        assert {each["state"] for each in listed(site, "runs")} == {"ended"}
        assert listed(site, "runs")[0]["exit_status"] != 0


def test_one_line_runs_a_batch_on_two_clusters(tmp_path: Path, cluster: SlurmCluster) -> None:
    with login_site(tmp_path, cluster, spica={}, vega=IN_ALLOCATION) as site:
        assert site.laptop.kochi("artifact", "init", "../collected").returncode == 0
        site.go.touch()
        done = site.laptop.kochi("batch", "wait.yaml", "test")
        assert done.returncode == 0, done.stderr
        for name in ("spica", "vega"):
            assert f"{name.ljust(5)} | 5 of 5 steps (100%) done" in done.stdout
            log = tmp_path / "collected" / name / "wait" / "1.log"
            assert re.search(r"^on node[12], in job \d+$", log.read_text(), re.M)
        assert [bool(each.launch.job_name) for each in site.launches("vega")] == [True]
        with (site.laptop.top / "results/plots/wait/test.csv").open() as file:
            rows = [(row["machine"], row["n"]) for row in csv.DictReader(file)]
        assert rows == [(name, n) for name in ("spica", "vega") for n in ("1", "2")]
        wait_until(lambda: not cluster.jobs(), "the allocations are given back")
