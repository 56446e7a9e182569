"""References and expressions in parameter values, and encoding for paths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.expressions import TemplateError, parse_value
from snakemake_kochi.project.values import encode_component, typed


def parameters(values: str, **overrides: str) -> dict[str, str]:
    text = f"default_params:\n{values}\nrun: {{script: x}}\n"
    return dict(load_experiment("e.yaml", text, None).point("local", overrides).parameters)


def evaluate(expression: str, **values: str) -> str:
    return parse_value(f"`{expression}`").render(values)


def test_overridden_values_are_taken_literally() -> None:
    hostile = "`1+1`$b${b}$$'"
    assert parameters("  a: 1\n  b: <$a>", a=hostile) == {"a": hostile, "b": f"<{hostile}>"}


def test_values_that_grow_without_bound_are_refused() -> None:
    lines = ["  a0: 0123456789"] + [f"  a{i}: {f'$a{i - 1}' * 10}" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="longer than 100000 characters"):
        parameters("\n".join(lines))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("$n * $m", "12"),
        ("$n+$m", "7"),
        ("$n-$m", "-1"),
        ("-$n % 5", "2"),
        ("$m / $n", "1.3333333333333333"),
        ("$m // $n", "1"),
        ("2 ** $n", "8"),
        ("2 ** -1", "0.5"),
        ("1 << 10", "1024"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("4 / 2", "2.0"),
        ("$n < $m", "true"),
        ("1 < $n < 3", "false"),
        ("not $yes", "false"),
        ("$yes == true", "true"),
        ("$n > 5 or $m > 3", "true"),
        ("$n > 5 and $m / 0", "false"),
        ("'big' if $n > 2 else 'small'", "big"),
        ("'a' + 'b' * 3", "abbb"),
        ("'n is $n'", "n is 3"),
        ("'x' in '$word'", "false"),
        ("$word == 'it'", "true"),
        ("$n in (1, 3)", "true"),
        ("'%03d-%s' % ($n, $word)", "003-it"),
        ("'$$n'", "$n"),
        ("$float * 2", "2000.0"),
        (" 1 ", "1"),
        ("max($n, $m)", "4"),
        ("int($m / $n)", "1"),
        ("int('ff', 16)", "255"),
        ("len('$word')", "2"),
        ("round($m / $n, 2)", "1.33"),
        ("round(2.0, 0)", "2.0"),
        ("abs($n - $m)", "1"),
        ("log2(1024)", "10"),
        ("log2(2 ** 2000)", "2000"),
        ("log2(10)", "3.321928094887362"),
        ("log2(0.5)", "-1.0"),
        ("int(log2(10))", "3"),
        ("float($n)", "3.0"),
        ("str($n) + str($yes)", "3true"),
        ("pow(2, $n)", "8"),
    ],
)
def test_expressions_calculate(expression: str, result: str) -> None:
    values = {"n": "3", "m": "4", "yes": "true", "word": "it", "float": "1e3"}
    assert evaluate(expression, **values) == result


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "open('x')",
        "().__class__",
        "$n.real",
        "'a'[0]",
        "[x for x in (1,)]",
        "lambda: 1",
        "f'{1}'",
        "(y := 1)",
        "n",
        "None",
        "1j",
        "b'x'",
        "{1: 2}",
        "1; 2",
        "x = 1",
        "1 +",
        "$n(1)",
        "max",
        "max(1, 2, key=len)",
        "max(*(1, 2))",
        "(lambda: 1)()",
        "max(1)(2)",
        "eval('1')",
        "getattr('a', 'b')",
        "$n $n",
        "a$n",
        "await $n",
        "$n is 1",
        "$n @ 2",
        "(1, 2)",
        "max((1, 2))",
        "(1, 2) * 3",
        "sum(1)",
    ],
)
def test_an_expression_has_no_names_attributes_or_other_calls(expression: str) -> None:
    with pytest.raises(TemplateError):
        parse_value(f"`{expression}`")


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "10 ** 4000 * 10 ** 4000",
        "1 << 99999999999",
        "'x' * 99999999999",
        "99999999999 * 'x'",
        "'%999999999d' % 1",
        "'%*d' % (999999999, 1)",
        "2.0 ** 99999",
        "1 / 0",
        "'a' + 1",
        "(-8) ** 0.5",
        "-" * 1500 + "1",
        "pow(9, 9 ** 9)",
        "round(5, -999999999)",
        "int('1' * 100000, 2)",
        "int('9' * 5000)",
        "log2(0)",
        "log2(-1)",
        "log2('8')",
        "log2(1, 2)",
        "len(5)",
        "round('a')",
        "max(" * 400 + "1" + ")" * 400,
    ],
)
def test_an_expression_without_a_reasonable_result_is_a_quick_error(expression: str) -> None:
    with pytest.raises(TemplateError):
        parse_value(f"`{expression}`").render({})


def test_a_value_cannot_end_the_text_it_is_put_into() -> None:
    hostile = "' + __import__('os') + '"
    assert evaluate("'<$x>'", x=hostile) == f"<{hostile}>"
    assert evaluate("$x + '!'", x=hostile) == f"{hostile}!"


@given(st.text())
def test_no_value_changes_what_an_expression_means(value: str) -> None:
    assert evaluate("'<$x>'", x=value) == f"<{value}>"
    assert evaluate("'${x}' == $y", x=value, y="a b") == ("true" if value == "a b" else "false")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("yes", True),
        ("", ""),
        ("null", "null"),
        ("a", "a"),
    ],
)
def test_a_value_in_an_expression_is_a_number_a_boolean_or_a_text(text: str, value: object) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


@pytest.mark.parametrize(
    ("expression", "values", "result"),
    [
        ("$mode == 'on'", {"mode": "on"}, "true"),
        ("'on' != $mode", {"mode": "off"}, "true"),
        ("$mode == 'true'", {"mode": "true"}, "true"),
        ("$version == '1.10'", {"version": "1.10"}, "true"),
        ("$version != '1.10'", {"version": "1.1"}, "true"),
        ("$version in ('1.9', '1.10')", {"version": "1.10"}, "true"),
        ("$version not in ['1.10']", {"version": "1.10"}, "false"),
        ("'1.10' in ($a, 1)", {"a": "1.10"}, "true"),
        ("$n in '10 20'", {"n": "10"}, "true"),
        ("$n == '08'", {"n": "08"}, "true"),
        ("$a == $b", {"a": "08", "b": "08"}, "true"),
        # Without a text beside them, they are numbers and booleans.
        ("$version == 1.1", {"version": "1.10"}, "true"),
        ("$a == $b", {"a": "1.10", "b": "1.1"}, "true"),
        ("$mode == true", {"mode": "on"}, "true"),
        ("9 < $n <= 10", {"n": "10"}, "true"),
    ],
)
def test_beside_a_text_a_parameter_is_compared_as_its_text(
    expression: str, values: dict[str, str], result: str
) -> None:
    assert evaluate(expression, **values) == result


def test_numbers_are_those_of_yaml_1_2() -> None:
    assert (evaluate("$n + 0", n="010"), evaluate("$n + 0", n="0x1F")) == ("10", "31")
    assert (evaluate("$n", n="1:30"), evaluate("'$n'", n="010")) == ("1:30", "010")


def test_a_number_of_too_many_digits_is_a_text() -> None:
    assert typed("9" * 5000) == "9" * 5000


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("a.b_c+d=e,f@g:h-i~j", "a.b_c+d=e,f@g:h-i~j"),
        ("", "%empty"),
        ("%empty", "%25empty"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("a/b", "a%2Fb"),
        ("a b\n", "a%20b%0A"),
        ("ü", "%C3%BC"),
        ("{x}*", "%7Bx%7D%2A"),
    ],
)
def test_values_are_percent_encoded_for_paths(value: str, encoded: str) -> None:
    assert encode_component(value) == encoded


@given(st.text(), st.text())
def test_two_values_never_share_their_encoding(one: str, other: str) -> None:
    encoded = encode_component(one)
    assert (encoded == encode_component(other)) == (one == other)
    assert encoded not in ("", ".", "..")
    assert "/" not in encoded
    assert encoded.isascii()
    assert encoded.isprintable()
