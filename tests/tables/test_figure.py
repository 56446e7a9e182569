"""Figures: what is shown where, intervals, numbers at the axes, and that nothing is interpreted."""

from __future__ import annotations

import math
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas
import pytest
from matplotlib.image import imread

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.plots import Plot, Quantity
from snakemake_kochi.tables.figure import (
    Arrangement,
    Spread,
    _Drawing,
    arrange,
    caption,
    draw,
    independent_parameters,
    is_geometric,
    spread_of,
)


def runs_of(values: Mapping[str, Sequence[Any]], duplicates: int = 3) -> pandas.DataFrame:
    """Runs of each combination of values; the metric `t` differs between all of them."""
    rows: list[dict[str, Any]] = []
    for combination in product(*values.values()):
        parameters = dict(zip(values, map(str, combination), strict=True))
        for duplicate in range(duplicates):
            rows.append({**parameters, "duplicate": duplicate, "t": 100.0 + len(rows)})
    return pandas.DataFrame(rows)


def arranged(values: Mapping[str, Sequence[Any]], **chosen: Any) -> Arrangement:
    return arrange(runs_of(values), list(values), Plot("t", "t", **chosen))


def drawn(runs: pandas.DataFrame, file: Path, plot: Plot | None = None, **more: Any) -> str:
    """The text of the SVG, after the PNG and the SVG were written."""
    names = [name for name in runs.columns if name not in ("duplicate", "t")]
    quantities = {"t": more.pop("quantity", Quantity("ms"))}
    files = [file.with_suffix(".png"), file.with_suffix(".svg")]
    draw(runs, names, plot or Plot("t", "t"), quantities, more.pop("title", "e b"), files, **more)
    assert imread(files[0]).shape[0] > 300
    return files[1].read_text()


# ---- what is shown where


def test_a_line_goes_on_across_points_without_a_value_and_the_caption_names_them(
    tmp_path: Path,
) -> None:
    runs = runs_of({"n": [1, 2, 3, 4, 5]})
    whole = drawn(runs, tmp_path / "whole")
    # Between two gaps, the line of the point 3 would vanish.
    runs.loc[runs["n"].isin(["2", "4"]), "t"] = math.nan
    passed = drawn(runs, tmp_path / "passed")
    line = r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #0072b2'
    corners = max(len(re.findall("[ML] ", d)) for d in re.findall(line, passed))
    pieces = [max(d.count("M ") for d in re.findall(line, svg)) for svg in (whole, passed)]
    assert (pieces, corners) == ([1, 1], 3)
    texts = [" ".join(re.findall("<!-- (.*?) -->", svg, re.DOTALL)) for svg in (whole, passed)]
    said = "6 of 15 runs have no value."
    also = "Lines pass over points without a value, at n=2, 4."
    assert [(said in text, also in " ".join(text.split())) for text in texts] == [
        (False, False),
        (True, True),
    ]


def test_the_axis_is_the_longest_numeric_parameter_and_the_next_short_ones_are_lines() -> None:
    values = {"rng": "abcde", "n": [1, 2, 3], "seed": list(range(13)), "flags": ["-O2"]}
    chosen = arranged(values)
    assert (chosen.x, chosen.lines, chosen.panels) == ("seed", "rng", ("n",))
    assert chosen.fixed == (("flags", "-O2"),)


def test_what_a_plot_names_is_kept_and_what_it_leaves_open_has_panels() -> None:
    values = {"rng": "ab", "n": [1, 2, 3], "threads": [1, 2, 4, 8], "flags": ["-O2", "-O3"]}
    chosen = arranged(values, x="n", lines="threads", panels=("flags",))
    assert (chosen.x, chosen.lines, chosen.panels) == ("n", "threads", ("flags", "rng"))


def test_parameters_that_follow_from_others_are_left_out_unless_they_are_named() -> None:
    runs = runs_of({"a": [1, 2], "b": [3, 5]})
    runs["total"] = [str(int(a) * int(b)) for a, b in zip(runs["a"], runs["b"], strict=True)]
    runs["label"] = [f"l{a}" for a in runs["a"]]
    names = ["a", "b", "total", "label"]
    assert independent_parameters(runs, names) == ["a", "b"]
    chosen = arrange(runs, names, Plot("t", "t", x="total", lines="label"))
    assert (chosen.x, chosen.lines, chosen.panels) == ("total", "label", ())


def test_where_selects_points_and_the_caption_names_what_is_left() -> None:
    values = {"n": [1, 2, 3], "rng": "ab"}
    chosen = arranged(values, where={"n": ("2", "3"), "rng": ("b",)})
    assert (len(chosen.runs), chosen.x, chosen.lines) == (6, "n", None)
    assert "The same everywhere: rng=b." in caption(chosen, [], 0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_no_place_in_a_figure_has_runs_of_two_points(seed: int) -> None:
    some = random.Random(seed)
    values = {name: range(some.choice([1, 2, 3, 5])) for name in "abcd"}
    runs = runs_of(values, duplicates=1)
    runs = runs[[some.random() < 0.8 or index == 0 for index in range(len(runs))]]
    runs = runs.assign(
        sum=[str(int(a) + int(b)) for a, b in zip(runs["a"], runs["b"], strict=True)]
    )
    plot = Plot("t", "t", x=some.choice(["", "a", "sum"]), lines=some.choice(["", "b", "sum"]))
    if plot.x == plot.lines:
        plot = Plot("t", "t")
    chosen = arrange(runs, [*"abcd", "sum"], plot)
    places = [name for name in (chosen.x, chosen.lines, *chosen.panels) if name]
    assert not runs.duplicated(places).any() if places else len(runs) == 1


def test_two_texts_of_one_number_are_two_places() -> None:
    chosen = arranged({"version": ["1.1", "1.10", "2"]})
    assert chosen.x == "version"
    # Both would be at 1.1, so they are categories.
    assert arranged({"version": ["1.1", "1.10", "2"], "n": [1, 2]}).x == "n"


def test_too_many_lines_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="'n' has 13 values, and at most 12 lines can be told"):
        arranged({"n": list(range(13)), "m": [1, 2]}, lines="n")


# ---- the interval


def test_fewer_than_six_runs_go_from_the_smallest_to_the_largest() -> None:
    assert spread_of([3.0]) == Spread(1, 3.0, 3.0, 3.0)
    assert spread_of([5.0, 1.0, 2.0, 9.0]) == Spread(4, 3.5, 1.0, 9.0)


@pytest.mark.parametrize(
    ("count", "rank"),
    # Table A3 of W. J. Conover, and tables of the sign test: the k-th smallest and largest.
    [(6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (25, 8), (50, 18), (100, 40)],
)
def test_the_interval_is_that_of_the_tables_of_order_statistics(count: int, rank: int) -> None:
    values = [float(each) for each in range(1, count + 1)]
    random.Random(1).shuffle(values)
    spread = spread_of(values)
    assert (spread.low, spread.high) == (rank, count + 1 - rank)
    assert spread.median == statistics.median(values)


def test_the_interval_contains_the_median_as_often_as_the_caption_says() -> None:
    some = random.Random(7)
    hits = 0
    for _ in range(2000):
        spread = spread_of([some.expovariate(1) for _ in range(15)])
        hits += spread.low <= math.log(2) <= spread.high
    assert hits / 2000 >= 0.95


def test_ten_thousand_duplicates_have_an_interval() -> None:
    spread = spread_of([float(each) for each in range(10_000)])
    assert 4890 < spread.low < spread.median < spread.high < 5110


def test_the_caption_says_which_interval_it_is() -> None:
    chosen = arranged({"n": [1, 2]})

    def said(*counts: int, lacking: int = 0, panels: int = 1) -> str:
        return caption(chosen, [Spread(each, 1.0, 1.0, 1.0) for each in counts], lacking, panels)

    assert said(1, 1) == "One run for each point."
    assert said(3, 3) == (
        "Symbols: median of 3 runs. Bars: from the smallest to the largest run. Dots: single runs."
    )
    assert "95 % confidence interval of the median (order statistics). Dots" in said(6, 8)
    assert "with fewer than 6 runs, from the smallest" in said(4, 6)
    assert "2 of 6 runs have no value." in said(3, lacking=2)
    assert "Only 24 of 30 combinations of" in said(3, panels=30)


# ---- axes


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 4], True),
        ([1, 2, 4, 8, 16, 24], True),
        ([32, 1000], False),
        ([1, 2, 3], False),
        ([10, 20, 30, 40], False),
        ([0, 1, 2, 4], False),
    ],
)
def test_values_that_grow_by_a_factor_get_a_logarithmic_axis(
    values: list[float], expected: bool
) -> None:
    assert is_geometric(values) == expected


# ---- the files


def test_what_people_write_is_not_interpreted(tmp_path: Path) -> None:
    runs = runs_of({"n": ["$1", "$2$ & <b>", "ü/€"], "r^2_x$": ["a_{1}", "$\\frac{1$"]})
    quantity = Quantity("$\\mu$s", "<t> & $x_1$")
    text = drawn(runs, tmp_path / "f", quantity=quantity, title="$e$ \\alpha: t")
    for said in ("&lt;t&gt; &amp; $x_1$ ($\\mu$s)", "$2$ &amp; &lt;b&gt;", "$\\frac{1$", "$e$ \\a"):
        assert said in text


def test_the_unit_is_at_the_axis_and_the_caption_in_the_figure(tmp_path: Path) -> None:
    text = drawn(runs_of({"n": [1, 2]}), tmp_path / "f", note="2 of 8 runs have no result.")
    assert "t (ms)" in text
    assert "Bars: from the smallest to the largest run. Dots: single runs. 2 of 8 runs" in text


def test_the_same_runs_make_the_same_bytes(tmp_path: Path) -> None:
    runs = runs_of({"n": [1, 2], "r": "ab"})
    for name in ("one", "two"):
        drawn(runs, tmp_path / name)
    for suffix in (".png", ".svg"):
        made = [(tmp_path / name).with_suffix(suffix).read_bytes() for name in ("one", "two")]
        assert made[0] == made[1]


@pytest.mark.parametrize("lines", [3, 12])
def test_lines_differ_in_marker_and_style_also_without_colours(tmp_path: Path, lines: int) -> None:
    runs = runs_of({"n": [1, 2], "r": [f"r{each}" for each in range(lines)]})
    plot = Plot("t", "t", x="n", lines="r")
    drawing = _Drawing(arrange(runs, ["n", "r"], plot), plot)
    looks = [drawing._look(number) for number in range(lines)]
    assert len({look["marker"] for look in looks}) == lines
    assert len({(look["color"], look["linestyle"]) for look in looks}) == lines


@pytest.mark.parametrize(
    "values",
    [
        [],
        [float("nan")],
        [float("inf"), 1.0],
        ["fast", "slow"],
        [-5.0, 0.0],
        [0.0],
        [1e200, 1e-200],
    ],
)
def test_odd_measurements_have_a_figure_all_the_same(tmp_path: Path, values: list[Any]) -> None:
    rows = [{"n": "1", "duplicate": index, "t": value} for index, value in enumerate(values)]
    runs = pandas.DataFrame(rows, columns=["n", "duplicate", "t"])
    text = drawn(runs, tmp_path / "f")
    is_empty = not [v for v in values if isinstance(v, float) and math.isfinite(v)]
    assert ("no run has a number" in text) == is_empty


@pytest.mark.parametrize(("key", "axis"), [("scale", "vertical"), ("x_scale", "horizontal")])
def test_a_logarithmic_axis_that_is_impossible_is_told(tmp_path: Path, key: str, axis: str) -> None:
    runs = runs_of({"n": [0, 1, 2]}, duplicates=1)
    runs["t"] -= 100
    text = drawn(runs, tmp_path / "f", replace(Plot("t", "t"), **{key: "log"}))
    assert f"The {axis} axis is linear, because some values are 0 or negative." in text


def test_panels_of_many_parameters_are_those_that_exist(tmp_path: Path) -> None:
    # All combinations of their values would be 10 ** 12.
    names = [f"p{index}" for index in range(12)]
    rows = [dict.fromkeys(names, str(each)) | {"x": str(each % 3)} for each in range(10)]
    runs = pandas.DataFrame([{**row, "duplicate": 0, "t": 1.0} for row in rows])
    text = drawn(runs, tmp_path / "f", Plot("t", "t", x="x", lines="p0", panels=tuple(names[1:])))
    assert "p1=9, p2=9" in text.replace("&#10;", " ")


def test_many_panels_are_cut_and_the_figure_says_so(tmp_path: Path) -> None:
    runs = runs_of({"n": [1, 2], "r": "ab", "seed": list(range(25))}, duplicates=1)
    text = drawn(runs, tmp_path / "f", Plot("t", "t", x="n", lines="r"))
    assert "Only 24 of 25 combinations of seed are shown; choose some with where." in text
    assert "seed=23" in text
    assert "seed=24" not in text
