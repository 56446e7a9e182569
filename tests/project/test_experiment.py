"""Experiments: what the file says, and single points."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.grid import Phase
from snakemake_kochi.project.recipes import Project, Requirement
from snakemake_kochi.project.shape import is_experiment

EXAMPLE = """
depends: [{name: massivethreads, recipe: release}, {name: jemalloc, recipe: v5, machines: [local]}]
default_params: {n_workers: 0, n_input: 35, debug: 0}
default_name: fib
default_queue: fib-queue
default_duplicates: 3
sources: ["/*.c", include/]
metrics: {time: 'Execution Time: (\\d+) ns'}
batches:
  batch_test:
    name: fib_${batch_name}
    queue: q_${batch_name}
    duplicates: 1
    depends: [{name: massivethreads, recipe: debug, machines: spica}]
    metrics: {result: '= (\\d+)'}
    artifacts: [{type: stdout, dest: 'fib/${duplicate}.log'}]
    build: {depend_params: [n_input]}
    run: {script: ./other, exclusive: false}
  plain: {artifacts: []}
build: {depend_params: [debug], script: [make, make check]}
run: {depend_params: [n_workers, n_input], script: ./fib, strict: false}
"""
PROJECT = """
dependencies:
  massivethreads: {script: make, recipes: [{name: release}, {name: debug}]}
  jemalloc: {script: make, recipes: [{name: v5}]}
"""


def project() -> Project:
    return load_project(Path("/p"), PROJECT)


def experiment(text: str = EXAMPLE) -> Experiment:
    return load_experiment("bench/fib.yaml", text, project())


def said(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        experiment(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("file", "name"),
    [("bench/fib.yaml", "fib"), ("my-fib.v2.yaml", "my_fib_v2"), ("2d.yml", "_2d")],
)
def test_an_experiment_is_named_by_its_file_as_an_identifier(file: str, name: str) -> None:
    found = load_experiment(file, "run: {script: x}", None)
    assert (found.name, found.file) == (name, file)


def test_an_experiment_has_what_the_file_says() -> None:
    found = experiment()
    assert found.job_name == "fib"
    assert found.queue == "fib-queue"
    assert found.duplicates == 3
    assert found.sources == ("/*.c", "include/")
    assert found.build == Phase(("debug",), "make\nmake check")
    assert found.run == Phase(("n_workers", "n_input"), "./fib", strict=False)


def test_an_experiment_needs_no_more_than_a_script_to_run() -> None:
    found = load_experiment("a.yaml", "run: {script: x}", None)
    assert (found.job_name, found.queue, found.duplicates) == ("ANON", None, 1)
    assert found.build == Phase((), "")
    assert found.run.exclusive
    assert found.sources is None
    assert found.point("local", {}).name == "ANON"


def test_a_batchs_phases_are_merged_over_those_of_the_file_key_by_key() -> None:
    batch = experiment().batches["batch_test"]
    assert batch.build == Phase(("n_input",), "make\nmake check")
    assert batch.run == Phase(("n_workers", "n_input"), "./other", strict=False, exclusive=False)


def test_a_batch_takes_name_queue_and_duplicates_from_the_defaults() -> None:
    batch = experiment().batches["plain"]
    assert (batch.job_name, batch.queue, batch.duplicates) == ("fib", "fib-queue", 3)


def test_a_batch_has_the_metrics_of_the_file_and_its_own() -> None:
    assert experiment().grid("batch_test", "local").metrics == {
        "time": r"Execution Time: (\d+) ns",
        "result": r"= (\d+)",
    }
    assert list(experiment().metrics) == ["time"]


def test_a_batch_that_keeps_no_standard_output_has_no_metrics() -> None:
    assert experiment().grid("plain", "local").metrics == {}


def test_requirements_count_on_their_machines_and_extra_ones_replace_them() -> None:
    found = experiment()
    assert list(map(str, found.requirements_on("local"))) == [
        "massivethreads:release",
        "jemalloc:v5",
    ]
    assert list(map(str, found.requirements_on("spica"))) == ["massivethreads:release"]
    extra = [Requirement.parse("massivethreads:debug")]
    assert list(map(str, found.requirements_on("spica", extra))) == ["massivethreads:debug"]


def test_a_batchs_requirements_replace_recipes_of_the_same_dependency() -> None:
    found = experiment()
    local, spica = (found.grid("batch_test", m).requirements for m in ("local", "spica"))
    assert list(map(str, local)) == ["massivethreads:release", "jemalloc:v5"]
    assert list(map(str, spica)) == ["massivethreads:debug"]


def test_a_point_has_the_defaults_and_what_overrides_them() -> None:
    point = experiment().point("local", {"n_input": "38"})
    assert point.parameters == {"n_workers": "0", "n_input": "38", "debug": "0"}
    assert (point.name, point.queue, point.duplicate, point.artifacts) == (
        "fib",
        "fib-queue",
        0,
        (),
    )


def test_a_parameter_that_nothing_knows_is_accepted_and_said_with_the_nearest() -> None:
    found = experiment()
    assert found.point("local", {"n_imput": "38"}).parameters["n_imput"] == "38"
    assert list(found.without_effect(["n_input", "n_imput"])) == [
        "bench/fib.yaml: nothing uses the parameter 'n_imput', did you mean 'n_input'?"
    ]


def test_a_parameter_without_a_default_has_its_effect_where_a_text_or_phase_names_it() -> None:
    text = "run: {script: x, depend_params: [n]}\ndefault_name: f_$size\n"
    found = load_experiment("e.yaml", text + "batches: {b: {params: {n: 1, size: 2}}}", None)
    assert list(found.without_effect(["n", "size", "other"])) == [
        "e.yaml: nothing uses the parameter 'other', known: n, size"
    ]
    point = found.point("local", {"n": "3", "size": "9"})
    assert (point.name, point.environment(found.run)) == ("f_9", {"KOCHI_PARAM_N": "3"})


@pytest.mark.parametrize("name", ["a b", "duplicate", ""])
def test_an_impossible_name_of_a_parameter_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"parameter '{name}': "):
        experiment().point("local", {name: "1"})


def test_a_default_may_have_a_value_for_each_machine() -> None:
    text = """
default_params:
  n: [{value: 1}, {value: 16, machines: [spica, vega]}]
  m: '`$n * 2`'
run: {script: x}
batches: {b: {params: {k: [1, 2]}}, own: {params: {n: 3}}}
"""
    found = load_experiment("e.yaml", text, None)
    assert dict(found.point("local", {}).parameters) == {"n": "1", "m": "2"}
    assert dict(found.point("vega", {}).parameters) == {"n": "16", "m": "32"}
    assert dict(found.point("vega", {"n": "5"}).parameters) == {"n": "5", "m": "10"}
    assert [dict(p.parameters) for p in found.grid("b", "spica").points] == [
        {"n": "16", "m": "32", "k": "1"},
        {"n": "16", "m": "32", "k": "2"},
    ]
    assert dict(found.grid("own", "spica").points[0].parameters) == {"m": "6", "n": "3"}


def test_a_default_without_a_value_for_a_machine_is_an_error_where_it_is_needed() -> None:
    text = "default_params: {n: [{value: 1, machines: spica}]}\nrun: {script: x}\n"
    found = load_experiment("e.yaml", f"{text}batches: {{b: , own: {{params: {{n: 3}}}}}}", None)
    said = r"e\.yaml:1: default_params\.n: 'n' has no value on machine 'local', only on spica"
    with pytest.raises(ConfigError, match=said):
        found.grid("b", "local")
    with pytest.raises(ConfigError, match=said):
        found.point("local", {})
    assert found.grid("own", "local").points[0].parameters == {"n": "3"}
    assert found.point("local", {"n": "4"}).parameters == {"n": "4"}


def test_an_experiment_without_run_is_only_built() -> None:
    text = "build: {script: make}\nbatches: {b: {params: {n: [1, 2]}}}"
    assert is_experiment(text)
    found = load_experiment("e.yaml", text, None)
    assert found.grid("b", "local").run.script == ""
    assert found.point("local", {}).parameters == {}


def test_an_override_that_no_variable_can_hold_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"parameter 'debug': .*NUL"):
        experiment().point("local", {"debug": "\0"})


def test_names_of_a_point_may_use_parameters() -> None:
    text = (
        "default_params: {a: 1}\ndefault_name: x $a/\\n\ndefault_queue: 'q${a}'\nrun: {script: x}"
    )
    point = load_experiment("e.yaml", text, None).point("local", {"a": "2"})
    assert (point.name, point.queue) == ("x 2/\\n", "q2")


def test_a_queue_name_that_leaves_its_directory_is_an_error() -> None:
    text = "default_params: {a: 1}\ndefault_queue: ../${a}\nrun: {script: x}"
    with pytest.raises(ConfigError, match=r"e\.yaml:2: default_queue: '\.\./\$\{a\}': "):
        load_experiment("e.yaml", text, None)
    found = load_experiment("e.yaml", text.replace("../", ""), None)
    with pytest.raises(ConfigError, match=r"e\.yaml:2: default_queue: '\.\./1': "):
        found.point("local", {"a": "../1"})


def test_all_that_is_wrong_with_a_point_is_reported_at_once() -> None:
    text = "default_params: {a: 1}\ndefault_name: n$a\ndefault_queue: q$a\nrun: {script: x}"
    found = load_experiment("e.yaml", text, None)
    with pytest.raises(ConfigError, match=r"default_name: 'n\\n': .*\n.*default_queue: 'q\\n': "):
        found.point("local", {"a": "\n"})


BATCH_ONLY = """
default_params: {a: 1}
run: {script: x, depend_params: [a, only]}
batches: {b: {params: {only: 5}}}
"""


def test_a_parameter_that_only_batches_have_must_be_given_for_a_point() -> None:
    found = load_experiment("e.yaml", BATCH_ONLY, None)
    with pytest.raises(ConfigError, match="'only' has no value outside") as caught:
        found.point("local", {})
    assert "only=VALUE" in str(caught.value)
    assert found.point("local", {"only": "7"}).parameters["only"] == "7"


def test_the_environment_holds_only_what_the_phase_depends_on() -> None:
    text = "default_params: {my-n: yes, b: 2}\nrun: {script: x, depend_params: [my-n]}"
    found = load_experiment("e.yaml", text, None)
    point = found.point("local", {})
    assert point.environment(found.run) == {"KOCHI_PARAM_MY_N": "true"}
    assert point.environment(found.build) == {}


def test_parameters_may_be_called_like_other_measurements() -> None:
    text = "run: {script: x}\ndefault_params: {seconds: 1, node: 2, started: 3, runs: 4}"
    assert list(experiment(text).default_parameters) == ["seconds", "node", "started", "runs"]


def test_what_stands_below_a_mistyped_key_is_checked_and_the_key_is_not_missing() -> None:
    lines = said("runn: {scirpt: x, strict: 1}\nbatches: {b: {artifacts: [{type: stats, des: x}]}}")
    assert lines.splitlines() == [
        "bench/fib.yaml:1: runn: unknown key, did you mean 'run'?",
        "bench/fib.yaml:1: runn.scirpt: unknown key, did you mean 'script'?",
        "bench/fib.yaml:1: runn.strict: true or false was expected, not the number '1'",
        "bench/fib.yaml:2: batches.b.artifacts[0].des: unknown key, did you mean 'dest'?",
    ]


def test_null_in_a_batch_removes_what_the_file_says() -> None:
    text = """
run: {script: x, depend_params: [], cores: 2, resources: {nodes: 2, tasks: 4}, timeout: 1m}
batches: {b: {run: {resources: {tasks: null}}}, c: {run: {resources: ~}}}
"""
    found = load_experiment("e.yaml", text, None)
    assert found.batches["b"].run.resources == {"nodes": "2"}
    assert found.batches["c"].run.resources == {}
    assert found.batches["c"].run.timeout == "1m"


def test_null_is_the_same_as_nothing() -> None:
    found = experiment(
        "depends: null\ndefault_params: null\nbuild: {depend_params: null}\nrun: {script: x}\n"
        "batches: {b: {depends: null, params: null, artifacts: null, queue: null}}"
    )
    assert found.build.depend_params == ()
    assert found.grid("b", "local").requirements == ()


def test_without_a_project_requirements_are_not_checked() -> None:
    text = "depends: [{name: any, recipe: r}]\nrun: {script: x}"
    assert load_experiment("e.yaml", text, None).requirements == (Requirement("any", "r"),)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (EXAMPLE, True),
        ("{run: {script: x}}", True),
        ("run: {}", True),
        ("run: x", False),
        ("{run: x, params: {n: 1}}", True),
        ("{run: x, batches: {b: {}}}", True),
        ("a: {run: {script: x}}", False),
        ("- run", False),
        ("", False),
        (PROJECT, False),
        ("run:\n  script: [", True),  # so that reading it tells what is wrong
        ("a: [run", False),
        ("{build: {script: x}, batches: {b: {}}}", True),
        ("build: {script: x}", False),  # as in .gitlab-ci.yml
        ("{batches: {}, build: x}", True),
        ("{params: {}, branches: {}}", False),
    ],
)
def test_an_experiment_is_recognised_by_its_keys(text: str, result: bool) -> None:
    assert is_experiment(text) is result


def test_the_script_to_run_may_be_left_to_the_batches() -> None:
    found = load_experiment("e.yaml", "run: {}\nbatches: {b: {run: {script: x}}}", None)
    assert found.grid("b", "local").run.script == "x"
    with pytest.raises(ConfigError, match="run: a key 'script' was expected"):
        found.point("local", {})


CORES = """
default_params: {threads: 1, half: '`$threads / 2`', word: x}
run: {script: x, depend_params: [threads, half, word], cores: CORES}
batches:
  all: {params: {threads: [1, 4]}}
  own: {run: {cores: 3}}
"""


@pytest.mark.parametrize(
    ("cores", "expected"),
    [("$threads", [1, 4]), ("'`2 * $threads`'", [2, 8]), ("2", [2, 2])],
)
def test_the_cores_of_a_run_follow_from_its_parameters(cores: str, expected: list[int]) -> None:
    found = load_experiment("e.yaml", CORES.replace("CORES", cores), None)
    assert [point.request.cores for point in found.grid("all", "local").points] == expected
    assert [point.request.cores for point in found.grid("own", "local").points] == [3]
    by_hand = found.point("local", {"threads": "8"})
    assert by_hand.request.cores == {"$threads": 8, "2": 2}.get(cores, 16)
