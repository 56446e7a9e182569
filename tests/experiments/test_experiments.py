"""Experiments of the kind that people write: their points, the files that they keep, their metrics.

What is expected is in `expected.txt`. A test whose listing differs writes its own beside the
project.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from support import git, run

from snakemake_kochi.artifacts.published import choose_name
from snakemake_kochi.cli.main import run as type_kochi

HERE = Path(__file__).parent
SHARED = ("kochi.yaml", "points.csv")
FILES = sorted(file.name for file in HERE.glob("*.yaml") if file.name not in SHARED)
# Their scripts are programs of a shell: of all others, only the points are looked at.
RUN = ("allocators", "flags", "kept", "prepared", "schedulers", "sort", "strings")


def read_expected() -> dict[str, str]:
    """The listing of each batch, by what is typed."""
    text = (HERE / "expected.txt").read_text()
    parts = re.split(r"^(?=[^#\s])", text, flags=re.M)[1:]
    return {part.partition("\n")[0]: part for part in parts}


EXPECTED = read_expected()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    (directory / "experiments").mkdir(parents=True)
    for name in SHARED:
        shutil.copy(HERE / name, directory / name)
    (directory / ".gitignore").write_text("/results/\n/.snakemake/\n")
    git(directory, "init", "--quiet", "--initial-branch", "main")
    choose_name(directory, "local", "local")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--message", "first")
    monkeypatch.chdir(directory)
    return directory


def listing(typed: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What `kochi show batch` tells of a batch, a line for each point."""
    capfd.readouterr()
    file, *rest = typed.split()
    status = type_kochi(["show", "batch", f"experiments/{file}", *rest, "--json"])
    told = capfd.readouterr()
    assert status == 0, (typed, told.err)
    found = json.loads(told.out)
    lines = [typed, f"  metrics: {', '.join(found['metrics'])}"]
    for point in found["points"]:
        values = [f"{name}={json.dumps(text)[1:-1]}" for name, text in point["parameters"].items()]
        skipped = f"skipped: {point['why']}" if point["state"] == "skipped" else ""
        shown = ", ".join(values) or "-"
        lines.append(f"  {shown} #{point['duplicate']}: {skipped}{' '.join(point['artifacts'])}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", FILES)
def test_an_experiment_has_its_points_files_and_metrics(
    file: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(HERE / file, project / "experiments" / file)
    all_typed = [typed for typed in EXPECTED if typed.split()[0] == file]
    assert all_typed
    found = "".join(listing(typed, capfd) for typed in all_typed)
    (project.parent / "found.txt").write_text(found)
    assert found == "".join(EXPECTED[typed] for typed in all_typed)


def test_what_has_run_is_there_and_nothing_is_left_to_do(project: Path) -> None:
    for name in RUN:
        shutil.copy(HERE / f"{name}.yaml", project / "experiments")
    type_kochi(["init"])
    targets = [name if name != "kept" else "kept_files" for name in RUN]
    command = (sys.executable, "-m", "snakemake", "--executor", "kochi", "--jobs", "100")
    assert run(*command, *targets, cwd=project).returncode == 0
    for typed, expected in EXPECTED.items():
        if typed.split()[0].removesuffix(".yaml") in RUN and typed != "kept.yaml nothing":
            for dest in re.findall(r"#\d+: (?!skipped)(.*)", expected):
                assert all((project / "results/local" / each).is_file() for each in dest.split())
    again = run(*command, "-n", *targets, cwd=project)
    assert "Nothing to be done" in again.stdout
    table = (project / "results/local/strings/default.csv").read_text().splitlines()
    assert len(table) == 1 + 14
