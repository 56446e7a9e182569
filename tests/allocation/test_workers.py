"""Where the workers of a run are."""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path

import pytest
from slurm_fake import AWAY, FakeSlurm, says
from support import git, write

from snakemake_kochi.allocation.workers import (
    check_where,
    make_scheduler,
    unused_scheduler,
)
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location, find_location, is_found
from snakemake_kochi.paths import Root
from snakemake_kochi.project.configuration import load_project

MACHINES = "spica: {scheduler: slurm}, vega: {alloc_script: x}, desk: {}"
SLURM = says("Configuration data as of today\nClusterName             = own\nMaxJobCount = 9")
NO_SLURM = says("scontrol: fatal: Could not establish a configuration source", 1)


def location(machine: str, machines: str) -> Location:
    project = load_project(Path("/nowhere"), f"machines: {{{machines}}}")
    root = Root(Path("/nowhere"))
    return Location(project.machine(machine), project, root, machines=project.machines)


def test_by_default_workers_are_in_allocations_if_the_machine_has_a_scheduler() -> None:
    where = {
        name: check_where(None, location(name, MACHINES)) for name in ("spica", "vega", "desk")
    }
    assert where == {"spica": "allocations", "vega": "allocations", "desk": "here"}
    # On this computer only if requested.
    assert check_where("here", location("spica", MACHINES)) == "here"
    assert check_where("here", location("vega", MACHINES)) == "here"


@pytest.mark.parametrize(
    ("machine", "machines", "said"),
    [
        # The command on a line of its own.
        ("local", MACHINES, "with one: spica, vega. Type:\nexport KOCHI_DEFAULT_MACHINE=spica\n"),
        ("local", "desk: {}", "write into kochi.yaml: machines: NAME: scheduler: slurm"),
        ("desk", "desk: {}", "write into kochi.yaml: machines: desk: scheduler: slurm"),
    ],
)
def test_without_a_scheduler_the_machines_that_have_one_are_named(
    machine: str, machines: str, said: str
) -> None:
    with pytest.raises(KochiError, match=f"machine {machine} has no scheduler") as error:
        check_where("allocations", location(machine, machines))
    assert said in str(error.value)


def test_without_a_kochi_yaml_its_text_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KochiError, match="machine local has no scheduler") as error:
        check_where("allocations", find_location())
    root = Root.find().directory
    assert f"$KOCHI_ROOT/conf.yaml is enough: write into {root}/conf.yaml, with" in str(error.value)
    assert "git init" not in str(error.value)
    assert "\nmachines:\n  NAME:\n    scheduler: slurm\n" in str(error.value)
    assert "\nexport KOCHI_DEFAULT_MACHINE=NAME\n" in str(error.value)


def test_a_scheduler_that_refuses_to_answer_is_reported_if_nothing_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    path = os.environ["PATH"]
    slurm = FakeSlurm(tmp_path, monkeypatch)
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{path}")  # for git
    slurm.answers("sbatch", "exit 1")
    slurm.answers("scontrol", "echo 'slurm_load_ctl_conf error: no config' >&2; exit 1")
    with pytest.raises(KochiError, match="machine local has no scheduler") as error:
        check_where("allocations", find_location())
    assert "The commands of Slurm are installed here, but: " in str(error.value)
    assert "no config" in str(error.value)
    assert "Is this a login node of a cluster with Slurm?" in str(error.value)


def test_an_unread_kochi_yaml_is_named_as_the_reason_for_no_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kochi.yaml").write_text(f"machines: {{{MACHINES}}}")
    assert check_where("here", find_location()) == "here"
    with pytest.raises(KochiError, match="is not in a git repository\nType: git init"):
        check_where("allocations", find_location())


def test_machines_of_a_site_are_named_without_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("machines: {spica: {scheduler: slurm, allocation: {partition: nosuch}}}")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("KOCHI_SITE_CONF", str(site))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KochiError, match="Machines with one: spica"):
        check_where("allocations", find_location())
    # The message about Slurm's refusal names the file to change.
    FakeSlurm(tmp_path, monkeypatch).answers("sinfo", says("main*|infinite|4|4000|(null)"))
    with pytest.raises(KochiError, match="no partition 'nosuch'") as error:
        make_scheduler(find_location("spica").machine, "name").limits()
    assert f"See machines: spica: allocation: partition in {site}." in str(error.value)


def test_an_unknown_location_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(KochiError, match="did you mean 'allocations'"):
        check_where("allocation", location("spica", MACHINES))


# ---- the machine of this host's own Slurm, if no machine is configured


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, as the current directory."""
    directory = tmp_path / "here"
    directory.mkdir()
    git(directory, "init", "--quiet")
    monkeypatch.chdir(directory)
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


def test_the_machine_has_the_name_of_the_cluster_which_is_asked_once_on_each_host(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_location().machine.name == "local"
    assert slurm.calls("scontrol") == []
    found = find_location(asks=True)
    assert (found.machine.name, found.machine.scheduler) == ("own", "slurm")
    assert is_found(found.machine)
    assert find_location().machine == found.machine
    assert find_location("own").machine == found.machine
    assert find_location("local").machine.name == "local"
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    assert find_location().machine.name == "local"
    assert slurm.calls("scontrol") == ["show config"]


def test_a_cluster_whose_name_cannot_be_a_machines_is_slurm(slurm: FakeSlurm) -> None:
    slurm.answers("scontrol", says("ClusterName = my/own"))
    assert find_location(asks=True).machine.name == "slurm"


def test_a_configured_machine_of_that_name_is_used_unchanged(here: Path, slurm: FakeSlurm) -> None:
    write(here / "kochi.yaml", "machines: {own: {scheduler: slurm, work_dir: /w}}\n")
    found = find_location(asks=True)
    assert (found.machine.work_dir, is_found(found.machine)) == ("/w", False)


@pytest.mark.parametrize(
    "machines", ["own: {}", "vega: {scheduler: slurm}", "local: {alloc_script: x}"]
)
def test_no_machine_is_made_up_if_some_are_configured(
    here: Path, slurm: FakeSlurm, machines: str
) -> None:
    write(here / "kochi.yaml", f"machines: {{{machines}}}\n")
    assert find_location(asks=True).machine.name == "local"


def test_slurm_is_not_asked_if_the_user_names_a_machine(
    here: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOCHI_DEFAULT_MACHINE", "local")
    assert find_location(asks=True).machine.name == "local"
    assert slurm.calls("scontrol") == []


def test_an_unreachable_slurm_does_not_make_jobs_run_on_this_computer(slurm: FakeSlurm) -> None:
    slurm.answers("scontrol", says(AWAY, 1))
    with pytest.raises(KochiError, match="Slurm is installed here, and does not answer"):
        find_location(asks=True)
    # It would be the same to programs without a cluster.
    slurm.answers("scontrol", NO_SLURM)
    assert find_location(asks=True).machine.name == "local"


def test_within_an_allocation_of_the_user_jobs_run_there(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_where(None, find_location(asks=True)) == "allocations"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert check_where(None, find_location()) == "here"
    assert check_where("allocations", find_location()) == "allocations"
    # A launched run may be in an allocation of Kochi's.
    monkeypatch.setenv("KOCHI_MACHINE", "own")
    assert check_where(None, find_location()) == "allocations"


def test_users_whose_jobs_run_here_only_by_default_are_told_once_what_changes_it_for_ever(
    here: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    kochi_yaml = "machines:\n  vega:\n    scheduler: slurm\n"
    write(here / "kochi.yaml", kochi_yaml)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert unused_scheduler(find_location()) == ""
    monkeypatch.delenv("SLURM_JOB_ID")
    assert unused_scheduler(find_location("vega")) == ""
    assert unused_scheduler(find_location("local")) == ""
    slurm.answers("scontrol", NO_SLURM)
    assert unused_scheduler(find_location()) == ""
    slurm.answers("scontrol", SLURM)
    said = unused_scheduler(find_location())
    line = re.search(r"write into kochi.yaml: machines: vega: (hosts: [^ ]+)\. ", said)
    assert line is not None, said
    assert unused_scheduler(find_location()) == ""
    write(here / "kochi.yaml", f"{kochi_yaml}    {line[1]}\n")
    assert find_location().machine.name == "vega"
