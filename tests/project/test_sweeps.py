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
from snakemake_kochi.project.sweeps import Given


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
    "params",
    [
        "{a: {range: 1000000000}}",
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


def test_the_parameters_that_only_some_points_have_vary() -> None:
    assert grid(keys("params: {s: {a: {x: 1}, b: {}}, t: 5}")).varying == ("s", "x")


@pytest.mark.parametrize(
    "batch",
    [
        "grids: [{params: {n: [1, {n: 2}]}}]",
        "grids: [{exclude: [{n: [{}]}], params: {n: 1}}, 5]",
        "params: {n: [{machines: local}]}\nexclude: [{n: [{x: 1}]}, 3]",
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


# ---- zip and exclude


# ---- conditions


# ---- several grids


@pytest.mark.parametrize("zipped", ["", "zip: [a, b]"])
def test_nothing_is_substituted_in_the_values_of_a_file(zipped: str) -> None:
    text = keys(f"params: {{c: 5, a: {{csv: t.csv}}, b: {{csv: t.csv}}}}\n{zipped}")
    given = Given("local", tables={"t.csv": "a,b\n$c,`1 + 1`\n"})
    experiment = load_experiment(
        "e.yaml", f"run: {{script: x}}\nbatches:\n  b:\n{text}", None, given
    )
    (point,) = experiment.grid("b", "local").points
    assert dict(point.parameters) == {"c": "5", "a": "$c", "b": "`1 + 1`"}


def test_the_lines_of_a_file_of_commands_are_points_beside_other_parameters() -> None:
    text = "    tasks: t\n    params: {c: [1, 2]}\n    when: $task < 4"
    given = Given("local", tables={"t": "# first\n  echo $c `date`\t\r\n\nb\nb\n"})
    text = f"run: x $KOCHI_PARAM_COMMAND $KOCHI_PARAM_C\nbatches:\n  b:\n{text}"
    grid = load_experiment("e.yaml", text, None, given).grid("b", "local")
    assert [tuple(point.parameters.values()) for point in grid.points] == [
        ("1", "2", "echo $c `date`"),
        ("2", "2", "echo $c `date`"),
    ]
    assert [point.artifacts[0].dest for point in grid.points] == [
        "e/b/c=1_task=2_0.log",
        "e/b/c=2_task=2_0.log",
    ]
    assert len(grid.skipped) == 4


@pytest.mark.parametrize(
    ("content", "said"), [("# x\n\n", "t: there is no command in it"), ("a\n\0\n", "t:2: a value")]
)
def test_what_is_no_file_of_commands_is_told(content: str, said: str) -> None:
    given = Given("local", tables={"t": content})
    experiment = load_experiment("e.yaml", "tasks: t\nrun: x", None, given)
    with pytest.raises(ConfigError, match=said):
        experiment.grid("default", "local")
