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


def test_a_key_given_twice_is_an_error_that_names_both_lines() -> None:
    text = "run: {script: x}\ndefault_params:\n  a: 1\n  a: 2\n"
    with pytest.raises(
        ConfigError, match=r"yaml:4: default_params\.a: duplicate key, first in line 3"
    ):
        load_experiment("e.yaml", text, None)


def test_a_syntax_error_names_file_and_line() -> None:
    with pytest.raises(ConfigError, match=r"^e\.yaml:2: not valid YAML: "):
        load_experiment("e.yaml", "run: {script: x}\n  bad: [\n", None)


def test_an_unquoted_brace_in_a_flow_mapping_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"e\.yaml:1: .*quote texts that contain \{"):
        load_experiment("e.yaml", "run: {script: echo ${x}}\n", None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "    params:",
            "\tparams:",
            "e.yaml:4: not valid YAML: a tab is no indentation in YAML; use spaces",
        ),
        ("'a: (b)'", "a: (it's)", "e.yaml:1: .* must be quoted; write m: 'a: \\(it''s\\)'$"),
        (
            "depend_params: ",
            "depend_params:",
            "e.yaml:10: .*a blank after the ':' of the key above",
        ),
        (
            "    artifacts",
            "   artifacts",
            "6: .*indent it by 4 as 'params' in line 4, or by 2 as 'test' in line 3, not "
            "by 3 spaces$",
        ),
        (
            "    artifacts",
            "     artifacts",
            "6: .*indent it by 6 as 'n' in line 5, or by 4 as 'params' in line 4, not by 5 spaces$",
        ),
        ("    echo", "  echo", "e.yaml:11: .*not 'echo'; indent the lines of a script deeper"),
        (
            "    artifacts:\n      - ",
            "      artifacts:\n        - ",
            "^e.yaml:6: batches.test.params.artifacts: 'artifacts' is no parameter; indent it as "
            "far as 'params'$",
        ),
    ],
)
def test_a_common_mistake_gets_what_to_type(old: str, new: str, said: str) -> None:
    text = (
        "metrics: {m: 'a: (b)'}\nbatches:\n  test:\n    params:\n      n: [1]\n    artifacts:\n"
        "      - {type: stdout, dest: $n}\nrun:\n  depend_params: [n]\n  script: |\n    echo\n"
    )
    load_experiment("e.yaml", text, None)
    text = text.replace(old, new).replace("{m: a: (it's)}", "\n  m: a: (it's)")
    with pytest.raises(ConfigError, match=said.replace("yaml:1:", "yaml:2:")) as caught:
        load_experiment("e.yaml", text, None)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: &r {script: x, strict: *r}", "the alias refers to a value that contains it"),
        ("run: {script: !!python/name:os.system x}", "the YAML tag"),
        ("run: {script: x}\ndefault_params: {a: !!int x}", "the YAML tag"),
        ("run: {script: x}\n---\nrun: {}", "not valid YAML"),
        ("run: {script: \x01}", "U+0001"),
        ("[" * 5000, "nested too deeply"),
        ("- run", "a mapping"),
        ("just text", "a mapping"),
    ],
)
def test_odd_documents_are_refused_with_a_message(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment("e.yaml", text, None)
    assert said in str(caught.value)


def test_aliases_of_aliases_do_not_fill_the_memory() -> None:
    lines = ["x-0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for level in range(1, 9):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"x-{level}: &a{level} [{aliases}]")
    with pytest.raises(ConfigError, match="too much data"):
        load_experiment("e.yaml", "\n".join([*lines, "run: {script: x}"]), None)


@pytest.mark.parametrize("written", ['"a\\0b"', '"\\ud800"'])
def test_a_value_no_environment_variable_can_hold_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match=r"e\.yaml:1: default_params\.x: "):
        parameters(f"x: {written}")
