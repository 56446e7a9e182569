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


def test_the_product_of_all_lists_is_run_and_the_last_parameter_varies_fastest() -> None:
    found = grid("params: {b: [1, 2], a: [x, y]}", "a: 0, b: 0, c: 5")
    assert values(found, "b", "a", "c") == [
        ("1", "x", "5"),
        ("1", "y", "5"),
        ("2", "x", "5"),
        ("2", "y", "5"),
    ]


def test_duplicates_are_innermost_and_count_from_zero() -> None:
    found = grid("params: {a: [1, 2]}\n    duplicates: 2")
    assert [(p.parameters["a"], p.duplicate) for p in found.points] == [
        ("1", 0),
        ("1", 1),
        ("2", 0),
        ("2", 1),
    ]


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


@pytest.mark.parametrize(
    ("machine", "expected"), [("spica", ["1", "2"]), ("vega", ["3"]), ("local", ["0"])]
)
def test_the_last_entry_that_matches_the_machine_counts(machine: str, expected: list[str]) -> None:
    batch = (
        "params: {a: [{value: 0}, {value: 9, machines: [spica, vega]}, "
        "{value: [1, 2], machines: spica}, {value: 3, machines: [vega]}]}"
    )
    assert [a for (a,) in values(grid(batch, machine=machine), "a")] == expected


def test_computed_parameters_follow_each_point() -> None:
    found = grid("params: {a: [1, 2], b: [10, 20], total: '`$a * $b`'}")
    assert values(found, "total") == [("10",), ("20",), ("20",), ("40",)]


def test_defaults_are_computed_from_the_batchs_parameters() -> None:
    found = grid("params: {a: [1, 2]}", "twice: '`2 * $a`', a: 0")
    assert values(found, "twice") == [("2",), ("4",)]


def test_the_varying_parameters_are_those_with_several_values() -> None:
    found = grid("params: {z: [1, 2], one: [1], a: [3, 4], same: '`$a > 0`', sum: '`$z + $a`'}")
    assert found.varying == ("z", "a", "sum")


def test_name_queue_dest_and_src_are_substituted() -> None:
    (point,) = grid(
        "name: n_${batch_name}_$a_${duplicate}\n    queue: q_$a\n    params: {a_: 7, a: x+y}\n"
        "    artifacts: [{type: file, src: 'out/$a.csv', "
        "dest: 'r/${batch_name}/${a}_${duplicate}.csv'}]"
    ).points
    assert point.name == "n_b_70"
    assert point.queue == "q_x+y"
    assert point.artifacts == (Artifact("file", "r/b/x+y_0.csv", "out/x+y.csv"),)


def test_values_are_encoded_in_dest_but_not_in_name_and_src() -> None:
    (point,) = grid(
        "name: $a\n    params: {a: z/x y}\n"
        "    artifacts: [{type: file, src: 'd/$a', dest: 'd/$a/$a.csv'}]"
    ).points
    assert point.name == "z/x y"
    assert point.artifacts == (Artifact("file", "d/z%2Fx%20y/z%2Fx%20y.csv", "d/z/x y"),)


def test_the_empty_value_has_a_file_name_too() -> None:
    found = grid(f"params: {{a: [null, x]}}\n    {artifacts('$a')}")
    assert [point.artifacts[0].dest for point in found.points] == ["%empty", "x"]


def test_a_grid_keeps_the_templates_of_its_artifacts() -> None:
    found = grid(f"params: {{a: [1, 2]}}\n    {artifacts('./d//${a}')}", "c: 1")
    assert found.artifacts == (Artifact("stats", "d/${a}", None),)
    assert (found.experiment, found.batch, found.machine) == ("e", "b", "local")


def test_a_dollar_is_written_twice() -> None:
    (point,) = grid(f"name: $$a\n    params: {{a: 1}}\n    {artifacts('$$a-$a-$')}").points
    assert (point.name, point.artifacts[0].dest) == ("$a", "$a-1-$")


def test_an_unknown_batch_is_an_error_with_the_nearest() -> None:
    text = "run: {script: x}\nbatches: {small: {}}"
    with pytest.raises(NameNotFoundError, match="no batch 'smal', did you mean 'small'"):
        load_experiment("e.yaml", text, None).grid("smal", "local")


def test_dests_that_only_begin_alike_are_fine() -> None:
    assert len(grid(artifacts("a/b", "a/bc", "a/b.c")).points) == 1


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
