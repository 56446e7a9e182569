"""Where the workers of a run are to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.allocation.choice import check_place
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import Root
from snakemake_kochi.place import Place, find_place
from snakemake_kochi.project.configuration import load_project

MACHINES = "spica: {scheduler: slurm}, vega: {alloc_script: x}, desk: {}"


def place(machine: str, machines: str) -> Place:
    project = load_project(Path("/nowhere"), f"machines: {{{machines}}}")
    return Place(project.machine(machine), project, Root(Path("/nowhere")))


def test_by_default_workers_are_in_allocations_where_there_is_a_way_to_them() -> None:
    where = {name: check_place(None, place(name, MACHINES)) for name in ("spica", "vega", "desk")}
    assert where == {"spica": "allocations", "vega": "allocations", "desk": "here"}
    # Here only if it is said.
    assert check_place("here", place("spica", MACHINES)) == "here"
    assert check_place("here", place("vega", MACHINES)) == "here"


@pytest.mark.parametrize(
    ("machine", "machines", "said"),
    [
        # The command on a line of its own.
        ("local", MACHINES, "are: spica, vega. Type:\nexport KOCHI_DEFAULT_MACHINE=spica\n"),
        ("local", "desk: {}", "say which machine has one: machines: NAME: scheduler: slurm"),
        ("desk", "desk: {}", "say which it has: machines: desk: scheduler: slurm"),
    ],
)
def test_where_there_is_no_scheduler_the_machines_that_have_one_are_named(
    machine: str, machines: str, said: str
) -> None:
    with pytest.raises(KochiError, match=f"machine {machine} has no scheduler") as error:
        check_place("allocations", place(machine, machines))
    assert said in str(error.value)


def test_where_there_is_no_kochi_yaml_its_text_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KochiError, match="machine local has no scheduler") as error:
        check_place("allocations", find_place())
    assert f"There is no kochi.yaml in {tmp_path}" in str(error.value)
    assert "\nmachines:\n  NAME:\n    scheduler: slurm\n" in str(error.value)
    assert "\nexport KOCHI_DEFAULT_MACHINE=NAME\n" in str(error.value)


def test_a_kochi_yaml_that_is_not_read_is_why_there_is_no_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kochi.yaml").write_text(f"machines: {{{MACHINES}}}")
    assert check_place("here", find_place()) == "here"
    with pytest.raises(KochiError, match="is not in a git repository\nType: git init"):
        check_place("allocations", find_place())


def test_a_place_that_is_none_is_refused_with_what_was_meant() -> None:
    with pytest.raises(KochiError, match="did you mean 'allocations'"):
        check_place("allocation", place("spica", MACHINES))
