"""A filesystem that returns errors for a while ends no worker and no job of it."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.paths import Root
from tests.worker.by_hand.conftest import Site

SOON = {"idle_wait": 0.1}
UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"
FAULTS = [errno.EIO, errno.ESTALE]


def log_of(site: Site) -> str:
    # Read the file without the filesystem that has the faults.
    backing = Root(site.directory / "backing").machine("local")
    return Path(backing.layout.worker(1).log).read_text()


def ends_well(site: Site, job: int) -> bool:
    result = site.ended(job).result
    return result is not None and result.ok and result.attempt == 1 and result.worker == 1


@pytest.mark.parametrize("error", FAULTS)
def test_a_log_that_cannot_be_read_for_a_while_is_shown_completely(
    site: Site, faulty: FaultyFilesystem, error: int
) -> None:
    site.submit(f"echo first; {UNTIL_GO}; echo last")
    with open(site.directory / "shown", "wb") as shown:
        worker = site.start(cores=2, echo=True, stdout_to=shown, **SOON)
    site.wait_until(lambda: "first" in (site.directory / "shown").read_text())
    site.submit("echo other")
    assert site.ended(1).result.ok  # type: ignore[union-attr]
    with faulty.fault("open", error, "*/logs/1.a1") as fault:
        site.wait_until(lambda: faulty.count(fault) >= 3)
        assert worker.poll() is None
    (site.directory / "go").touch()
    assert ends_well(site, 0)
    assert worker.wait() == 0
    lines = (site.directory / "shown").read_text().splitlines()
    assert lines[4:7] == ["first", "last", "-" * 80]
    assert lines[8:10] == ["-" * 80, "other"]


def test_a_job_begins_when_its_log_can_be_made(site: Site, faulty: FaultyFilesystem) -> None:
    site.submit("echo ran >> ran")
    with faulty.fault("create", errno.ESTALE, "*/logs/1.a1", times=2) as fault:
        assert site.start(cores=1).wait() == 0
        assert faulty.count(fault) == 2
    assert ends_well(site, 0)
    assert "job 1.1.a1.l0@1 cannot begin yet: [Errno 116]" in log_of(site)


def test_a_worker_whose_log_cannot_be_written_goes_on(site: Site, faulty: FaultyFilesystem) -> None:
    with faulty.fault("write", errno.ENOSPC, "*/workers/1/log"):
        site.submit("true", "true", "echo here")
        worker = site.start(cores=1, stderr=subprocess.PIPE)
        _, said = worker.communicate(timeout=60)
        assert worker.returncode == 0
    assert said == ""
    assert site.log(2) == "here\n"


@pytest.mark.parametrize(
    ("call", "path"), [("create", "*/workers/*/worker.json"), ("create", "*/workers/1/log")]
)
def test_a_worker_that_cannot_begin_says_why(
    site: Site, faulty: FaultyFilesystem, call: str, path: str
) -> None:
    with faulty.fault(call, errno.EIO, path):
        worker = site.start(cores=1, stderr=subprocess.PIPE)
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "kochi: the worker cannot go on: [Errno 5]" in said
    assert "Traceback" not in said


def test_an_output_that_can_never_be_written_ends_no_job(site: Site) -> None:
    site.submit("echo first", "echo second")
    with open("/dev/full", "wb") as full:
        worker = site.start(cores=1, echo=True, stdout_to=full, stderr=subprocess.PIPE)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, said.count("No space left on device")) == (0, 1)
    assert ends_well(site, 0)
    assert ends_well(site, 1)
