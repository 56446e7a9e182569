"""Where the workers of a run are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from slurm_fake import FakeSlurm, says

from snakemake_kochi.allocation.workers import check_where, make_scheduler
from snakemake_kochi.errors import KochiError
from snakemake_kochi.location import Location, find_location
from snakemake_kochi.paths import Root
from snakemake_kochi.project.configuration import load_project

MACHINES = "spica: {scheduler: slurm}, vega: {alloc_script: x}, desk: {}"


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
