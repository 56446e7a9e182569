"""The machine of this host's own Slurm, if no machine is configured."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from slurm_fake import AWAY, FakeSlurm, says
from support import git, write

from snakemake_kochi.allocation.workers import find_machine, unused_scheduler
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import find_location, is_found
from snakemake_kochi.schedulers.commands import Pace

SLURM = says("Configuration data as of today\nClusterName             = own\nMaxJobCount = 9")
NO_SLURM = says("scontrol: fatal: Could not establish a configuration source", 1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, as the current directory."""
    directory = tmp_path / "here"
    directory.mkdir()
    git(directory, "init", "--quiet")
    monkeypatch.chdir(directory)
    # The code under test sets this variable: monkeypatch restores it.
    monkeypatch.setenv("KOCHI_FOUND_MACHINE", "")
    return directory


@pytest.fixture
def slurm(tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(str(shutil.which("git")))
    fake = FakeSlurm(programs, monkeypatch)
    fake.answers("sbatch", "exit 1")
    fake.answers("scontrol", SLURM)
    return fake


def test_the_machine_has_the_name_of_the_cluster_and_only_that(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_machine(find_location())
    assert (found.machine.name, found.machine.scheduler) == ("own", "slurm")
    assert is_found(found.machine)
    assert find_location().machine == found.machine
    monkeypatch.setenv("KOCHI_FOUND_MACHINE", "")
    assert find_location().machine.name == "local"
    assert find_location("own").machine == found.machine
    assert slurm.calls("scontrol") == ["show config"]


def test_a_cluster_whose_name_cannot_be_a_machines_is_slurm(slurm: FakeSlurm) -> None:
    slurm.answers("scontrol", says("ClusterName = my/own"))
    assert find_machine(find_location()).machine.name == "slurm"


def test_a_configured_machine_of_that_name_is_used_unchanged(here: Path, slurm: FakeSlurm) -> None:
    write(here / "kochi.yaml", "machines: {own: {scheduler: slurm, work_dir: /w}}\n")
    found = find_machine(find_location())
    assert (found.machine.work_dir, is_found(found.machine)) == ("/w", False)


@pytest.mark.parametrize(
    "machines", ["own: {}", "vega: {scheduler: slurm}", "local: {alloc_script: x}"]
)
def test_no_machine_is_made_up_if_some_are_configured(
    here: Path, slurm: FakeSlurm, machines: str
) -> None:
    write(here / "kochi.yaml", f"machines: {{{machines}}}\n")
    assert find_machine(find_location()).machine.name == "local"


def test_slurm_is_not_asked_if_the_user_names_a_machine(
    here: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "local")
    assert find_machine(find_location()).machine.name == "local"
    assert slurm.calls("scontrol") == []


def test_an_unreachable_slurm_does_not_make_jobs_run_on_this_computer(slurm: FakeSlurm) -> None:
    slurm.answers("scontrol", says(AWAY, 1))
    with pytest.raises(KochiError, match="Slurm is installed here, and does not answer"):
        find_machine(find_location())
    # It would be the same to programs without a cluster.
    slurm.answers("scontrol", NO_SLURM)
    assert find_machine(find_location()).machine.name == "local"


def test_the_run_waits_for_a_slurm_that_is_away_for_a_moment_and_says_so_once(
    slurm: FakeSlurm, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.answers("scontrol", says(AWAY, 1), says(AWAY, 1), SLURM)
    pace = Pace(submission=20.0, first_pause=0.0, most_pause=0.0)
    assert find_machine(find_location(), pace).machine.name == "own"
    assert len(slurm.calls("scontrol")) == 3
    assert caplog.text.count("does not answer") == 1
    assert "Kochi asks again, for 20 s" in caplog.text


def test_users_whose_jobs_run_here_only_by_default_are_told(
    here: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "add to the command line: --kochi-where allocations" in unused_scheduler(find_location())
    write(here / "kochi.yaml", "machines: {vega: {scheduler: slurm}}\n")
    assert "type: export KOCHI_DEFAULT_MACHINE=vega" in unused_scheduler(find_location())
    assert unused_scheduler(find_location("vega")) == ""
    assert unused_scheduler(find_location("local")) == ""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert unused_scheduler(find_location()) == ""
    monkeypatch.delenv("SLURM_JOB_ID")
    slurm.answers("scontrol", NO_SLURM)
    assert unused_scheduler(find_location()) == ""
