"""The key prepare of experiments and batches."""

from __future__ import annotations

import textwrap

import pytest

from snakemake_kochi.errors import ConfigError
from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment


def load(text: str) -> Experiment:
    whole = textwrap.dedent(text) + "run: {script: x}\n"
    return load_experiment("e.yaml", whole, None)


def problems(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(text)
    return refused.value.message


def test_a_batch_replaces_the_keys_of_the_script_one_by_one_or_turns_it_off() -> None:
    experiment = load(
        """
        default_params: {n: 1}
        prepare: {script: make, depend_params: [n], sources: [a.c, a.c]}
        batches:
          same:
          own: {prepare: {script: other, sources: []}}
          off: {prepare: {script:}}
        """
    )
    same, own, off = (experiment.grid(name, "local").prepare for name in ("same", "own", "off"))
    assert same == experiment.prepare
    assert same is not None
    assert (same.script, same.sources) == ("make", ("a.c",))
    assert own is not None
    assert (own.script, own.depend_params, own.sources) == ("other", ("n",), ())
    assert off is None


def test_an_experiment_without_the_key_has_none() -> None:
    assert load("batches: {b: }\n").prepare is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prepare: {}\nprepair: {script: x}\n", "did you mean 'prepare'?"),
        ("prepare: {scirpt: x}\n", "did you mean 'script'?"),
        ("prepare: {depend_params: []}\n", "prepare: the key 'script' is missing"),
        ("batches: {b: {prepare: {strict: true}}}\n", "b.prepare: the key 'script' is missing"),
        ("prepare: {script: x, depend_params: [m]}\n", "there is no parameter 'm'"),
        ("prepare: {script: x, sources: [../a]}\n", "without '..', was expected"),
        ("prepare: {make: x}\n", "prepare"),
        *(
            (
                f"prepare: {{script: x, {other}}}\n",
                f"prepare.{other.partition(':')[0]}: unknown key",
            )
            for other in ("timeout: 1m", "resources: {mem_mb: 1}", "isolate: files", "cores: 2")
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, said: str) -> None:
    assert said in problems(f"default_params: {{n: 1}}\n{text}")
