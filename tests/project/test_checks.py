"""All mistakes at once: of a file, of all points of a batch, and between batches."""

from __future__ import annotations

import json

import pytest
from support import calls_of

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.checks import check_experiments
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment


def loaded(batches: str, file: str = "e.yaml") -> Experiment:
    return load_experiment(file, f"run: {{script: x}}\nbatches:\n{batches}", None)


def said(batches: str, machine: str = "local") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        check_experiments([loaded(batches)], machine)
    return str(caught.value).splitlines()


def load_said(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_experiment("e.yaml", text, None)
    return str(caught.value).splitlines()


def artifacts(*dests: str) -> str:
    return f"artifacts: {json.dumps([{'type': 'stats', 'dest': dest} for dest in dests])}"


def test_a_sound_experiment_passes() -> None:
    batches = f"  a: {{{artifacts('e/${batch_name}')}}}\n  b: {{{artifacts('e/${batch_name}/x')}}}"
    check_experiments([loaded(batches)], "local")
    check_experiments([loaded("  a:")], "local")
    check_experiments([], "local")


def test_the_problems_of_all_batches_are_reported_at_once() -> None:
    lines = said(
        f"""\
  a:
    params: {{n: [0, 1], k: '`1 / $n`'}}
    {artifacts("x", "k/$k")}
  b:
    params: {{q: ../x}}
    queue: $q
  c:
    params: {{m: [{{value: 1, machines: spica}}], z: '`$m + 1`', g: git}}
    {artifacts("c/$z", "c/$z", "g/.$g")}
"""
    )
    assert [line.split(": ")[:3] for line in lines] == [
        ["e.yaml:4", "batches.a.params.k", "`1 / ${n}` with n='0'"],
        ["e.yaml:5", "batches.a.artifacts[0].dest", "two points would write 'x'"],
        ["e.yaml:8", "batches.b.queue", "'../x'"],
        [
            "e.yaml:10",
            "batches.c.params.m",
            "'m' has no value on machine 'local', only on spica; add an entry without 'machines'",
        ],
        # Not that c/$z is there twice: what it would be is not known.
        ["e.yaml:11", "batches.c.artifacts[2].dest", "'g/.git'"],
    ]


def test_the_same_dest_in_two_batches_is_an_error() -> None:
    batches = f"  a: {{{artifacts('x')}}}\n  b: {{{artifacts('y', './x')}}}"
    assert said(batches) == [
        "e.yaml:4: batches.b.artifacts[1].dest: 'x' is also written by batch 'a'; rename one, or "
        "add ${batch_name}"
    ]
    # Each of them is fine.
    assert loaded(batches).grid("a", "local").points
    assert loaded(batches).grid("b", "local").points


def test_two_batches_that_name_the_batch_and_clash_get_the_advice_to_rename() -> None:
    (line,) = said(f"  a: {{{artifacts('b')}}}\n  b: {{{artifacts('${batch_name}')}}}")
    assert line.endswith("'b' is also written by batch 'a'; rename one, or add ${batch_name}")


def test_a_dest_that_is_the_directory_of_another_batch_s_is_an_error() -> None:
    batches = f"  a: {{{artifacts('d/x')}}}\n  b: {{{artifacts('d/x/y')}}}"
    expected = "'d/x' (batch 'a') would be both a file and the directory of 'd/x/y'; rename one"
    assert [line.split(": ", 2)[1:] for line in said(batches)] == [
        ["batches.b.artifacts[0].dest", expected]
    ]


def test_two_experiments_with_one_dest_are_an_error_that_names_both() -> None:
    first = loaded(f"  a: {{{artifacts('x', 'f/c.md')}}}")
    second = loaded(f"  c: {{{artifacts('${batch_name}', 'x')}}}", "sub/f.yaml")
    check_experiments([second], "local")
    with pytest.raises(ConfigError) as caught:
        check_experiments([first, second], "local")
    assert str(caught.value).splitlines() == [
        "e.yaml:3: batches.a.artifacts[1].dest: 'f/c.md' is the table, plot or check of batch 'c' "
        "of sub/f.yaml; rename the artifact",
        "sub/f.yaml:3: batches.c.artifacts[1].dest: 'x' is also written by batch 'a' of e.yaml; "
        "rename one, or add ${batch_name}",
    ]


def test_of_thousands_of_problems_a_few_of_each_kind_are_reported() -> None:
    batches = (
        f"  a:\n    queue: q$n\n    params: {{n: {json.dumps([f'/{i}' for i in range(3000)])}, "
        "k: '`$n + 1`'}\n  b:\n    params: {q: ../x}\n    queue: $q"
    )
    lines = said(batches)
    assert len(lines) == 20
    assert sum("batches.a.queue: " in line for line in lines) == 9
    assert sum("batches.a.params.k: " in line for line in lines) == 9
    assert "batches.b.queue: '../x'" in lines[-2]
    assert lines[-1] == "e.yaml:1: ... and 5982 more"
    with pytest.raises(ConfigError, match="5982 more"):
        loaded(batches).grid("a", "local")


def test_checking_large_batches_does_not_look_at_pairs_of_points() -> None:
    def steps(number: int) -> int:
        many = list(range(number))
        params = f"params: {{a: {many}, b: {many}}}"
        batches = "".join(
            f"  b{i}: {{{params}, {artifacts('$batch_name/$a/$b', 'd/$a')}}}\n" for i in range(4)
        )
        found, calls = calls_of(lambda: said(batches))
        assert len(found) == 4
        return calls

    # Four times as many points, and sixteen times as many pairs.
    assert steps(40) <= 5 * steps(20)


STAGES = """\
defalt_name: x
run: {script: x}
batches:
  a:
    duplicates: two
    params: {n: [1, 2, 1], k: '`1 / $n - 1 / ($n - 1)`', other: '$none'}
"""


def test_shape_is_checked_first_then_values_then_references_then_grids() -> None:
    """Each of them is said with all others of its kind, and nothing else."""
    text = STAGES
    for wrong, right, expected in (
        ("defalt_name", "default_name", ["1: defalt_name", "5: batches.a.duplicates"]),
        ("two", "2", ["5: batches.a.duplicates"]),
        ("[1, 2, 1]", "[1, 2]", ["6: batches.a.params.n[2]"]),
        ("$none", "1", ["6: batches.a.params.other"]),
    ):
        lines = load_said(text)
        assert [": ".join(line.split(": ")[:2]) for line in lines] == [
            f"e.yaml:{each}" for each in expected
        ]
        text = text.replace(wrong, right)
    sound = load_experiment("e.yaml", text, None)
    with pytest.raises(ConfigError, match=r"e\.yaml:6: batches\.a\.params\.k: .*with n='1'"):
        check_experiments([sound], "local")
