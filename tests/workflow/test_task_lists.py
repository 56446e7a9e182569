"""A file of commands in place of parameters, from the file to the table and the records."""

from __future__ import annotations

import csv
import json
from typing import Any

from support import write

LIST = """
    tasks: lists/tasks.txt
    run: bash -c "$KOCHI_PARAM_COMMAND"
    metrics: {time: 'took ([0-9]+) us'}
    """
LINES = ['echo "took $((3 + 4)) us" | cat', "echo 'took 8 us'; echo run 8 >> \"$RAN\""]


def test_each_line_is_a_point_with_a_record_and_a_row(project: Any) -> None:
    (project.directory / "lists").mkdir()
    tasks = project.directory / "lists/tasks.txt"
    tasks.write_text("# two tasks\n{}\n\n  {}\n".format(*LINES))
    write(project.directory / "list.yaml", LIST)
    project.snakemake("list")
    assert project.take_ran() == ["run 8"]
    results = project.directory / "results/local/list"
    with (results / "default.csv").open() as table:
        rows = {row["task"]: (row["command"], row["time"]) for row in csv.DictReader(table)}
    assert rows == {"2": (LINES[0], "7"), "4": (LINES[1], "8")}
    assert f" {LINES[0].replace('|', chr(92) + '|')} |" in (results / "default.md").read_text()
    assert "took 7 us" in (results / "default/task=2_0.log").read_text()
    (record,) = project.directory.glob(".snakemake/kochi/local/records/**/task=4_0.log/record.json")
    assert json.loads(record.read_text())["parameters"] == {"task": "4", "command": LINES[1]}

    # A further line makes no result stale, and a changed one its own.
    with tasks.open("a") as file:
        file.write("echo 'took 9 us'\n")
    assert project.planned_rules("list").count("run_list") == 1
    tasks.write_text(tasks.read_text().replace("took 8", "took 80"))
    assert project.planned_rules("list").count("run_list") == 2
