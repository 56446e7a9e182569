"""Sweeps: series, values with their own parameters, zips, conditions, and several grids."""

from __future__ import annotations

import itertools
import textwrap
import time
from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Grid
from snakemake_kochi.project.parameters import Given


def grid(batch: str, top: str = "") -> Grid:
    """The grid of a batch with these keys."""
    text = f"run: {{script: x}}\n{top}\nbatches:\n  b:\n{batch}"
    return load_experiment("e.yaml", text, None).grid("b", "local")


def keys(text: str) -> str:
    """These keys of a batch, at their place in the file."""
    return textwrap.indent(textwrap.dedent(text).strip(), "    ")


def points(text: str, top: str = "") -> list[dict[str, str]]:
    return [dict(point.parameters) for point in grid(keys(text), top).points]


def values(written: str, name: str = "a") -> list[str]:
    return [point[name] for point in points(f"params: {{{name}: {written}}}")]


def said(text: str, top: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        grid(keys(text), top)
    return str(caught.value)


# ---- series


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ("{range: 3}", ["0", "1", "2"]),
        ("{range: [1, 4]}", ["1", "2", "3"]),
        ("{range: [10, 0, -4]}", ["10", "6", "2"]),
        ("{linspace: [0, 1, 5]}", ["0", "0.25", "0.5", "0.75", "1"]),
        ("{linspace: [0, 0.3, 4]}", ["0", "0.1", "0.2", "0.3"]),
        ("{linspace: [7, 9, 1]}", ["7"]),
        ("{geom: [1, 1000, 4]}", ["1", "10", "100", "1000"]),
        ("{geom: [0.5, 8, 3]}", ["0.5", "2", "8"]),
        ("{igeom: [1, 100, 5]}", ["1", "3", "10", "32", "100"]),
        ("{igeom: [1, 4, 9]}", ["1", "2", "3", "4"]),
        ("{igeom: [64, 1, 3]}", ["64", "8", "1"]),
        ("{pow2: 8}", ["1", "2", "4", "8"]),
        ("{pow2: [4, 96]}", ["4", "8", "16", "32", "64"]),
        ("{pow2: [5, 8]}", ["8"]),
        ("{pow2: [1, '`2 * 3`']}", ["1", "2", "4"]),
        ("{pow2: [2 ** 2, 'max(3, 9)']}", ["4", "8"]),
    ],
)
def test_a_series_makes_values_from_a_few_numbers(series: str, expected: list[str]) -> None:
    assert values(series) == expected


def test_a_series_may_use_parameters_with_one_value() -> None:
    top = "default_params: {nodes: 2, cores: 8, total: '`$nodes * $cores`'}"
    found = points("params: {n: {pow2: [$nodes, $total]}}", top)
    assert [point["n"] for point in found] == ["2", "4", "8", "16"]


def test_a_series_may_be_meant_for_a_machine() -> None:
    batch = "params: {a: [{value: [1, 2]}, {value: {range: [5, 7]}, machines: local}]}"
    assert [point["a"] for point in points(batch)] == ["5", "6"]


@pytest.mark.parametrize(
    "params",
    [
        "{a: {range: 1000000000}}",
        "{a: {linspace: [0, 1, 1000000000]}}",
        "{a: {range: 100000}, b: {range: 10000}}",
        "{a: {x: {b: {range: 1000}}, y: {b: {range: 1000000}}}, c: {range: 999}}",
    ],
)
def test_a_billion_points_are_told_before_they_are_made(params: str) -> None:
    began = time.process_time()
    message = said(f"params: {params}\nexclude: [{{a: 7}}]\nwhen: $a == 3")
    assert "points; at most 1000000 are possible" in message
    assert time.process_time() - began < 1


# ---- values with their own parameters


def test_a_value_brings_its_own_parameters_as_in_the_documentation_of_execos_sweep() -> None:
    """The second example of execo_engine.sweep.sweep; its names have spaces, ours have none."""
    found = points(
        """
        params:
          param1: [a, b]
          param2:
            1:
              param1_1: [x, y]
              param1_2: [0.0, 1.0]
            2:
              param2_1: [-10, 10]
        """
    )
    expected = [
        {"param1": one, "param2": "1", "param1_1": x, "param1_2": number}
        for one in "ab"
        for x in "xy"
        for number in ("0.0", "1.0")
    ] + [{"param1": one, "param2": "2", "param2_1": x} for one in "ab" for x in ("-10", "10")]
    assert sorted(map(sorted, map(dict.items, found))) == sorted(
        map(sorted, map(dict.items, expected))
    )


def test_values_without_parameters_of_their_own_may_stand_beside_others() -> None:
    assert points("params: {s: {a: {x: [1, 2]}, b: {}, c: }}") == [
        {"s": "a", "x": "1"},
        {"s": "a", "x": "2"},
        {"s": "b"},
        {"s": "c"},
    ]


def test_parameters_of_values_are_nested_further_and_have_series_and_references() -> None:
    assert points(
        "params: {n: 3, s: {a: {m: {p: {k: {range: 2}}, q: {}}, z: '`$n * 2`'}, range: {}}}"
    ) == [
        {"n": "3", "s": "a", "m": "p", "k": "0", "z": "6"},
        {"n": "3", "s": "a", "m": "p", "k": "1", "z": "6"},
        {"n": "3", "s": "a", "m": "q", "z": "6"},
        {"n": "3", "s": "range"},
    ]


def test_a_default_parameter_counts_for_the_points_without_a_value_of_their_own() -> None:
    batch = "params: {s: {a: {x: [1, 2]}, b: {}}, double: '`2 * $x`'}"
    assert [(p["s"], p["x"], p["double"]) for p in points(batch, "default_params: {x: 7}")] == [
        ("a", "1", "2"),
        ("a", "2", "4"),
        ("b", "7", "14"),
    ]


def test_the_parameters_that_only_some_points_have_vary() -> None:
    assert grid(keys("params: {s: {a: {x: 1}, b: {}}, t: 5}")).varying == ("s", "x")


@pytest.mark.parametrize(
    "batch",
    [
        "grids: [{params: {n: [1, {n: 2}]}}]",
        "grids: [{include: [{n: [{}]}], params: {n: 1}}, 5]",
        "params: {n: [{machines: local}]}\ninclude: [{n: [{x: 1}]}, 3]",
        "params: {n: {a: {x: {range: {}}}}}\nexclude: [{n: {}}, x]\nzip: {n: x}\nwhen: {n: 1}",
        "params: {n: {a: {x: [[1]]}}}\nskip_if: [[1], {condition: {}}]\nzip: [[[n]]]",
        "grids: [{grids: []}]",
    ],
)
def test_a_wrong_shape_is_an_error_and_nothing_worse(batch: str) -> None:
    assert said(batch).startswith("e.yaml:")


# ---- the practical session of execo


CLUSTERS = """
machines:
  petitprince: {scheduler: slurm, facts: {cores: 12}}
  edel: {scheduler: slurm, facts: {cores: 8}}
  paravance: {scheduler: slurm, facts: {cores: 16}}
  stremi: {scheduler: slurm, facts: {cores: 24}}
"""
LU = """
default_params: {n_nodes: 4, max_core: 96}
batches:
  lu:
    params:
      cluster: $machine.name
      n_core: {pow2: [$n_nodes, $max_core]}
      size: [A, B, C]
    skip_if:
      condition: $n_core > $machine.cores * $n_nodes
      reason: "`$n_nodes * $machine.cores` cores only"
    artifacts:
      - {type: stdout, dest: "${cluster}/${n_core}_${size}.out"}
run:
  depend_params: [n_core, size]
  script: $KOCHI_LAUNCH "bin/lu.$KOCHI_PARAM_SIZE.$KOCHI_PARAM_N_CORE"
"""


def test_the_parameters_of_execos_practical_session(tmp_path: Path) -> None:
    """The class mpi_bench of the "Execo Practical Session": clusters, the powers of two from
    n_nodes to max_core, and sizes; combinations with more cores than the cluster has are skipped.
    There, one engine visits all clusters; here, each machine has its part of the sweep."""
    machines = load_project(tmp_path, CLUSTERS).machines
    clusters = [name for name in machines if name != "local"]
    nb_cores = {name: int(machines[name].facts["cores"]) for name in clusters}
    n_nodes, max_core = 4, 4 * max(nb_cores.values())
    powers = [2**i for i in range(20) if n_nodes <= 2**i < max_core]
    assert powers == [4, 8, 16, 32, 64]
    combinations = list(itertools.product(clusters, powers, "ABC"))
    skipped = {each for each in combinations if each[1] > nb_cores[each[0]] * n_nodes}

    run, left = [], []
    for name in clusters:
        given = Given(name, machines[name].facts)
        found = load_experiment("lu.yaml", LU, None, given).grid("lu", name)
        run += [point.parameters for point in found.points]
        left += found.skipped
    assert [(p["cluster"], int(p["n_core"]), p["size"]) for p in run] == [
        each for each in combinations if each not in skipped
    ]
    assert {
        (e.parameters["cluster"], int(e.parameters["n_core"]), e.parameters["size"], e.reason)
        for e in left
    } == {(*each, f"{n_nodes * nb_cores[each[0]]} cores only") for each in skipped}
    assert len(skipped) == 6


# ---- zip, exclude, include


def test_zipped_parameters_go_side_by_side_and_may_repeat_values() -> None:
    found = points("params: {a: [1, 1, 2], s: [x, y], b: [3, 4, 4]}\nzip: [a, b]")
    assert [(p["a"], p["b"], p["s"]) for p in found] == [
        ("1", "3", "x"),
        ("1", "3", "y"),
        ("1", "4", "x"),
        ("1", "4", "y"),
        ("2", "4", "x"),
        ("2", "4", "y"),
    ]


def test_several_groups_are_zipped() -> None:
    params = "params: {a: [1, 2], b: {range: 2}, c: [x, y], d: [5, 6]}"
    found = points(f"{params}\nzip: [[a, b], [c, d]]")
    assert [(p["a"] + p["b"], p["c"] + p["d"]) for p in found] == [
        ("10", "x5"),
        ("10", "y6"),
        ("21", "x5"),
        ("21", "y6"),
    ]


def test_excluded_combinations_are_left_out_and_included_ones_added() -> None:
    found = points(
        """
        params: {n: [1, 2], t: [1, 2, 4]}
        exclude:
          - {n: 1, t: [2, 4]}
          - {t: '`2 * 2`'}
        include:
          - {n: 8}
          - {n: 9, t: 4}
        """
    )
    assert [(p["n"], p["t"]) for p in found] == [
        ("1", "1"),
        ("2", "1"),
        ("2", "2"),
        ("8", "1"),
        ("8", "2"),
        ("8", "4"),
        ("9", "4"),
    ]


def test_an_excluded_value_that_no_point_has_is_a_remark() -> None:
    batch = (
        "params: {n: [100, 200], t: {range: 3}, m: $n}\nexclude: [{n: 10, t: 5, m: 9}, {n: 200}]"
    )
    text = f"run: {{script: x}}\nbatches:\n  b:\n{keys(batch)}"
    remarks = [each for each in load_experiment("e.yaml", text, None).remarks if "never" in each]
    assert remarks == ["e.yaml:5: batches.b.exclude[0].n: 'n' is never '10', did you mean '100'?"]


def test_an_included_entry_of_zipped_parameters_names_all_of_them() -> None:
    found = points("params: {n: [1, 2], t: [1, 2]}\nzip: [n, t]\ninclude: [{n: [3, 4], t: [5, 5]}]")
    assert [(p["n"], p["t"]) for p in found] == [("1", "1"), ("2", "2"), ("3", "5"), ("4", "5")]


# ---- conditions


def test_skipped_points_are_kept_with_their_reasons() -> None:
    found = grid(
        keys(
            """
            params: {n: [1, 10], t: [1, 4]}
            duplicates: 2
            when: $n >= 10 or $t == 1
            skip_if:
              condition: "`$n > 5 and $t > 1`"
              reason: "${n} would be too much for `2 * $t` threads"
            """
        )
    )
    assert [dict(point.parameters) for point in found.points[::2]] == [
        {"n": "1", "t": "1"},
        {"n": "10", "t": "1"},
    ]
    assert [(dict(each.parameters), each.reason) for each in found.skipped] == [
        ({"n": "1", "t": "4"}, "`$n >= 10 or $t == 1` is false with n=1, t=4"),
        ({"n": "10", "t": "4"}, "10 would be too much for 8 threads"),
    ]


def test_of_several_conditions_the_first_that_applies_is_the_reason() -> None:
    found = grid(
        keys("params: {n: [1, 2, 3, 4]}\nskip_if: [$n > 3, {condition: $n > 2, reason: r}]")
    )
    assert [each.reason for each in found.skipped] == ["r", "`$n > 3` is true with n=4"]


def test_a_condition_about_a_parameter_of_a_value_counts_for_its_points_only() -> None:
    assert points("params: {s: {a: {x: [1, 2]}, b: {}}}\nwhen: $x > 1") == [
        {"s": "a", "x": "2"},
        {"s": "b"},
    ]


def test_a_batch_may_have_skipped_points_only() -> None:
    found = grid(keys("params: {n: [1, 2]}\nskip_if: $n > 0"))
    assert (found.points, len(found.skipped)) == ((), 2)


# ---- several grids


def test_several_grids_share_what_the_batch_has() -> None:
    found = grid(
        keys(
            """
            params: {seed: [1, 2], m: x}
            when: $seed < 2 or $n < 10
            grids:
              - params: {n: [1, 20]}
              - params: {n: 5, m: [y, z]}
                exclude: [{m: z, seed: 2}]
            """
        )
    )
    assert [tuple(p.parameters.values()) for p in found.points] == [
        ("1", "x", "1"),
        ("1", "x", "20"),
        ("2", "x", "1"),
        ("1", "y", "5"),
        ("1", "z", "5"),
        ("2", "y", "5"),
    ]
    assert [dict(each.parameters) for each in found.skipped] == [{"seed": "2", "m": "x", "n": "20"}]


def test_a_point_that_one_grid_skips_and_another_one_has_is_run() -> None:
    found = grid(
        keys(
            """
            grids:
              - {params: {n: {range: 4}}, when: $n < 2}
              - {params: {n: {range: [1, 5]}}, skip_if: $n < 3}
            """
        )
    )
    assert [point.parameters["n"] for point in found.points] == ["0", "1", "3", "4"]
    assert [(e.parameters["n"], e.reason) for e in found.skipped] == [
        ("2", "`$n < 2` is false with n=2")
    ]


def test_a_parameter_called_code_is_remarked_upon_unless_a_script_sees_it() -> None:
    text = """\
    batches:
      all:
        params: {code: [main, feature]}
        artifacts: [{type: stdout, dest: "${code}.log"}]
    run: {script: x, depend_params: [SEEN]}
    """
    unseen, seen = (textwrap.dedent(text).replace("SEEN", name) for name in ("", "code"))
    (said,) = load_experiment("e.yaml", unseen, None).remarks
    assert "write 'code:' beside 'params:'" in said
    assert list(load_experiment("e.yaml", seen, None).remarks) == []
