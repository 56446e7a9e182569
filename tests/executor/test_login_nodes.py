"""Runs of one directory from two login nodes that do not see the processes of each other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Host, Started
from support import open_runs, wait_until, write

from snakemake_kochi.paths import Root

RUN = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "2")
AGAIN = (*RUN, "--rerun-incomplete")
# With two at a time, Snakemake might begin with the third job, which waits for those that run.
ALL_AGAIN = (*AGAIN, "--jobs", "3")
# Each job notes that it begins, and goes on when it may.
SNAKEFILE = """
    rule all:
        input: expand("out/{i}", i=range(3))

    rule job:
        output: "out/{i}"
        shell:
            "echo >> began-{wildcards.i}; until [ -e go ]; do sleep 0.1; done; "
            "echo >> done-{wildcards.i}; touch {output}"

    rule other:
        output: "other"
        shell: "touch {output}"
    """


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Seconds between two signs of life.
    monkeypatch.setenv("KOCHI_HEARTBEAT", "0.5")
    write(tmp_path / "run" / "Snakefile", SNAKEFILE)
    return tmp_path / "run"


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Host]:
    with Host("login1", tmp_path) as host:
        yield host


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Host]:
    with Host("login2", tmp_path) as host:
        yield host


def counts(directory: Path, what: str) -> dict[str, int]:
    """How often each job began, or was done."""
    found = sorted(directory.glob(f"{what}-*"))
    return {path.name.partition("-")[2]: len(path.read_text()) for path in found}


def begin(host: Host, directory: Path, *options: str) -> Started:
    """Start a run, and wait until two jobs have begun."""
    run = host.start(*RUN, *options, cwd=directory)
    # Wait for the contents: a job that is killed earlier may leave an empty file.
    wait_until(lambda: [*counts(directory, "began").values()] == [1, 1] or not run.is_running)
    assert run.is_running, run.said
    return run


def unlock(host: Host, directory: Path) -> None:
    assert host.start(sys.executable, "-m", "snakemake", "--unlock", cwd=directory).wait() == 0


def controllers() -> list[Path]:
    return open_runs(Root.find().machine("local").directory)


@pytest.mark.parametrize("how", ["--unlock", "--nolock"])
def test_a_run_that_continues_on_another_host_is_not_repeated(
    first: Host, second: Host, directory: Path, how: str
) -> None:
    run = begin(first, directory)
    if how == "--unlock":
        unlock(second, directory)
        again = second.start(*AGAIN, cwd=directory)
    else:
        again = second.start(*AGAIN, "--nolock", cwd=directory)
    status = again.wait()
    (directory / "go").touch()
    assert run.wait() == 0, run.said
    assert counts(directory, "began") == {"0": 1, "1": 1, "2": 1}
    assert status == 1, again.said
    assert "login1" in again.said and "Traceback" not in again.said
    assert controllers() == []


def test_runs_of_different_files_share_a_directory_across_hosts(
    first: Host, second: Host, directory: Path
) -> None:
    run = begin(first, directory)
    assert second.start(*AGAIN, "--nolock", "other", cwd=directory).wait() == 0
    (directory / "go").touch()
    assert run.wait() == 0, run.said
    assert counts(directory, "began") == {"0": 1, "1": 1, "2": 1}


def test_a_run_on_another_host_adopts_the_running_jobs_of_a_killed_controller(
    first: Host, second: Host, tmp_path: Path, directory: Path
) -> None:
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "q", "-b", "--cores", "2")
    with Host("node1", tmp_path) as node:
        node.start(*work, cwd=directory)
        begin(first, directory, "--kochi-queue", "q").kill()
        unlock(second, directory)
        again = second.start(*ALL_AGAIN, "--kochi-queue", "q", cwd=directory)
        wait_until(lambda: again.said.count("still runs and is not started again") == 2)
        assert f"This run waits {7} s for a sign of life" in again.said
        assert "It left 2 running and 0 finished kochi jobs" in again.said
        (directory / "go").touch()
        assert again.wait() == 0, again.said
    assert counts(directory, "began") == counts(directory, "done") == {"0": 1, "1": 1, "2": 1}
    assert controllers() == []


def test_a_run_on_another_host_completes_the_run_of_a_host_that_died(
    first: Host, second: Host, directory: Path
) -> None:
    begin(first, directory)
    # Which two of the three Snakemake takes first is its own affair.
    begun = counts(directory, "began")
    first.lose()
    unlock(second, directory)
    again = second.start(*AGAIN, cwd=directory)
    again.wait_for("for a sign of life")
    assert counts(directory, "began") == begun
    (directory / "go").touch()
    assert again.wait() == 0, again.said
    assert counts(directory, "began") == {"0": 1, "1": 1, "2": 1} | dict.fromkeys(begun, 2)
    assert counts(directory, "done") == {"0": 1, "1": 1, "2": 1}
    assert controllers() == []
    assert list(Root.find().machine("local").queues.iterdir()) == []


def test_a_run_that_wakes_up_after_its_adoption_ends_and_changes_nothing(
    first: Host, second: Host, tmp_path: Path, directory: Path
) -> None:
    work = (sys.executable, "-m", "snakemake_kochi.cli", "work", "-q", "q", "-b", "--cores", "2")
    with Host("node1", tmp_path) as node:
        node.start(*work, cwd=directory)
        run = begin(first, directory, "--kochi-queue", "q")
        run.suspend()
        unlock(second, directory)
        again = second.start(*ALL_AGAIN, "--kochi-queue", "q", cwd=directory)
        wait_until(lambda: again.said.count("still runs and is not started again") == 2)
        run.resume()
        assert run.wait() == 1
        assert "login2" in run.said, run.said
        assert ("took over") in run.said, run.said
        assert "Traceback" not in run.said
        assert again.is_running
        # Snakemake would remove them at its end.
        assert (directory / "out").is_dir()
        assert list((directory / ".snakemake" / "locks").iterdir())
        (directory / "go").touch()
        assert again.wait() == 0, again.said
    assert counts(directory, "began") == counts(directory, "done") == {"0": 1, "1": 1, "2": 1}
    assert controllers() == []


LAUNCH = (sys.executable, "-m", "snakemake_kochi.cli", "launch")
CORES = ("--cores", "2", "--rerun-incomplete")


def test_a_launched_run_on_another_host_is_left_alone_while_it_lives_and_then_replaced(
    first: Host, second: Host, directory: Path
) -> None:
    assert first.start(*LAUNCH, "--", *CORES, cwd=directory).wait() == 0
    wait_until(lambda: len(counts(directory, "began")) == 2)
    refused = second.start(*LAUNCH, cwd=directory)
    assert refused.wait() == 1
    assert "waiting 6 s for a sign of its life" in refused.said
    assert "goes on" in refused.said and "login1" in refused.said
    first.lose()
    unlock(second, directory)
    again = second.start(*LAUNCH, "--follow", "--", *CORES, cwd=directory)
    again.wait_for("Launched")
    (directory / "go").touch()
    assert again.wait() == 0, again.said
    assert counts(directory, "done") == {"0": 1, "1": 1, "2": 1}
    assert controllers() == []


def test_a_launched_run_is_stopped_from_another_host(
    first: Host, second: Host, directory: Path
) -> None:
    assert first.start(*LAUNCH, "--", *CORES, cwd=directory).wait() == 0
    wait_until(lambda: len(counts(directory, "began")) == 2)
    stopped = second.start(*LAUNCH, "--stop", cwd=directory)
    assert stopped.wait() == 0, stopped.said
    assert stopped.said.endswith(" has ended.\n"), stopped.said
    assert counts(directory, "done") == {}
    assert controllers() == []


def test_no_sign_of_life_is_awaited_of_a_launched_run_that_was_killed(
    first: Host, second: Host, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its silence would prove nothing for hours.
    monkeypatch.setenv("KOCHI_HEARTBEAT", "1000")
    assert first.start(*LAUNCH, "--", *CORES, cwd=directory).wait() == 0
    wait_until(lambda: len(counts(directory, "began")) == 2)
    (launch,) = Root.find().machine("local").launches.glob("*/process.json")
    pid = json.loads(launch.read_text())["run"]["pid"]
    first.start("kill", "-9", str(pid), cwd=directory)
    wait_until(launch.with_name("end.json").exists)
    unlock(second, directory)
    (directory / "go").touch()
    again = second.start(*AGAIN, cwd=directory)
    # Its own workers saw it die, and have requeued what they had.
    assert again.wait() == 0, again.said
    assert "sign of life" not in again.said
    assert counts(directory, "done") == {"0": 1, "1": 1, "2": 1}
    assert controllers() == []
