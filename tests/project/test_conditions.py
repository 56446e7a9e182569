"""Conditions on parameters select points."""

from __future__ import annotations

import pytest

from snakemake_kochi.errors import ConfigError, KochiError, NameNotFoundError
from snakemake_kochi.project.conditions import Condition, Where

POINTS = [
    ({"n": "1", "flags": "-O2"}, 0),
    ({"n": "10", "flags": "-O2"}, 0),
    ({"n": "1e2", "flags": "-O0 -g"}, 0),
    ({"n": "1e2", "flags": "-O0 -g"}, 1),
]


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["n=1"], [0]),
        (["n==1.0"], [0]),
        (["n!=1"], [1, 2, 3]),
        (["n>9"], [1, 2, 3]),
        (["n >= 10", "n<100"], [1]),
        (["n=100"], [2, 3]),
        (["flags=-O0 -g"], [2, 3]),
        (["flags!=-O2", "duplicate=1"], [3]),
        (["n<=10", "flags=-O2"], [0, 1]),
    ],
)
def test_numbers_are_compared_as_numbers_and_other_values_as_texts(
    texts: list[str], chosen: list[int]
) -> None:
    where = Where.parse(texts)
    where.check(POINTS, "batch b")
    assert [index for index, point in enumerate(POINTS) if where.has(*point)] == chosen


def test_one_of_several_alternatives_is_enough() -> None:
    where = Where.parse(["n=1"], ["n=10", "flags=-O2"])
    assert [where.has(*point) for point in POINTS] == [True, True, False, False]


def test_a_point_without_a_parameter_differs_from_every_value_of_it() -> None:
    assert Condition.parse("m!=1").holds(None)
    assert not any(Condition.parse(text).holds(None) for text in ("m=1", "m<1", "m>=1", "m="))


@pytest.mark.parametrize(
    ("texts", "error", "said"),
    [
        (["n"], ConfigError, "'n' is no condition: n=100, n!=100, n<100"),
        (["=1"], ConfigError, "'=1' is no condition"),
        (["n>x"], ConfigError, "'n>x': a number was expected after '>'"),
        (["nn=1"], NameNotFoundError, "'nn=1': batch b has no parameter 'nn', did you mean 'n'?"),
        (["n=5"], ConfigError, "batch b has no point with n=5: its values of n are 1, 10, 1e2"),
        (["n>1000"], ConfigError, "batch b has no point with n>1000: its values of n are 1, 10,"),
        (["flags<3"], ConfigError, "batch b has no point with flags<3: its values of flags are"),
        (["n=1", "flags=-O0 -g"], ConfigError, "batch b has no point with n=1 and flags=-O0 -g"),
    ],
)
def test_what_selects_no_point_is_an_error_that_names_what_there_is(
    texts: list[str], error: type[KochiError], said: str
) -> None:
    with pytest.raises(error) as raised:
        Where.parse(texts).check(POINTS, "batch b")
    assert raised.value.message.startswith(said)


def test_of_many_values_some_are_named() -> None:
    points = [({"n": str(n)}, 0) for n in range(100)]
    with pytest.raises(ConfigError, match=r"are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 90 more$"):
        Where.parse(["n=100"]).check(points, "batch b")
