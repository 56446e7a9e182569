"""Batches whose points do not all have the same parameters, values from files, and skipped points,
in real runs."""

from __future__ import annotations

import csv
import re
import sys
from typing import Any

from support import run, write

SWEEP = """
    run:
      depend_params: [n, s, x]
      script: echo "run $KOCHI_PARAM_N $KOCHI_PARAM_S ${KOCHI_PARAM_X:-without}" >> "$RAN"
    build:
      depend_params: [x]
      script: echo "build ${KOCHI_PARAM_X:-without}" >> "$RAN"
    batches:
      nested:
        params: {n: {csv: points.csv}, s: {a: {x: 5}, b: {}}}
        skip_if: {condition: $n > $machine.cores * 1000, reason: $n is too large}
      elsewhere:
        params: {n: [1, 2], s: c, x: 1}
        when: $machine.cores > 1000000
    """


def test_a_sweep_with_nested_values_and_a_file_is_run_and_extended(project: Any) -> None:
    write(project.directory / "sweep.yaml", SWEEP)
    write(project.directory / "points.csv", "n\n1\n9999999\n")
    project.snakemake("sweep_nested")
    assert project.take_ran() == ["build 5", "build without", "run 1 a 5", "run 1 b without"]
    with (project.directory / "results/local/sweep/nested.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert sorted((row["n"], row["s"], row["x"]) for row in rows) == [
        ("1", "a", "5"),
        ("1", "b", ""),
    ]

    table_of_points = (project.directory / "results/local/sweep/nested.md").read_text()
    assert "\n\n2 points are skipped: 9999999 is too large.\n" in table_of_points

    # A further line of the file is a further value: it makes no result stale.
    write(project.directory / "points.csv", "n\n1\n9999999\n2\n")
    rules = ["collect_sweep_nested", *["run_sweep_nested"] * 2, "sweep_nested"]
    assert project.planned_rules("sweep_nested") == rules

    # The command of a part of a batch makes the grid itself, before there is a freeze.
    words = ("batch", "sweep.yaml", "nested", "-w", "n=2", "-w", "s=b", "--dry-run")
    planned = run(sys.executable, "-P", "-m", "snakemake_kochi.cli", *words, cwd=project.directory)
    assert re.findall(r"^run_sweep_nested +(\d+)$", planned.stdout, re.M)[:1] == ["1"]

    # That a batch has no points here concerns nobody who does not ask for it.
    refused = project.try_snakemake("-n", "sweep_elsewhere")
    assert refused.returncode == 1
    assert "sweep.yaml:11: batches.elsewhere: all 2 points are skipped on machine 'local', the" in (
        refused.stdout
    )
    assert "`$machine.cores > 1000000` is false with machine.cores=" in refused.stdout
    assert "run_sweep_nested" in project.planned_rules()
