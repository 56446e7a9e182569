"""An experiment of four lines, from the file to the table."""

from __future__ import annotations

import sys
from typing import Any

from support import run, write

SHORT = """
    params: {n: 100, threads: [1, 2]}
    build: echo "built for $HOSTNAME" > built; echo "build" >> "$RAN"
    run:
      - echo "took $((KOCHI_PARAM_N / KOCHI_PARAM_THREADS)) us"
      - echo "run $KOCHI_PARAM_THREADS" >> "$RAN"
    metrics: {time: 'took ([0-9]+) us'}
    depends: [tool:fast]
    """


def test_four_lines_give_a_table_and_files_with_names_of_their_own(project: Any) -> None:
    write(project.directory / "sort.yaml", SHORT)
    project.snakemake("sort")
    ran = [each for each in project.take_ran() if "install" not in each]
    assert ran == ["build", "run 1", "run 2"]
    results = project.directory / "results/local/sort"
    assert "\ntook 50 us\n" in (results / "default/threads=2_0.log").read_text()
    assert project.planned_rules("sort") == []

    # A further value makes a further run, and leaves the names of the others.
    project.edit("sort.yaml", "[1, 2]", "[1, 2, 4]")
    words = (
        sys.executable,
        "-P",
        "-m",
        "snakemake_kochi.cli",
        "batch",
        "sort.yaml",
        "--",
        "--quiet",
        "host",
    )
    run(*words, cwd=project.directory)
    assert project.take_ran() == ["run 4"]
    table = (results / "default.csv").read_text().splitlines()
    column = table[0].split(",").index("time")
    assert sorted(float(row.split(",")[column]) for row in table[1:]) == [25, 50, 100]

    # A parameter that only some points have has a word in the names of the others.
    project.edit("sort.yaml", "threads: [1, 2, 4]", "threads: {1: {wide: [x, y]}, 2: {}}")
    project.snakemake("sort")
    found = sorted(
        each.relative_to(results).as_posix() for each in results.glob("default/**/*.log")
    )
    assert {each for each in found if "wide" in each} == {
        "default/threads=1_wide=x_0.log",
        "default/threads=1_wide=y_0.log",
        "default/threads=2_wide=%absent_0.log",
    }
