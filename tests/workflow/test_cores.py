"""What the files may say of a run's cores, and what Kochi's files may leave out, in real runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import write

from .conftest import results

pytestmark = pytest.mark.phases


def tickets() -> dict[str, dict[str, Any]]:
    """What each submitted job requested, by its name."""
    files = Path(os.environ["KOCHI_ROOT"]).glob("machines/local/jobs/*/*/ticket.json")
    found = [json.loads(file.read_text()) for file in files]
    return {each["name"]: each["resources"] for each in found}


@pytest.mark.compatibility
def test_runs_have_the_cores_that_their_parameters_say(project: Any) -> None:
    project.edit("sum.yaml", "default_name: sum", "default_name: sum_$n")
    project.edit("sum.yaml", "run:\n", "run:\n  exclusive: false\n  cores: '`$n + 1`'\n")
    project.snakemake(*results(1, 2), "--kochi-cores", "4", executor="kochi")
    asked = tickets()
    assert {name: asked[name]["cores"] for name in ("sum_1", "sum_2")} == {"sum_1": 2, "sum_2": 3}
    assert not asked["sum_1"]["exclusive"]
    # How many there are makes nothing stale.
    project.edit("sum.yaml", "cores: '`$n + 1`'", "cores: $n")
    assert "Nothing to be done" in project.snakemake(*results(1, 2))


def test_an_experiment_without_run_is_built_in_a_batch_with_a_default_for_the_machine(
    project: Any,
) -> None:
    text = """
        default_params: {level: [{value: 1}, {value: 9, machines: spica}]}
        build: {depend_params: [level], script: 'echo "level $KOCHI_PARAM_LEVEL" > made'}
        batches:
          all: {artifacts: [{type: file, src: made, dest: "only/${level}.txt"}]}
        """
    write(project.directory / "only.yaml", text)
    made = "results/local/only/1.txt"
    project.snakemake(made)
    assert (project.directory / made).read_text() == "level 1\n"
