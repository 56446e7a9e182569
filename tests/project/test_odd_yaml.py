"""Files that no person writes: each is refused with a line, before it costs time or memory."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import calls_of

from snakemake_kochi.errors import ConfigError, KochiError
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.configuration import load_project
from snakemake_kochi.project.experiment_file import load_experiment
from snakemake_kochi.project.recipes import Project, Requirement
from snakemake_kochi.project.shape import is_experiment
from snakemake_kochi.project.sweeps import MAXIMUM_POINTS

HERE = Path("/project")

PROJECT: dict[str, Any] = {
    "dependencies": {
        "tool": {
            "git": "../tool",
            "envs": {"A": "b"},
            "depends": [{"name": "base", "recipe": "one", "machines": ["local"]}],
            "recipes": [
                {"name": "release", "branch": "main", "script": ["make"]},
                {"name": "own", "mirror": True, "mirror_dir": "../tool", "script": "make"},
            ],
        },
        "base": {"script": "x", "recipes": [{"name": "one"}]},
    },
    "machines": {
        "spica": {
            "hosts": ["login*"],
            "kochi_root": "/shared/root",
            "lock_dir": "/shared/locks",
            "scheduler": "slurm",
            "allocation": {"nodes": 2, "time": "1h", "memory": "2G", "arguments": ["--x=1"]},
        }
    },
}
EXPERIMENT: dict[str, Any] = {
    "depends": [{"name": "tool", "recipe": "release"}],
    "default_params": {"n": 1, "m": "$n", "e": "`$n + 1`"},
    "default_name": "x_${n}",
    "default_duplicates": 2,
    "sources": ["*.c"],
    "metrics": {"t": "t=(.*)"},
    "batches": {
        "b": {
            "queue": "z",
            "params": {"n": [1, 2], "k": [{"value": [3], "machines": ["spica"]}, {"value": 5}]},
            "artifacts": [
                {"type": "stdout", "dest": "a/${n}_${k}_${duplicate}"},
                {"type": "file", "dest": "f/${n}_${k}_${duplicate}", "src": "o"},
            ],
        }
    },
    "run": {"depend_params": ["n", "k"], "script": ["x"]},
}
ODD = [
    *(
        None,
        True,
        -1,
        10**30,
        "",
        "x" * 5000,
        "a\0b",
        "\ud800",
        "a\nb",
        "../..",
        "/",
        "~nobody-x/y",
    ),
    *("${", "$x", "`", "`$n**99999`", f"`{'-' * 1800}1`", "(" * 3000, "--x", "fd::17", "x/" * 3000),
    *("0x" + "f" * 5000, "9" * 5000, "nan", "1e999", [], {}, [[]], {"a": {}}, [None], {"": 1}),
    *({"a\0b": 1}, {"\ud800": 1}),
]


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(data, dict | list):
        keys = data if isinstance(data, dict) else range(len(data))
        for key in keys:
            yield from places(data[key], (*path, key))


def with_odd(data: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = json.loads(json.dumps(data))
    *around, last = path
    inner = copy
    for key in around:
        inner = inner[key]
    inner[last] = odd
    return copy


def texts_of(odd: Any) -> list[str]:
    """A value as it is written, quoted and, for what would be a number, as one."""
    return [json.dumps(odd), *([odd] if isinstance(odd, str) and odd.isalnum() else [])]


@functools.cache
def sound_project() -> Project:
    return load_project(HERE, json.dumps(PROJECT))


def refused(text: str, project: bool) -> str | None:
    """What is said against a file, or None if it is accepted."""
    try:
        if project:
            load_project(HERE, text, HERE / "kochi.yaml")
        else:
            is_experiment(text)
            check_experiments([load_experiment("e.yaml", text, sound_project())], "local")
    except KochiError as error:
        return str(error)
    return None


def check_message(said: str | None, file: str) -> None:
    if said is not None:
        for line in said.splitlines():
            assert file in line, line[:200]
            assert len(line) < 2500
        said.encode()


@pytest.mark.parametrize("path", list(places(PROJECT)), ids=str)
def test_odd_values_in_kochi_yaml_get_a_line_or_are_fine(path: tuple[Any, ...]) -> None:
    for odd in ODD:
        for written in texts_of(odd):
            text = json.dumps(with_odd(PROJECT, path, "@@")).replace('"@@"', written)
            check_message(refused(text, project=True), "kochi.yaml")


@pytest.mark.parametrize("path", list(places(EXPERIMENT)), ids=str)
def test_odd_values_in_an_experiment_get_a_line_or_are_fine(path: tuple[Any, ...]) -> None:
    for odd in ODD:
        for written in texts_of(odd):
            text = json.dumps(with_odd(EXPERIMENT, path, "@@")).replace('"@@"', written)
            check_message(refused(text, project=False), "e.yaml")


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!|>%@`'\"#?,~\n\t 01$\\"), max_size=60))
def test_any_text_is_read_or_refused_with_its_file(text: str) -> None:
    check_message(refused(text, project=True), "kochi.yaml")
    check_message(refused(f"run: {{script: x}}\n{text}", project=False), "e.yaml")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("mirror_dir", '"a\\0b"', "NUL"),
        ("mirror_dir", '"\\ud800"', "an incomplete character"),
        ("mirror_dir", "/", "this is the whole filesystem"),
        ("mirror_dir", "//usr/..", "this is the whole filesystem"),
        ("mirror_dir", "x" * 300, "longer than 255 bytes"),
        ("git", "x" * 5000, "longer than 3000 bytes"),
        ("git", "https://" + "x" * 5000, "longer than 3000 bytes"),
        ("git", "./" + "x" * 300, "longer than 255 bytes"),
    ],
)
def test_a_source_that_cannot_be_one_is_named(key: str, value: str, said: str) -> None:
    mirror = "mirror: true, " if key == "mirror_dir" else ""
    text = (
        f"dependencies:\n  t:\n    recipes:\n    - {{name: r, script: x, {mirror}{key}: {value}}}"
    )
    with pytest.raises(ConfigError) as caught:
        load_project(HERE, text, HERE / "kochi.yaml")
    assert str(caught.value).startswith(f"kochi.yaml:4: dependencies.t.recipes[0].{key}: ")
    assert said in str(caught.value)


def test_a_url_with_a_long_part_is_a_url() -> None:
    text = (
        f"dependencies: {{t: {{git: 'https://x/{'y' * 300}', script: x, recipes: [{{name: r}}]}}}}"
    )
    load_project(HERE, text, HERE / "kochi.yaml")


def chain_of_recipes(length: int, last: str = "") -> Project:
    recipes = [
        f"  d{i}: {{script: x, recipes: [{{name: r}}], depends: [{{name: d{i + 1}, recipe: r}}]}}"
        for i in range(length)
    ]
    recipes.append(f"  d{length}: {{script: x, recipes: [{{name: r}}]{last}}}")
    text = "\n".join(["dependencies:", *recipes])
    return load_project(HERE, text, HERE / "kochi.yaml")


def test_a_chain_of_recipes_is_resolved_from_its_end() -> None:
    order = chain_of_recipes(299).resolve([Requirement("d0", "r")], "local")
    assert [recipe.dependency for recipe in order] == [f"d{i}" for i in range(299, -1, -1)]


def test_a_chain_of_three_thousand_recipes_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigError) as caught:
        chain_of_recipes(3000)
    (line,) = str(caught.value).splitlines()
    told = (
        "kochi.yaml:1: dependencies: more than 300 recipes depend on each other in a row: d0:r -> "
    )
    assert line.startswith(told)


def test_a_circle_of_two_hundred_recipes_is_reported_in_a_line() -> None:
    with pytest.raises(ConfigError, match=r"in a circle: d0:r -> .*\.\.\. -> .*d0:r") as caught:
        chain_of_recipes(200, ", depends: [{name: d0, recipe: r}]")
    assert len(str(caught.value)) < 1000


def test_a_chain_of_three_thousand_parameters_is_resolved() -> None:
    defaults = "".join(f"  p{i}: $p{i + 1}\n" for i in range(3000))
    text = f"run: {{script: x}}\ndefault_params:\n{defaults}  p3000: end\n"
    experiment = load_experiment("e.yaml", text, None)
    assert experiment.point("local", {}).parameters["p0"] == "end"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "duplicates: 1000000",
            "e.yaml:3: batches.b.duplicates: 1000000 duplicates; at most 10000 are possible",
        ),
        (
            "duplicates: 10000, params: {p: [1, 2, 3, 4, 5], q: [1, 2, 3, 4, 5, 6, 7, 8, 9]"
            ", r: [1, 2, 3]}",
            f"e.yaml:3: batches.b: 1350000 points; at most {MAXIMUM_POINTS} are possible; give the "
            "parameters fewer values",
        ),
    ],
)
def test_points_are_counted_before_they_are_made(given: str, message: str) -> None:
    text = f"run: {{script: x}}\nbatches:\n  b: {{{given}}}\n"
    experiment = load_experiment("e.yaml", text, None)

    def refused() -> str:
        with pytest.raises(ConfigError) as caught:
            experiment.grid("b", "local")
        return str(caught.value)

    said, calls = calls_of(refused)
    assert said == message
    assert calls < 10_000  # fewer than points


def test_a_number_of_points_that_cannot_be_written_out_is_reported() -> None:
    params = ", ".join(f"p{i}: [{', '.join(map(str, range(10)))}]" for i in range(4400))
    text = f"run: {{script: x}}\nbatches:\n  b: {{params: {{{params}}}}}\n"
    experiment = load_experiment("e.yaml", text, None)
    with pytest.raises(ConfigError, match=r"b: more than 1000000000000 points; at most"):
        experiment.grid("b", "local")


@pytest.mark.parametrize("number", ["1" + "0" * 20, "0x" + "f" * 5000, "9" * 5000])
def test_a_number_that_no_machine_has_is_refused(number: str) -> None:
    text = f"machines:\n  m: {{allocation: {{cores: {number}}}}}\n"
    with pytest.raises(ConfigError, match=r"kochi\.yaml:2: .*cores: 2147483647 or less") as caught:
        load_project(HERE, text, HERE / "kochi.yaml")
    assert len(str(caught.value)) < 300


def laughs(levels: int) -> str:
    lines = ["x-0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"x-{level}: &a{level} [{aliases}]")
    return "\n".join([*lines, "run: {script: x}"])


@pytest.mark.parametrize("levels", [6, 9, 60])
def test_aliases_are_followed_as_far_as_is_possible(levels: int) -> None:
    def load() -> None:
        with pytest.raises(ConfigError, match=r"^e\.yaml: too much data, .* at most 100000"):
            load_experiment("e.yaml", laughs(levels), None)

    _, calls = calls_of(load)
    # Each is followed by ten times as many as the one before.
    assert calls < 2_000_000


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused_in_a_line(opening: str) -> None:
    text = f"run: {{script: x}}\nx-a:\n  {opening * 200_000}"
    with pytest.raises(ConfigError, match=r"^e\.yaml:3: not valid YAML: nested too deeply"):
        load_experiment("e.yaml", text, None)


def test_of_a_file_with_a_million_keys_no_more_is_read_than_is_possible() -> None:
    def steps(keys: int) -> int:
        lines = (f"  p{i}: {i}\n" for i in range(keys))
        text = "run: {script: x}\nx-a:\n" + "".join(lines)

        def load() -> None:
            with pytest.raises(ConfigError, match=r"^e\.yaml:3: not valid YAML: too much data"):
                load_experiment("e.yaml", text, None)

        return calls_of(load)[1]

    # Keys and values are counted, and 100,000 are possible.
    assert steps(500_000) <= 1.01 * steps(60_000)


def test_large_files_are_read_by_the_loader_in_c() -> None:
    text = "run:\n  script: |\n" + "    echo some text\n" * 60_000

    def load() -> None:
        assert len(load_experiment("e.yaml", text, None).run.script) == 15 * 60_000
        with pytest.raises(ConfigError, match=r"^e\.yaml:6000[34]: not valid YAML: "):
            load_experiment("e.yaml", f"{text}  bad: [", None)

    # The one in Python takes several for each line, and a minute for ten megabytes.
    assert calls_of(load)[1] < 60_000


def test_many_problems_are_reported_in_a_hundred_lines() -> None:
    text = "run: {script: x}\n" + "".join(f"k{i}: 1\n" for i in range(1000))
    with pytest.raises(ConfigError) as caught:
        load_experiment("e.yaml", text, None)
    lines = str(caught.value).splitlines()
    assert len(lines) == 101
    assert lines[-1] == "e.yaml:1: ... and 900 more"
