"""The key prepare of experiments and batches."""

from __future__ import annotations

import textwrap

from snakemake_kochi.project.experiment import Experiment
from snakemake_kochi.project.experiment_file import load_experiment


def load(text: str) -> Experiment:
    whole = textwrap.dedent(text) + "run: {script: x}\n"
    return load_experiment("e.yaml", whole, None)


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
