"""The keys prepare, prepare_node and finish of experiments and batches."""

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


def test_a_batch_replaces_the_keys_of_a_script_one_by_one_or_turns_it_off() -> None:
    experiment = load(
        """
        default_params: {n: 1}
        prepare: {script: make, depend_params: [n], sources: [a.c, a.c]}
        finish: {script: look}
        batches:
          same:
          own: {prepare: {script: other, sources: []}, finish: {script: ''}}
          off: {prepare: {script:}, finish: {script: ''}}
        """
    )
    same, own, off = (experiment.grid(name, "local").preparation for name in ("same", "own", "off"))
    assert same == experiment.preparation
    assert same is not None and same.prepare is not None
    assert (same.prepare.script, same.prepare.sources) == ("make", ("a.c",))
    assert own is not None and own.prepare is not None
    assert (own.prepare.script, own.prepare.depend_params) == ("other", ("n",))
    assert (own.prepare.sources, own.finish) == ((), None)
    assert off is None


def test_an_experiment_without_these_keys_has_none() -> None:
    assert load("batches: {b: }\n").preparation is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prepare: {}\nprepair: {script: x}\n", "did you mean 'prepare'?"),
        ("prepare: {scirpt: x}\n", "did you mean 'script'?"),
        ("prepare_node: {depend_params: []}\n", "prepare_node: the key 'script' is missing"),
        ("batches: {b: {finish: {strict: true}}}\n", "b.finish: the key 'script' is missing"),
        (
            "finish: {script: x, depend_params: [n]}\n",
            "finish.depend_params: unknown key, known: script, strict",
        ),
        ("prepare: {script: x, depend_params: [m]}\n", "there is no parameter 'm'"),
        ("prepare: {script: x, sources: [../a]}\n", "without '..', was expected"),
        ("prepare: make\n", "prepare: "),
        *(
            (f"{key}: {{script: x, {other}}}\n", f"{key}.{other.partition(':')[0]}: unknown key")
            for key in ("prepare", "prepare_node")
            for other in ("timeout: 1m", "resources: {mem_mb: 1}", "isolate: files", "cores: 2")
        ),
        ("finish_node: {script: x}\n", "finish_node: a script 'prepare_node' was expected, too"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, said: str) -> None:
    assert said in problems(f"default_params: {{n: 1}}\n{text}")
