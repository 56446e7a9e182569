"""What the tasks of a run have noted, and what it costs to read it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from file_calls import note_calls

from snakemake_kochi.phases.launcher import NO_PLACEMENT, Placement
from snakemake_kochi.phases.tasks import Started, start
from snakemake_kochi.project.launchers import Launcher


def opened_by_binding(started: Started) -> tuple[list[str], list[object]]:
    """The files of the run that are opened for the record, and the tasks that it then has."""
    with note_calls() as calls:
        tasks = started.binding()["tasks"]
    below = f"{started.directory}/"
    return [path.removeprefix(below) for path in calls.opened if path.startswith(below)], tasks


def test_a_run_without_a_launcher_looks_for_no_tasks(tmp_path: Path) -> None:
    started = start(NO_PLACEMENT, "local", True, tmp_path / "launcher")
    assert opened_by_binding(started) == ([], [])


def test_only_what_tasks_have_noted_is_read(tmp_path: Path) -> None:
    placement = Placement(Launcher("own", "env KOCHI_TASKS={tasks}"), "none")
    started = start(placement, "local", True, tmp_path / "launcher")
    for number in (10, 2, 64):  # of more tasks than are noted
        variables = {"PMI_RANK": str(number)}
        subprocess.run([tmp_path / "launcher/task", "true"], env=variables, check=True)
    opened, tasks = opened_by_binding(started)
    assert opened == ["script", "task-2", "task-10"]
    assert [task["task"] for task in tasks if isinstance(task, dict)] == [2, 10]
