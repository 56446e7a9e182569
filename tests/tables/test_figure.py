"""Figures: what is shown where, intervals, numbers at the axes, and that nothing is interpreted."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
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
    is_geometric,
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


def drawn(
    runs: pandas.DataFrame, file: Path, title: str = "e b", note: str = "", **plot: Any
) -> str:
    """The text of the SVG, after the PNG and the SVG were written."""
    names = [name for name in runs.columns if name not in ("duplicate", "t")]
    quantities = {"t": plot.pop("quantity", Quantity("ms"))}
    files = [file.with_suffix(".png"), file.with_suffix(".svg")]
    draw(runs, names, Plot("t", "t", **plot), quantities, title, files, note)
    assert imread(files[0]).shape[0] > 300
    return files[1].read_text()


def words(svg: str) -> str:
    """What is written in a figure."""
    return " ".join(" ".join(re.findall("<!-- (.*?) -->", svg, re.DOTALL)).split())


# ---- what is shown where


def test_a_line_goes_on_across_points_without_a_value_and_the_caption_counts_them(
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
    counts = ["6 of 15 runs have no value." in words(svg) for svg in (whole, passed)]
    assert counts == [False, True]


@pytest.mark.parametrize(
    ("values", "plot", "expected"),
    [
        # The axis is the longest numeric parameter, and the next short ones are lines.
        (
            {"rng": "abcde", "n": [1, 2, 3], "seed": list(range(13)), "flags": ["-O2"]},
            {},
            ("seed", "rng", ("n",)),
        ),
        # What a plot names is kept, and what it leaves open has panels.
        (
            {"rng": "ab", "n": [1, 2, 3], "threads": [1, 2, 4, 8], "flags": ["-O2", "-O3"]},
            {"x": "n", "lines": "threads", "panels": ("flags",)},
            ("n", "threads", ("flags", "rng")),
        ),
        # Where selects points.
        ({"n": [1, 2, 3], "rng": "ab"}, {"where": {"n": ("2",)}}, ("rng", None, ())),
        # Two texts of one number are two places: as numbers, both would be at 1.1.
        ({"version": ["1.1", "1.10", "2"]}, {}, ("version", None, ())),
        ({"version": ["1.1", "1.10", "2"], "n": [1, 2]}, {}, ("n", "version", ())),
    ],
)
def test_places_are_chosen_for_what_a_plot_leaves_open(
    values: dict[str, Any], plot: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    chosen = arranged(values, **plot)
    assert (chosen.x, chosen.lines, chosen.panels) == expected


def test_parameters_that_follow_from_others_are_left_out_unless_they_are_named() -> None:
    runs = runs_of({"a": [1, 2], "b": [3, 5]})
    runs["total"] = [str(int(a) * int(b)) for a, b in zip(runs["a"], runs["b"], strict=True)]
    runs["label"] = [f"l{a}" for a in runs["a"]]
    for plot, expected in (
        (Plot("t", "t"), ("a", "b", ())),
        (Plot("t", "t", x="total", lines="label"), ("total", "label", ())),
    ):
        chosen = arrange(runs, ["a", "b", "total", "label"], plot)
        assert (chosen.x, chosen.lines, chosen.panels) == expected


@pytest.mark.parametrize("seed", range(20))
def test_no_place_in_a_figure_has_runs_of_two_points(seed: int) -> None:
    some = random.Random(seed)
    values = {name: range(some.choice([1, 2, 3, 5])) for name in "abcd"}
    runs = runs_of(values, duplicates=1)
    runs = runs[[some.random() < 0.8 or index == 0 for index in range(len(runs))]]
    total = [str(int(a) + int(b)) for a, b in zip(runs["a"], runs["b"], strict=True)]
    runs = runs.assign(sum=total)
    plot = Plot("t", "t", x=some.choice(["", "a", "sum"]), lines=some.choice(["", "b", "sum"]))
    plot = Plot("t", "t") if plot.x == plot.lines else plot
    chosen = arrange(runs, [*"abcd", "sum"], plot)
    places = [name for name in (chosen.x, chosen.lines, *chosen.panels) if name]
    assert not runs.duplicated(places).any() if places else len(runs) == 1


def test_too_many_lines_are_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="'n' has 13 values, and at most 12 lines can be told"):
        arranged({"n": list(range(13)), "m": [1, 2]}, lines="n")


# ---- the interval


def test_the_caption_says_which_interval_it_is() -> None:
    chosen = arranged({"n": [1, 2], "rng": "ab"}, where={"rng": ("b",)})

    def said(*counts: int, lacking: int = 0, panels: int = 1) -> str:
        spreads = [Spread(each, 1.0, 1.0, 1.0, each > 5) for each in counts]
        return caption(chosen, spreads, lacking, panels)

    assert said(1, 1) == "One run for each point. The same everywhere: rng=b."
    assert said(3, 3).startswith(
        "Symbols: median of 3 runs. Bars: from the smallest to the largest run. Dots: single runs."
    )
    assert "Bars: interval of the median, as in the table. Dots" in said(6, 8)
    assert "as in the table; where there is none, from the smallest to the largest" in said(4, 6)
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


@pytest.mark.parametrize(("key", "axis"), [("scale", "vertical"), ("x_scale", "horizontal")])
def test_a_logarithmic_axis_that_is_impossible_is_told(tmp_path: Path, key: str, axis: str) -> None:
    runs = runs_of({"n": [0, 1, 2]}, duplicates=1)
    runs["t"] -= 100
    text = drawn(runs, tmp_path / "f", **{key: "log"})
    assert f"The {axis} axis is linear, because some values are 0 or negative." in text


# ---- the files


def test_what_people_write_is_not_interpreted(tmp_path: Path) -> None:
    runs = runs_of({"n": ["$1", "$2$ & <b>", "ü/€"], "r^2_x$": ["a_{1}", "$\\frac{1$"]})
    quantity = Quantity("$\\mu$s", "<t> & $x_1$")
    text = drawn(runs, tmp_path / "f", quantity=quantity, title="$e$ \\alpha: t")
    for said in ("&lt;t&gt; &amp; $x_1$ ($\\mu$s)", "$2$ &amp; &lt;b&gt;", "$\\frac{1$", "$e$ \\a"):
        assert said in text


def test_the_same_runs_make_the_same_bytes_with_unit_and_caption(tmp_path: Path) -> None:
    runs = runs_of({"n": [1, 2], "r": "ab"})
    texts = [drawn(runs, tmp_path / name, note="2 of 8 runs have no result.") for name in "ab"]
    assert texts[0] == texts[1]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert "t (ms)" in texts[0]
    said = "Bars: from the smallest to the largest run. Dots: single runs. 2 of 8 runs have no"
    assert said in words(texts[0])


@pytest.mark.parametrize("lines", [3, 12])
def test_lines_differ_in_marker_and_style_also_without_colours(lines: int) -> None:
    plot = Plot("t", "t", x="n", lines="r")
    runs = runs_of({"n": [1, 2], "r": [f"r{each}" for each in range(lines)]})
    drawing = _Drawing(arrange(runs, ["n", "r"], plot), plot, None)
    looks = [drawing._look(number) for number in range(lines)]
    assert len({look["marker"] for look in looks}) == lines
    assert len({(look["color"], look["linestyle"]) for look in looks}) == lines


@pytest.mark.parametrize(
    "values",
    [[], [math.nan], [math.inf, 1.0], ["fast", "slow"], [-5.0, 0.0], [0.0], [1e200, 1e-200]],
)
def test_odd_measurements_have_a_figure_all_the_same(tmp_path: Path, values: list[Any]) -> None:
    rows = [{"n": "1", "duplicate": index, "t": value} for index, value in enumerate(values)]
    text = drawn(pandas.DataFrame(rows, columns=["n", "duplicate", "t"]), tmp_path / "f")
    is_empty = not [v for v in values if isinstance(v, float) and math.isfinite(v)]
    assert ("no run has a number" in text) == is_empty


def test_panels_are_those_that_exist_and_many_are_cut_which_is_told(tmp_path: Path) -> None:
    # All combinations of their values would be 10 ** 12.
    names = [f"p{index}" for index in range(12)]
    rows = [dict.fromkeys(names, str(each)) | {"x": str(each % 3)} for each in range(10)]
    runs = pandas.DataFrame([{**row, "duplicate": 0, "t": 1.0} for row in rows])
    text = drawn(runs, tmp_path / "f", x="x", lines="p0", panels=tuple(names[1:]))
    assert "p1=9, p2=9" in text.replace("&#10;", " ")
    runs = runs_of({"n": [1, 2], "r": "ab", "seed": list(range(25))}, duplicates=1)
    text = drawn(runs, tmp_path / "f", x="n", lines="r")
    assert "Only 24 of 25 combinations of seed are shown; choose some with where." in words(text)
    assert ("seed=23" in text, "seed=24" in text) == (True, False)
