"""A legal file that is probably a mistake causes one warning, and the run continues."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import results


@pytest.mark.compatibility
def test_a_probable_mistake_is_reported_once_in_a_run_of_many_processes(project: Any) -> None:
    project.edit("sum.yaml", "{n: 1, debug: 0}", "{n: 1, debug: 0, debgu: 1}")
    project.edit("sum.yaml", "params: {n: [1, 2]}", "params: {n: [1, 2]}\n    duplicates: 1")
    options = ["--set-threads", "run_sum_fisrt=2", "--set-resources", "nothing_like_it:mem_mb=5"]
    done = project.try_snakemake(*results(1, 2), *options, executor="kochi")
    assert done.returncode == 0
    for said in (
        "sum.yaml:2: default_params.debgu: nothing uses the parameter 'debgu'; did you mean "
        "'debug'?\n",
        "--set-threads: there is no rule 'run_sum_fisrt'; did you mean 'run_sum_first'?\n",
        "--set-resources: there is no rule 'nothing_like_it'; to see all rules, type: snakemake "
        "--list-rules\n",
    ):
        assert done.stdout.count(said) == 1, said
    # Some rules are run by Snakemake, each in a process that reads the workflow again.
    done = project.try_snakemake("sum_first")
    assert done.returncode == 0
    assert done.stdout.count("nothing uses the parameter") == 1
