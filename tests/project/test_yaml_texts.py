"""How YAML is read: texts survive, lines are known, nothing is lost silently."""

from __future__ import annotations

import pytest

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.experiment_file import load_experiment


def parameters(values: str) -> dict[str, str]:
    text = f"default_params: {{{values}}}\nrun: {{script: x}}\n"
    return dict(load_experiment("e.yaml", text, None).point("local", {}).parameters)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1.10", "1.10"),
        ("012", "012"),
        ("0x1F", "0x1F"),
        ("1e3", "1e3"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("12:30:45", "12:30:45"),
        ("+5", "+5"),
        (".5", ".5"),
        ("text", "text"),
        ("' spaced '", " spaced "),
        ('"a\\nb"', "a\nb"),
        ("a=b=c", "a=b=c"),
        ("$5", "$5"),
        ("a $$x", "a $x"),
        ("50%", "50%"),
        ("ü", "ü"),
    ],
)
def test_a_value_is_the_text_as_written(written: str, value: str) -> None:
    assert parameters(f"x: {written}") == {"x": value}


@pytest.mark.parametrize("written", ["true", "yes", "on", "True", "YES", "On"])
def test_a_yaml_boolean_that_is_true_becomes_true(written: str) -> None:
    assert parameters(f"x: {written}") == {"x": "true"}


@pytest.mark.parametrize("written", ["false", "no", "off", "False", "NO", "Off"])
def test_a_yaml_boolean_that_is_false_becomes_false(written: str) -> None:
    assert parameters(f"x: {written}") == {"x": "false"}


@pytest.mark.parametrize("written", ["'yes'", '"yes"', "!!str yes"])
def test_a_quoted_boolean_keeps_its_text(written: str) -> None:
    assert parameters(f"x: {written}") == {"x": "yes"}


@pytest.mark.parametrize("written", ["null", "~", "", "''"])
def test_null_and_nothing_become_the_empty_text(written: str) -> None:
    assert parameters(f"x: {written}") == {"x": ""}


def test_keys_that_look_like_booleans_or_numbers_stay_texts() -> None:
    assert parameters("on: 1, _1: 2") == {"on": "1", "_1": "2"}


def test_anchors_and_merge_keys_work() -> None:
    text = """
x-common: &common {a: 1, b: 2}
x-more: &more {b: 3, c: 4}
default_params: {<<: [*common, *more], c: 5}
run: &run {script: x}
batches: {t: {run: *run}}
"""
    experiment = load_experiment("e.yaml", text, None)
    assert experiment.point("local", {}).parameters == {"a": "1", "b": "2", "c": "5"}
    assert experiment.batches["t"].run.script == "x"


@pytest.mark.parametrize("written", ['"a\\0b"', '"\\ud800"'])
def test_a_value_no_environment_variable_can_hold_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=r"e\.yaml:1: default_params\.x: "):
        parameters(f"x: {written}")
