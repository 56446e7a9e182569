"""Grids: products of parameters, machines, duplicates, and artifacts that stay apart."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import calls_of

from snakemake_kochi.errors import NameNotFoundError
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Artifact, Grid


def grid(batch: str, defaults: str = "", machine: str = "local", top: str = "") -> Grid:
    text = (
        f"default_params: {{{defaults}}}\nrun: {{script: x}}\n{top}\n"
        f"batches:\n  b:\n    {batch.strip()}\n"
    )
    return load_experiment("e.yaml", text, None).grid("b", machine)


def values(found: Grid, *names: str) -> list[tuple[str, ...]]:
    return [tuple(point.parameters[name] for name in names) for point in found.points]


def artifacts(*dests: str) -> str:
    return f"artifacts: {json.dumps([{'type': 'stats', 'dest': dest} for dest in dests])}"


@pytest.mark.parametrize(
    ("batch", "top", "count"),
    [
        ("duplicates: 2", "default_duplicates: 3", 2),
        ("params: {}", "default_duplicates: 3", 3),
        ("params: {}", "", 1),
    ],
)
def test_duplicates_of_the_batch_come_before_the_default_and_one(
    batch: str, top: str, count: int
) -> None:
    assert len(grid(batch, top=top).points) == count


def test_the_varying_parameters_are_those_with_several_values() -> None:
    found = grid("params: {z: [1, 2], one: [1], a: [3, 4], same: '`$a > 0`', sum: '`$z + $a`'}")
    assert found.varying == ("z", "a", "sum")


def test_a_grid_keeps_the_templates_of_its_artifacts() -> None:
    found = grid(f"params: {{a: [1, 2]}}\n    {artifacts('./d//${a}')}", "c: 1")
    assert found.artifacts == (Artifact("stats", "d/${a}", None),)
    assert (found.experiment, found.batch, found.machine) == ("e", "b", "local")


def test_an_unknown_batch_is_an_error_with_the_nearest() -> None:
    text = "run: {script: x}\nbatches: {small: {}}"
    with pytest.raises(NameNotFoundError, match="no batch 'smal', did you mean 'small'"):
        load_experiment("e.yaml", text, None).grid("smal", "local")


def test_the_cost_of_a_large_grid_grows_with_its_points_and_not_with_pairs_of_them() -> None:
    def steps(number: int) -> int:
        many = list(range(number))
        dest = artifacts("$a/${b}_$c.log")
        text = f"params: {{a: {many}, b: {many}, c: '`$a * $b`'}}\n    {dest}"
        found, calls = calls_of(lambda: grid(text))
        assert len(found.points) == number**2
        return calls

    # Four times as many points, and sixteen times as many pairs.
    assert steps(40) <= 5 * steps(20)


# Without what JSON writes as two escapes, which YAML does not put together again.
_CHARACTERS = st.characters(
    max_codepoint=0xFFFF, exclude_categories=["Cs"], exclude_characters="\0$`"
)
TEXTS = st.text(_CHARACTERS, min_size=1, max_size=20)


@given(st.lists(TEXTS, min_size=2, max_size=5, unique=True))
def test_different_values_always_have_different_files(texts: list[str]) -> None:
    found = grid(f"params: {{a: {json.dumps(texts)}}}\n    {artifacts('f${a}')}")
    dests = {point.artifacts[0].dest for point in found.points}
    assert len(dests) == len(texts)
    assert [a for (a,) in values(found, "a")] == texts
