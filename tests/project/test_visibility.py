"""What scripts do not see of the parameters is told before anything runs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.checks import variables_needed
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment_file import load_experiment


def refused(text: str, kochi_yaml: str = "") -> list[str]:
    project = load_project(Path("/nowhere"), kochi_yaml)
    with pytest.raises(ConfigError) as caught:
        load_experiment("e.yaml", textwrap.dedent(text), project)
    return str(caught.value).splitlines()


def test_a_variable_of_a_parameter_that_the_script_does_not_see_is_an_error_with_its_line() -> None:
    text = """\
    default_params: {n: 1, n-workers: 2, debug: 0}
    build:
      {depend_params: [], script: cc -D$KOCHI_PARAM_DEBUG}
    run:
      depend_params: [n]
      script: |
        ./a $KOCHI_PARAM_N
        ./a ${KOCHI_PARAM_N_WORKERS} $KOCHI_PARAM_N_WORKRS
    prepare: {script: 'echo $KOCHI_PARAM_N $KOCHI_PARAM_DEBUG', depend_params: [n]}
    batches:
      shared: {params: {n: [1, 2]}}
      own: {params: {x: 1}, run: {depend_params: [], script: 'echo $KOCHI_PARAM_X'}}
    """
    not_seen = "the script does not see this parameter; write, in"
    assert refused(text) == [
        f"e.yaml:3: build.script: $KOCHI_PARAM_DEBUG: {not_seen} build: depend_params: [debug]",
        f"e.yaml:6: run.script: $KOCHI_PARAM_N_WORKERS: {not_seen} run: depend_params: "
        "[n, n-workers]",
        "e.yaml:6: run.script: $KOCHI_PARAM_N_WORKRS: there is no such parameter, did you mean "
        "'N_WORKERS'?",
        f"e.yaml:9: prepare.script: $KOCHI_PARAM_DEBUG: {not_seen} prepare: "
        "depend_params: [n, debug]",
        f"e.yaml:12: batches.own.run.script: $KOCHI_PARAM_X: {not_seen} run: depend_params: [x]",
    ]


@pytest.mark.parametrize(
    ("script", "needed"),
    [
        ("$KOCHI_PARAM_A", True),
        ('echo "${KOCHI_PARAM_A}"', True),
        ("echo ${#KOCHI_PARAM_A} ${KOCHI_PARAM_A%.c}", True),
        ("echo ${KOCHI_PARAM_A:?is not given}", True),
        ("python3 -c 'import os; print(os.environ[\"KOCHI_PARAM_A\"])'", True),
        ("echo ${KOCHI_PARAM_A:-1} ${KOCHI_PARAM_A-1} ${KOCHI_PARAM_A:+x}", False),
        (": ${KOCHI_PARAM_A:=1}; echo $KOCHI_PARAM_A", False),
        ("KOCHI_PARAM_A=1; echo $KOCHI_PARAM_A", False),
        ("export KOCHI_PARAM_A=1\necho $KOCHI_PARAM_A", False),
        ("if [ -v KOCHI_PARAM_A ]; then echo $KOCHI_PARAM_A; fi", False),
        ("for KOCHI_PARAM_A in 1 2; do echo $KOCHI_PARAM_A; done", False),
        ('if [ -n "${KOCHI_PARAM_A:-}" ]; then echo "$KOCHI_PARAM_A"; fi', False),
        ('[ -z "${KOCHI_PARAM_A+set}" ] || echo "$KOCHI_PARAM_A"', False),
        ("echo ${!KOCHI_PARAM_A*}", False),
        ("echo 'x' \"$KOCHI_PARAM_A\" 'y'", True),
        ("# $KOCHI_PARAM_A\ntrue # ${KOCHI_PARAM_A}", False),
        (r"echo \$KOCHI_PARAM_A", False),
        ('python3 -c \'import os; os.environ["KOCHI_PARAM_A"] = "1"\'', False),
        ('os.environ["KOCHI_PARAM_A"] = "1"; print(os.environ["KOCHI_PARAM_A"])', False),
        ("python3 -c 'import os; os.getenv(\"KOCHI_PARAM_A\")'", False),
    ],
)
def test_a_variable_that_a_script_may_set_or_test_itself_is_not_needed(
    script: str, needed: bool
) -> None:
    assert variables_needed(script) == ["KOCHI_PARAM_A"] * needed


def test_a_variable_that_kochi_yaml_may_set_and_a_script_that_is_not_strict_are_no_errors() -> None:
    text = "default_params: {n: 1}\nrun: {script: 'echo $KOCHI_PARAM_N', depend_params: [], S}\n"
    text = text.replace("S}", "strict: STRICT}")
    load_experiment("e.yaml", text.replace("STRICT", "false"), None)
    text = text.replace("STRICT", "true")
    assert len(refused(text)) == 1
    load = "machines: {local: {load_env_script: export KOCHI_PARAM_N=1}}"
    load_experiment("e.yaml", text, load_project(Path("/nowhere"), load))


def test_without_a_list_a_script_sees_the_parameters_that_it_mentions() -> None:
    text = """\
    default_params: {n: 1, n-workers: 2, debug: 0, unused: 1}
    build: cc -D${KOCHI_PARAM_DEBUG:-x}
    run: ./a $KOCHI_PARAM_N_WORKERS $KOCHI_PARAM_N
    prepare: [echo, echo $KOCHI_PARAM_X]
    batches:
      shared: {params: {n: [1, 2], x: 1}}
      own: {params: {x: 1}, run: 'echo $KOCHI_PARAM_X'}
    """
    found = load_experiment("e.yaml", text, None)
    shared, own = found.batches["shared"], found.batches["own"]
    assert shared.prepare is not None
    assert shared.build.depend_params == ("debug",)
    assert shared.run.depend_params == ("n", "n-workers")
    assert shared.prepare.depend_params == ("x",)
    assert own.run.depend_params == ("x",)


def test_code_without_a_value_is_the_working_tree() -> None:
    text = "run: {script: x}\nbatches: {b: {code: null}}"
    (point,) = load_experiment("e.yaml", text, None).grid("b", "local").points
    assert dict(point.parameters) == {}
