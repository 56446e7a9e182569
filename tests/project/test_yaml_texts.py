"""How YAML is read: texts survive, lines are known, nothing is lost silently."""

from __future__ import annotations

from snakemake_kochi.project.experiment_file import load_experiment


def parameters(values: str) -> dict[str, str]:
    text = f"default_params: {{{values}}}\nrun: {{script: x}}\n"
    return dict(load_experiment("e.yaml", text, None).point("local", {}).parameters)


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
