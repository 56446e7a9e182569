"""A filesystem that returns errors for a while ends no worker and no job of it."""

from __future__ import annotations

import errno
import subprocess

import pytest
from faulty_filesystem import FaultyFilesystem

from snakemake_kochi.paths import Root
from snakemake_kochi.tickets.ticket import ShellJob
from tests.worker.by_hand.conftest import Site

SOON = {"idle_wait": 0.1}
UNTIL_GO = "until [ -e go ]; do sleep 0.1; done"
FAULTS = [errno.EIO, errno.ESTALE]


def log_of(site: Site) -> str:
    # Read the file without the filesystem that has the faults.
    backing = Root(site.directory / "backing").machine("local")
    return backing.worker(0).log.read_text()


def ends_well(site: Site, job: int) -> bool:
    result = site.ended(job).result
    return result is not None and result.ok and result.attempt == 1 and result.worker == 0


@pytest.mark.parametrize("error", FAULTS)
def test_a_log_that_cannot_be_read_for_a_while_is_shown_completely(
    site: Site, faulty: FaultyFilesystem, error: int
) -> None:
    site.submit(f"echo first; {UNTIL_GO}; echo last", "echo other")
    with open(site.directory / "shown", "wb") as shown:
        worker = site.start(cores=2, echo=True, stdout_to=shown, **SOON)
    site.wait_until(lambda: "first" in (site.directory / "shown").read_text())
    assert site.ended(1).result.ok  # type: ignore[union-attr]
    with faulty.fault("open", error, "*/jobs/*/log") as fault:
        site.wait_until(lambda: faulty.count(fault) >= 3)
        assert worker.poll() is None
    (site.directory / "go").touch()
    assert ends_well(site, 0)
    assert worker.wait() == 0
    lines = (site.directory / "shown").read_text().splitlines()
    assert lines[4:7] == ["first", "last", "-" * 80]
    assert lines[8:10] == ["-" * 80, "other"]
    said = log_of(site).count("WARNING the log of job 0 cannot be shown now")
    assert said == (error == errno.EIO), "ESTALE is asked again"


def test_an_attempt_begins_though_its_directory_is_stale_for_a_moment(
    site: Site, faulty: FaultyFilesystem
) -> None:
    site.submit("echo ran >> ran")
    with faulty.fault("getattr", errno.ESTALE, "*/ended-1.json", times=9) as fault:
        assert site.start(cores=1).wait() == 0
        assert faulty.count(fault) == 9
    assert ends_well(site, 0)


COPY = ShellJob(script="cp in out", executable="/bin/bash")


def test_a_worker_whose_log_cannot_be_written_goes_on_and_says_so_once(
    site: Site, faulty: FaultyFilesystem
) -> None:
    with faulty.fault("write", errno.ENOSPC, "*/workers/0/log"):
        site.submit("true", "true", "echo here")
        worker = site.start(cores=1, stderr=subprocess.PIPE)
        _, said = worker.communicate(timeout=60)
        assert worker.returncode == 0
    assert said.count("its log cannot be written now") == 1
    assert "Traceback" not in said
    assert site.log(2) == "here\n"


@pytest.mark.parametrize(
    ("call", "path"), [("create", "*/workers/0/.worker.json*"), ("create", "*/workers/0/log")]
)
def test_a_worker_that_cannot_begin_says_why(
    site: Site, faulty: FaultyFilesystem, call: str, path: str
) -> None:
    with faulty.fault(call, errno.EIO, path):
        worker = site.start(cores=1, stderr=subprocess.PIPE)
        _, said = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "worker 0 on machine local cannot be started: [Errno 5]" in said
    assert "Traceback" not in said


def test_an_output_that_can_never_be_written_ends_no_job(site: Site) -> None:
    site.submit("echo first", "echo second")
    with open("/dev/full", "wb") as full:
        worker = site.start(cores=1, echo=True, stdout_to=full, stderr=subprocess.PIPE)
    _, said = worker.communicate(timeout=60)
    assert (worker.returncode, said.count("No space left on device")) == (0, 1)
    assert ends_well(site, 0)
    assert ends_well(site, 1)
