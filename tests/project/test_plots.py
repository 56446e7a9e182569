"""The keys `plots` and `metrics`."""

from __future__ import annotations

import pytest

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.plots import Plot, Quantity, stems

TEXT = """
default_params: {threads: 1, n: 1, flags: -O2}
metrics:
  time: {pattern: 'time (\\d+)', unit: ms, label: Time}
  misses: 'misses (\\d+)'
plots: [{metric: misses, x: threads}]
batches:
  common:
    params: {threads: [1, 2], n: [1, 2, 3]}
    artifacts: &kept [{type: stdout, dest: 'e/${batch_name}/${threads}_${n}_${flags}.log'}]
  own:
    params: {threads: [1, 2]}
    artifacts: *kept
    metrics: {time: 'time: (\\d+)', own: {pattern: 'own (\\d+)', unit: K}}
    plots:
      - {metric: own, lines: threads, panels: [n, flags], scale: log, where: {threads: [1, 2]}}
      - {name: near, metric: own, y_from_zero: no, x_scale: linear}
  silent: {artifacts: []}
run: {depend_params: [threads, n, flags], script: x}
"""


def experiment(text: str = TEXT) -> Experiment:
    return load_experiment("e.yaml", text, None)


def said(own: str, params: str = "threads: [1, 2]") -> list[str]:
    text = TEXT.partition("  own:")[0].replace("plots: [{metric: misses, x: threads}]\n", "")
    text += f"  b:\n    params: {{{params}}}\n    artifacts: *kept\n    plots: {own}\nrun: "
    text += "{depend_params: [threads, n, flags], script: x}\n"
    with pytest.raises(ConfigError) as caught:
        experiment(text).grid("b", "local")
    return str(caught.value).splitlines()


def test_a_metric_has_a_unit_and_a_label_and_may_be_a_plain_expression() -> None:
    grid = experiment().grid("common", "local")
    assert grid.metrics == {"time": "time (\\d+)", "misses": "misses (\\d+)"}
    assert grid.quantities == {
        "run_seconds": Quantity("s"),
        "time": Quantity("ms", "Time"),
        "misses": Quantity(),
    }


def test_the_metrics_of_a_batch_replace_those_of_the_file_with_their_units() -> None:
    grid = experiment().grid("own", "local")
    assert grid.metrics["time"] == "time: (\\d+)"
    assert grid.quantities["time"] == Quantity()
    assert grid.quantities["own"] == Quantity("K")


def test_a_batch_has_the_plots_of_the_file_or_its_own() -> None:
    assert experiment().grid("common", "local").plots == (Plot("misses", "misses", x="threads"),)
    assert experiment().grid("own", "local").plots == (
        Plot(
            *("own", "own"),
            lines="threads",
            panels=("n", "flags"),
            where={"threads": ("1", "2")},
            scale="log",
        ),
        Plot("near", "own", x_scale="linear", y_from_zero=False),
    )


def test_without_plots_there_is_one_for_each_metric_or_the_seconds_of_the_runs() -> None:
    given = TEXT.replace("plots: [{metric: misses, x: threads}]\n", "")
    both = (Plot("time", "time"), Plot("misses", "misses"))
    assert experiment(given).grid("common", "local").plots == both
    # Of the file's plots none is of a metric that this batch has.
    assert experiment().grid("silent", "local").plots == (Plot("run_seconds", "run_seconds"),)


def test_the_code_is_a_parameter_of_plots() -> None:
    given = TEXT.replace("lines: threads, panels: [n, flags]", "lines: code").replace(
        "  own:\n", "  own:\n    code: [main, working-tree]\n"
    )
    assert experiment(given).batches["own"].plots[0].lines == "code"


def test_each_plot_has_files_of_its_own_that_no_other_batch_can_have() -> None:
    plots = [Plot(name, "t") for name in ("t", "a b/c", "x" * 300)]
    first, second, third = stems("strong", plots)
    assert (first, second) == ("strong", "strong,a%20b%2Fc")
    assert third.startswith("strong,xxxx")
    assert len(third) < 60
    text = TEXT.replace("'e/${batch_name}/$", "'e/own,near.svg/$")
    said = r"'e/own,near\.svg' \(the table, plot or check of batch 'own'\) would be both a file and"
    with pytest.raises(ConfigError, match=said):
        experiment(text).grid("own", "local")


def test_too_many_lines_are_told_before_anything_runs() -> None:
    many = f"threads: [1, 2], n: {list(range(13))}"
    assert said("[{metric: time, lines: n}]", many) == [
        "e.yaml:13: batches.b.plots[0].lines: 'n' has 13 values, and at most 12 lines can be told "
        "apart; use it for x or panels, or choose some values: where: {n: [...]}"
    ]
    chosen = f"[{{metric: time, lines: n, where: {{n: {list(range(12))}, threads: 5}}}}]"
    assert "no point has threads = '5'" in said(chosen, many)[0]
