"""Where the workers of a run are to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.allocation.choice import check_place
from snakemake_kochi.errors import KochiError
from snakemake_kochi.paths import Root
from snakemake_kochi.place import Place
from snakemake_kochi.project.configuration import load_project

MACHINES = "spica: {scheduler: slurm}, vega: {alloc_script: x}, desk: {}"


def place(machine: str, machines: str) -> Place:
    project = load_project(Path("/nowhere"), f"machines: {{{machines}}}")
    return Place(project.machine(machine), project, Root(Path("/nowhere")))


def test_by_default_workers_are_where_kochi_knows_the_scheduler() -> None:
    where = {name: check_place(None, place(name, MACHINES)) for name in ("spica", "vega", "desk")}
    assert where == {"spica": "allocations", "vega": "here", "desk": "here"}
    assert check_place("allocations", place("vega", MACHINES)) == "allocations"
    assert check_place("here", place("spica", MACHINES)) == "here"


@pytest.mark.parametrize(
    ("machine", "machines", "said"),
    [
        ("local", MACHINES, "With one are: spica, vega. Type: export KOCHI_DEFAULT_MACHINE=spica"),
        ("local", "desk: {}", "say which it has: machines: NAME: scheduler: slurm"),
        ("desk", "desk: {}", "say which it has: machines: desk: scheduler: slurm"),
    ],
)
def test_where_there_is_no_scheduler_the_machines_that_have_one_are_named(
    machine: str, machines: str, said: str
) -> None:
    with pytest.raises(KochiError, match=f"machine {machine} has no scheduler") as error:
        check_place("allocations", place(machine, machines))
    assert said in str(error.value)


def test_a_place_that_is_none_is_refused_with_what_was_meant() -> None:
    with pytest.raises(KochiError, match="did you mean 'allocations'"):
        check_place("allocation", place("spica", MACHINES))
