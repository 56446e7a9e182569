"""Requirements, and the recipes a machine needs for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError, NameNotFoundError
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.recipes import Project, Requirement

PROJECT = """
dependencies:
  base:
    script: make
    recipes: [{name: one}, {name: two}]
  middle:
    script: make
    recipes:
      - {name: one, depends: [{name: base, recipe: one}]}
      - {name: spica, depends: [{name: base, recipe: two, machines: spica}]}
      - {name: split, depends: [{name: base, recipe: one}, {name: other, recipe: x}]}
  other:
    recipes: [{name: x, script: make, depends: [{name: base, recipe: two}]}]
"""


@pytest.fixture
def project() -> Project:
    return load_project(Path("/p"), PROJECT)


def resolved(project: Project, *texts: str, machine: str = "local") -> list[str]:
    wanted = [Requirement.parse(text) for text in texts]
    return [str(recipe) for recipe in project.resolve(wanted, machine, "fib.yaml")]


def test_a_requirement_is_written_and_read_as_dependency_and_recipe() -> None:
    requirement = Requirement.parse("jemalloc:v5.2.1")
    assert requirement == Requirement("jemalloc", "v5.2.1")
    assert str(requirement) == "jemalloc:v5.2.1"


@pytest.mark.parametrize("text", ["", "a", "a:", ":b", "a:b:c", "../a:b", "a:b c"])
def test_a_malformed_requirement_is_an_error_with_the_expected_form(text: str) -> None:
    with pytest.raises(ConfigError, match="DEPENDENCY:RECIPE was expected"):
        Requirement.parse(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("base", "The recipes of 'base' are: base:one, base:two"),
        ("base:", "The recipes of 'base' are: base:one, base:two"),
        ("bse", "There is no dependency 'bse' in kochi.yaml, did you mean 'base'?"),
    ],
)
def test_a_dependency_alone_is_an_error_that_names_its_recipes(
    project: Project, text: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        project.requirement(text)
    said = f"'{text}' names no recipe: DEPENDENCY:RECIPE was expected"
    assert str(caught.value) == f"{said}\n{hint}"


def test_a_requirement_counts_on_its_machines_only() -> None:
    assert Requirement("a", "b", ("spica",)).on("spica")
    assert not Requirement("a", "b", ("spica",)).on("local")
    assert Requirement("a", "b").on("anything")


def test_what_a_recipe_depends_on_comes_before_it(project: Project) -> None:
    assert resolved(project, "middle:one") == ["base:one", "middle:one"]


def test_a_recipe_needed_twice_is_there_once(project: Project) -> None:
    assert resolved(project, "base:one", "middle:one") == ["base:one", "middle:one"]


def test_dependencies_of_other_machines_are_left_out(project: Project) -> None:
    assert resolved(project, "middle:spica") == ["middle:spica"]
    assert resolved(project, "middle:spica", machine="spica") == ["base:two", "middle:spica"]


def test_two_recipes_of_one_dependency_are_an_error_that_names_both_ways(project: Project) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(project, "middle:split")
    message = str(caught.value)
    assert "two recipes of 'base' on machine 'local'" in message
    assert "fib.yaml -> middle:split -> base:one" in message
    assert "fib.yaml -> middle:split -> other:x -> base:two" in message


def test_two_recipes_required_directly_are_an_error(project: Project) -> None:
    with pytest.raises(ConfigError, match="two recipes of 'base'"):
        resolved(project, "base:one", "base:two")


@pytest.mark.parametrize(
    ("text", "said"),
    [("bse:one", "did you mean 'base'"), ("base:three", "no recipe 'three', known: one, two")],
)
def test_an_unknown_recipe_is_an_error_with_the_nearest_one(
    project: Project, text: str, said: str
) -> None:
    with pytest.raises(NameNotFoundError) as caught:
        project.recipe(Requirement.parse(text))
    assert said in str(caught.value)
    with pytest.raises(NameNotFoundError):
        resolved(project, text)


SOURCES = """
dependencies:
  rng:
    script: make
    recipes: [{name: v1}, {name: lcg}]
  user:
    recipes: [{name: x, script: make, depends: [{name: rng, recipe: v1}]}]
"""


def problems_of(text: str) -> str:
    """What is wrong with an experiment, before anything runs."""
    project = load_project(Path("/p"), SOURCES)
    with pytest.raises(ConfigError) as error:
        experiment = load_experiment("e.yaml", text, project)
        check_experiments([experiment], "local", project)
    return str(error.value)


def batch_of(depends: str, params: str) -> str:
    return f"depends: [{depends}]\nbatches: {{b: {{params: {params}}}}}\nrun: {{script: x}}\n"


RNG = "{name: rng, recipe: $rng}"


def test_all_values_that_name_no_recipe_are_told_at_once() -> None:
    said = problems_of(batch_of(RNG, "{rng: [v1, a, lcg, b], n: [1, 2, 3]}"))
    assert [line.partition(": '")[0] for line in said.splitlines()] == [
        "e.yaml:2: batches.b.params.rng[1]",
        "e.yaml:2: batches.b.params.rng[3]",
    ]
